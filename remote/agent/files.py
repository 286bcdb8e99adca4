"""What the console reads of a run's growing files: log tails by offset, and events in the order they happened.

Imports pipeline.rundir and remote.agent.kernel. Logs are bytes; nothing here decodes them.
"""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

from pipeline.rundir import STAGES, Attempt, RunDir, held, read_json
from remote.agent.kernel import data_from
from remote.protocol import TAIL_MAX

EVENT_FILES = ("events.jsonl", "supervision.jsonl")
EVENT_ATTEMPTS = 5
FIRST_BYTES = 32 * 1024
NEXT_BYTES = 64 * 1024
MESSAGE_CHARS = 600


def tail(attempt: Attempt, offset: int, most: int, generation: str | None) -> dict[str, Any]:
    """A piece of an attempt's log: {"attempt", "generation", "offset", "data" (base64), "size", "done"}.

    ``offset`` < 0 counts from the end. Where the log was replaced (another ``generation``) or is shorter than that,
    reading starts at 0; where its oldest part was given back, at the first byte that is left. Go on from
    offset + bytes received; ``done``: the attempt has ended and there is no more.
    """
    path = attempt.file("stage.log")
    most = max(1, min(most, TAIL_MAX))
    # Asked before the size is, so that an ended log is read to its end.
    ended = attempt.exit() is not None or not held(attempt.stage.lock_path)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        empty = {"generation": "", "offset": 0, "data": "", "size": 0, "done": ended}
        return {"attempt": attempt.number, **empty}
    try:
        seen = os.fstat(fd)
        now, size = f"{seen.st_dev:x}-{seen.st_ino:x}", seen.st_size
        start = max(0, size + offset) if offset < 0 else offset
        if (generation and generation != now) or start > size:
            start = 0
        if start < size:
            start = data_from(fd, start)
        data = os.pread(fd, most, start)
    finally:
        os.close(fd)
    return {
        "attempt": attempt.number,
        "generation": now,
        "offset": start,
        "data": base64.b64encode(data).decode(),
        "size": size,
        "done": ended and start + len(data) >= size,
    }


def events(run: RunDir, since: dict[str, Any] | None, most: int) -> dict[str, Any]:
    """{"events": [{"t", "stage", "attempt", "kind", "message"}], "cursor"}, of the conductor and the newest attempts.

    Without a cursor: the newest ``most``. With one: what was written since, at most NEXT_BYTES a file a call.
    """
    found: list[dict[str, Any]] = []
    cursor: dict[str, int] = {}
    for key, path, stage, attempt in _event_files(run):
        offset = (since or {}).get(key)
        rows, end = _rows(path, offset if isinstance(offset, int) and offset >= 0 else None, since is not None)
        cursor[key] = end
        found += [event for row in rows if (event := _event(row, stage, attempt)) is not None]
    revisions = run.plans()
    cursor["plan"] = revisions[-1] if revisions else 0
    found += _plan_events(run, [number for number in revisions[-most:] if number > (since or {}).get("plan", 1)])
    found.sort(key=lambda event: event["t"])
    return {"events": found[-most:] if since is None else found, "cursor": cursor}


def _plan_events(run: RunDir, revisions: list[int]) -> list[dict[str, Any]]:
    """Changes of the plan; the first revision is none."""
    found = []
    for number in revisions:
        raw = read_json(run.path / "plan" / f"{number:04d}.json") or {}
        if isinstance(raw.get("created"), (int, float)):
            message = f"plan {number}: {raw.get('note') or 'changed'}"[:MESSAGE_CHARS]
            found.append({"t": raw["created"], "stage": "", "attempt": None, "kind": "plan", "message": message})
    return found


def _event_files(run: RunDir) -> list[tuple[str, Path, str, int | None]]:
    files: list[tuple[str, Path, str, int | None]] = []
    files.append(("conductor", run.path / "conductor" / "events.jsonl", "", None))
    for stage in STAGES:
        folder = run.stage(stage)
        for number in folder.attempts()[-EVENT_ATTEMPTS:]:
            path = folder.attempt(number).path
            files += [(f"{stage}/{number}/{name[0]}", path / name, stage, number) for name in EVENT_FILES]
    return files


def _rows(path: Path, offset: int | None, all_of_it: bool) -> tuple[list[dict[str, Any]], int]:
    """Rows from ``offset`` (None: a file not read before; its end alone, unless ``all_of_it``) and where to go on."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return [], 0
    try:
        size = os.fstat(fd).st_size
        if offset is None:
            offset = 0 if all_of_it else max(0, size - FIRST_BYTES)
        if offset > size:
            offset = 0
        data = os.pread(fd, NEXT_BYTES, offset)
        torn = offset > 0 and os.pread(fd, 1, offset - 1) != b"\n"
    finally:
        os.close(fd)
    end = data.rfind(b"\n") + 1
    lines = data[:end].split(b"\n")
    rows = []
    for line in lines[1:] if torn else lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    if not end and len(data) == NEXT_BYTES:
        end = len(data)  # a line longer than anything that is one
    return rows, offset + end


def _event(row: dict[str, Any], stage: str, attempt: int | None) -> dict[str, Any] | None:
    when = row.get("t")
    if not isinstance(when, (int, float)) or isinstance(when, bool):
        return None
    where = row.get("stage") if not stage and isinstance(row.get("stage"), str) else stage
    kind, message = str(row.get("kind") or ""), str(row.get("message") or "")
    return {"t": when, "stage": where, "attempt": attempt, "kind": kind[:40], "message": message[:MESSAGE_CHARS]}


def listing(path: Path, most: int = 2000) -> dict[str, Any]:
    """{"path", "kind": file|folder|none, "size", "mtime", "entries": [{"path", "size"}], "more"}: files below."""
    entries: list[dict[str, Any]] = []
    found: dict[str, Any] = {"path": str(path), "kind": "none", "size": 0, "mtime": None, "entries": entries}
    try:
        seen = os.stat(path)
    except OSError:
        return {**found, "more": False}
    if not os.path.isdir(path):
        return {**found, "kind": "file", "size": seen.st_size, "mtime": seen.st_mtime, "more": False}
    total, more = 0, False
    for folder, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            full = os.path.join(folder, name)
            try:
                size = os.lstat(full).st_size
            except OSError:
                continue
            if len(entries) >= most:
                more = True
                break
            total += size
            entries.append({"path": os.path.relpath(full, path), "size": size})
        if more:
            break
    return {**found, "kind": "folder", "size": total, "mtime": seen.st_mtime, "more": more}
