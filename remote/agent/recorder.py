"""One recorder a host: appends a sample every ten seconds while anything runs, so that a night alone has its curves.

Detached, under ROOT/telemetry/lock. Rows go to numbered segments of bounded size; the oldest ones are dropped.
Imports pipeline.rundir and modules beside it.
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.rundir import STAGES, JsonLines, Lock, RunDir, RunError, held, iter_jsonl, runs
from pipeline.volume import Volume, volume_of
from remote.agent.columns import decimate
from remote.agent.detach import Ready, detach
from remote.agent.disk import SAMPLE_S, WINDOW_S
from remote.agent.sampling import HostReader

IDLE_S = 60.0
SEGMENT_BYTES = 8 * 1024 * 1024
SEGMENTS = 8
ROWS_READ = 20_000
"""Rows that `history` holds at most; beyond that only every second, third, … one is read."""


def record(root: Path) -> int:
    """Detaches and records. Prints {"ok", "pid"}; 1 when the host is recorded already."""
    folder = root / "telemetry"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return detach(lambda ready: _record(root, ready), folder / "log")


def _record(root: Path, ready: Ready) -> int:
    lock = Lock.acquire(root / "telemetry" / "lock")
    if lock is None:
        return ready.refused("this host is being recorded already")
    ready.running()
    reader = HostReader(Volume(root))
    last_busy = time.monotonic()
    try:
        while time.monotonic() - last_busy < IDLE_S and root.is_dir():
            began = time.monotonic()
            active = busy_runs(root)
            if active:
                last_busy = began
                reader.watch(_volume(root, active[0]))
            try:
                append(root / "telemetry", row_of(reader.read()))
            except OSError:
                pass  # a full volume: its curve has a gap then
            time.sleep(max(0.0, SAMPLE_S - (time.monotonic() - began)))
    finally:
        reader.close()
        lock.release()
    return 0


def busy_runs(root: Path) -> list[str]:
    """Runs with a living conductor or a supervised stage."""
    return [
        name
        for name in runs(root)
        if held(root / name / "conductor" / "lock") or any(held(root / name / stage / "lock") for stage in STAGES)
    ]


def _volume(root: Path, name: str) -> Volume:
    try:
        run = RunDir.open(root / name)
        return volume_of(run, run.plan())
    except RunError:
        return Volume(root)


def row_of(host: dict[str, Any]) -> dict[str, Any]:
    """A sample as it is stored: {"t", "gpus": [[index, power_w, util_pct, mem_used, temp_c]], "disk", …}."""
    disk = host["disk"]
    return {
        "t": host["wall"],
        "gpus": [
            [row["index"], row["power_w"], row["util_pct"], row["mem_used"], row["temp_c"]] for row in host["gpus"]
        ],
        "disk": [disk["used"], disk["free"]],
        "path": disk["path"],
        "cpu": host["cpu_pct"],
        "mem": host["mem_used"],
        "load": host["load"],
    }


def append(folder: Path, row: dict[str, Any]) -> None:
    """Adds a row to the newest segment, opening the next one when it is full. Raises OSError."""
    segments = _segments(folder)
    newest = segments[-1] if segments else folder / "000001.jsonl"
    if newest.exists() and newest.stat().st_size >= SEGMENT_BYTES:
        newest = folder / f"{int(newest.stem) + 1:06d}.jsonl"
        for old in segments[: max(0, len(segments) + 1 - SEGMENTS)]:
            os.unlink(old)
    with JsonLines(newest) as file:
        file.append(row)


def _segments(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.jsonl") if path.stem.isdigit())


def _rows(folder: Path, since: float) -> Iterator[dict[str, Any]]:
    for path in _segments(folder):
        if path.stat().st_mtime >= since:
            for row, _ in iter_jsonl(path):
                if isinstance(row.get("t"), (int, float)) and row["t"] > since:
                    yield row


def history(root: Path, since: float, points: int) -> dict[str, list[float | None]]:
    """Columns since wall time ``since``, decimated: t, cpu_pct, mem_used, load, disk/used, gpu0/power_w, …"""
    folder = root / "telemetry"
    count = sum(1 for _ in _rows(folder, since))
    stride = count // ROWS_READ + 1
    columns: dict[str, array[float]] = {}
    kept = 0
    for number, row in enumerate(_rows(folder, since)):
        if number % stride:
            continue
        for name, value in _flat(row):
            column = columns.get(name)
            if column is None:
                column = columns[name] = array("d", [float("nan")]) * kept
            column.append(float("nan") if value is None else value)
        kept += 1
        for column in columns.values():
            if len(column) < kept:
                column.append(float("nan"))
    return decimate(columns, ("t",), points)


def recent_use(root: Path, volume: Path) -> list[tuple[float, int]]:
    """(seconds ago, used bytes) of a volume over the window of its fill rate, from the oldest on."""
    now = time.time()
    rows = [row for row in _rows(root / "telemetry", now - WINDOW_S) if row.get("path") == str(volume)]
    seen = [(row["t"], _disk(row)[0]) for row in rows if row["t"] <= now]
    return [(now - at, used) for at, used in seen if isinstance(used, int)]


def _disk(row: dict[str, Any]) -> tuple[Any, Any]:
    """(used, free) of a stored sample; None for what it doesn't say."""
    pair = row.get("disk")
    return (pair[0], pair[1]) if isinstance(pair, list) and len(pair) == 2 else (None, None)


_OF_A_CARD = ("power_w", "util_pct", "mem_used", "temp_c")


def _flat(row: dict[str, Any]) -> Iterator[tuple[str, float | None]]:
    yield "t", row["t"]
    for name, key in (("cpu_pct", "cpu"), ("mem_used", "mem"), ("load", "load")):
        yield name, _number(row.get(key))
    used, free = _disk(row)
    yield "disk/used", _number(used)
    yield "disk/free", _number(free)
    cards = row.get("gpus")
    for card in cards if isinstance(cards, list) else ():
        if isinstance(card, list) and len(card) == 1 + len(_OF_A_CARD):
            for name, value in zip(_OF_A_CARD, card[1:]):
                yield f"gpu{card[0]}/{name}", _number(value)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
