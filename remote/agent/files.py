"""What the console reads of a run's growing files: log tails by offset, and events in the order they happened.

Imports pipeline.rundir and remote.agent.kernel. Logs are bytes; nothing here decodes them.
"""

from __future__ import annotations

import base64
import heapq
import itertools
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

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


class _Source(NamedTuple):
    """Events of one file in its order, each with the offset behind it; ``key`` is the file's in a cursor."""

    key: str
    events: list[tuple[dict[str, Any], int]]
    begin: int
    end: int
    more: bool


def events(run: RunDir, since: dict[str, Any] | None, most: int) -> dict[str, Any]:
    """{"events": [{"t", "stage", "attempt", "kind", "message"}], "cursor", "more"}, of the conductor and the newest
    attempts.

    Without a cursor: the newest ``most``. With one: the oldest ``most`` of what was written since; ``more``: ask again.
    """
    told = since or {}
    sources = [
        _source(key, path, stage, attempt, told.get(key), since is not None)
        for key, path, stage, attempt in _event_files(run)
    ]
    sources.append(_plan_changes(run, told.get("plan"), most))
    if since is None:
        found = sorted((event for source in sources for event, _ in source.events), key=_when)
        return {"events": found[-most:], "cursor": {source.key: source.end for source in sources}, "more": False}
    cursor = {source.key: source.begin if source.events else source.end for source in sources}
    # A merge takes each file's events in its own order, whatever a clock that was set makes of them.
    merged = heapq.merge(
        *([(event, source.key, behind) for event, behind in source.events] for source in sources),
        key=lambda item: _when(item[0]),
    )
    new: list[dict[str, Any]] = []
    for event, key, behind in itertools.islice(merged, most):
        new.append(event)
        cursor[key] = behind
    left = next(merged, None) is not None or any(source.more for source in sources)
    return {"events": sorted(new, key=_when), "cursor": cursor, "more": left}


def _when(event: dict[str, Any]) -> float:
    return float(event["t"])


def _plan_changes(run: RunDir, since: Any, most: int) -> _Source:
    """Changes of the plan; the first revision is none. Offsets are revisions."""
    begin = since if isinstance(since, int) else 1
    revisions = run.plans()
    new = [number for number in revisions if number > begin]
    found: list[tuple[dict[str, Any], int]] = []
    for number in new[-most:] if since is None else new[:most]:
        raw = read_json(run.path / "plan" / f"{number:04d}.json") or {}
        if isinstance(raw.get("created"), (int, float)):
            message = f"plan {number}: {raw.get('note') or 'changed'}"[:MESSAGE_CHARS]
            event = {"t": raw["created"], "stage": "", "attempt": None, "kind": "plan", "message": message}
            found.append((event, number))
    return _Source("plan", found, begin, revisions[-1] if revisions else 0, len(new) > most)


def _event_files(run: RunDir) -> list[tuple[str, Path, str, int | None]]:
    files: list[tuple[str, Path, str, int | None]] = []
    files.append(("conductor", run.path / "conductor" / "events.jsonl", "", None))
    for stage in STAGES:
        folder = run.stage(stage)
        for number in folder.attempts()[-EVENT_ATTEMPTS:]:
            path = folder.attempt(number).path
            files += [(f"{stage}/{number}/{name[0]}", path / name, stage, number) for name in EVENT_FILES]
    return files


def _source(key: str, path: Path, stage: str, attempt: int | None, offset: Any, all_of_it: bool) -> _Source:
    """Events from ``offset``, at most NEXT_BYTES of them. Without one, of a file not read before: of its end alone,
    unless ``all_of_it``."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return _Source(key, [], 0, 0, False)
    try:
        size = os.fstat(fd).st_size
        if not isinstance(offset, int) or offset < 0:
            offset = 0 if all_of_it else max(0, size - FIRST_BYTES)
        if offset > size:
            offset = 0
        data = os.pread(fd, NEXT_BYTES, offset)
        torn = offset > 0 and os.pread(fd, 1, offset - 1) != b"\n"
    finally:
        os.close(fd)
    found: list[tuple[dict[str, Any], int]] = []
    at = offset
    for number, line in enumerate(data.split(b"\n")[:-1]):
        at += len(line) + 1
        event = None if torn and number == 0 else _event(line, stage, attempt)
        if event is not None:
            found.append((event, at))
    if at == offset and len(data) == NEXT_BYTES:
        at += len(data)  # a line longer than anything that is one
    if found:
        found[-1] = (found[-1][0], at)
    return _Source(key, found, offset, at, len(data) == NEXT_BYTES)


def _event(line: bytes, stage: str, attempt: int | None) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    when = row.get("t") if isinstance(row, dict) else None
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
