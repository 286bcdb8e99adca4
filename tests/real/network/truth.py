"""The invariants of the fault matrix, checked on the host's own files and processes, never through the faulted link.

I1 no stage killed, started or doubled · I2 the log's bytes here are those there · I3 no event lost or doubled ·
I4 the end as told is the end as it was · I5 nothing left running or open · I6 old data looks old · I7 no traceback
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from console.views import event_view
from pipeline.rundir import RunDir, StageDir, process_start
from remote.sanitize import clean
from tests.real.network.laptop import Laptop
from tests.real.network.topology import Gpu

LEAK_S = 60.0
FILES = ("events.jsonl", "supervision.jsonl")
TRACEBACK = b"Traceback (most recent"


def counted(stage: StageDir) -> list[str]:
    """What the counting stage has written, all its attempts together."""
    output = stage.current()
    path = output.path / "counts.txt" if output is not None else None
    return path.read_text().split() if path is not None and path.exists() else []


def assert_counts(stage: StageDir) -> int:
    """No count lost, none doubled. The last one."""
    found = counted(stage)
    assert found == [str(number) for number in range(1, len(found) + 1)], found[-5:]
    return len(found)


@dataclass(frozen=True)
class Untouched:
    """I1. Taken before a fault; ``check`` after it."""

    stage: StageDir
    attempts: list[int]
    processes: dict[str, Any]

    @classmethod
    def of(cls, run: RunDir, stage: str = "generate") -> Untouched:
        folder = run.stage(stage)
        latest = folder.latest()
        assert latest is not None
        return cls(folder, folder.attempts(), {role: latest.state()[role] for role in ("main", "supervisor")})

    def check(self) -> None:
        assert self.stage.attempts() == self.attempts
        latest = self.stage.latest()
        assert latest is not None and latest.exit() is None, latest and latest.exit()
        for role, was in self.processes.items():
            assert latest.state()[role] == was, (role, latest.state()[role], was)
            assert process_start(was["pid"]) == was["start"], f"{role} is gone"
        assert not [note for note in rows(latest.path / "supervision.jsonl") if note["kind"] in ("signal", "adopted")]


def rows(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    *lines, _ = path.read_bytes().split(b"\n")
    return [json.loads(line) for line in lines]


def check_log(here: Laptop, run: RunDir, stage: str = "generate", attempt: int = 1, jumps: int = 0) -> int:
    """I2: the pieces join, and their bytes are the file's. ``jumps``: fresh starts at the end that are allowed.

    Returns how far the laptop has read.
    """
    data = (run.stage(stage).attempt(attempt).path / "stage.log").read_bytes()
    joined, position, begun, started = bytearray(), 0, 0, False
    for (_, asked, _), (number, _, offset, piece) in zip(here.link.log, here.log_pieces()):
        if number != attempt or asked["stage"] != stage:
            continue
        if started and asked["offset"] < 0:
            jumps -= 1
            assert jumps >= 0, "the log was begun anew"
            assert hashlib.sha256(joined).digest() == hashlib.sha256(data[begun:position]).digest()
            joined, position, begun = bytearray(), offset, offset
        assert offset == position, f"asked for {asked}, got {offset}, at {position}"
        started = True
        joined += piece
        position += len(piece)
    assert hashlib.sha256(joined).digest() == hashlib.sha256(data[begun:position]).digest()
    shown = [line for line in here.snapshot.log if line.strip()][:-1]  # the last may be half of one
    lines = [clean(line) for line in data[:position].split(b"\n") if clean(line).strip()]
    assert not shown or "\n".join(shown) in "\n".join(lines)
    return position


def event_rows(run: RunDir) -> Counter[tuple[float, str, str]]:
    """Every event of the files, as the console would tell it."""
    paths = [run.path / "conductor" / "events.jsonl"]
    for folder in run.path.glob("*/attempts/*"):
        paths += [folder / name for name in FILES]
    views = [event_view({**row, "message": str(row.get("message") or "")[:600]}) for p in paths for row in rows(p)]
    return Counter((view.t, view.kind, view.message) for view in views if view is not None)


async def check_events(here: Laptop, run: RunDir) -> None:
    """I3: every event is on the laptop, once; those that arrive this moment are waited for."""
    told = lambda: Counter((event.t, event.kind, event.message) for event in here.snapshot.events)  # noqa: E731
    end = time.monotonic() + 20
    while (missing := event_rows(run) - told()) and time.monotonic() < end:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    assert not missing, missing
    assert not told() - event_rows(run), "told twice, or never written"


async def check_end(here: Laptop, run: RunDir, stage: str = "generate") -> None:
    """I4: state and message on the laptop are those of exit.json."""
    latest = run.stage(stage).latest()
    assert latest is not None
    found: dict[str, Any] = await here.until(latest.exit, 60)  # type: ignore[assignment]
    assert found.get("log_size") == (latest.path / "stage.log").stat().st_size
    want = found["reason"].upper()
    await here.until(lambda: here.state(stage) == want, 60)
    assert here.stage(stage).message == found["message"]
    assert here.stage(stage).resumable == found["resumable"]


async def check_nothing_leaks(gpu: Gpu, agents: int = 0) -> None:
    """I5 on the host: within LEAK_S no more than ``agents`` agents live, and sshd serves nobody but them."""
    end = time.monotonic() + LEAK_S
    sessions = 2 if agents else 0  # one connection is a privileged sshd and, for others than root, a second one
    while len(gpu.wire.agents()) > agents or len(gpu.sessions()) > sessions:
        assert time.monotonic() < end, (gpu.wire.agents(), gpu.sessions())
        await asyncio.sleep(0.1)


async def check_nothing_stays_here(files: set[str], tasks: set[asyncio.Task[Any]]) -> None:
    """I5 here: no socket, pipe or task but those that were there before."""
    end = time.monotonic() + 10
    while open_files() - files or asyncio.all_tasks() - tasks:
        assert time.monotonic() < end, (open_files() - files, asyncio.all_tasks() - tasks)
        await asyncio.sleep(0.1)


def open_files() -> set[str]:
    """The sockets and pipes of this process."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith(("socket:", "pipe:")):
            found.add(target)
    return found


def check_staleness(here: Laptop, kind: str, after_s: float) -> None:
    """I6: ``kind`` was shown within a second of ``after_s`` without a byte (and what this machine kept us waiting)."""
    steps = zip(here.link.states, here.link.states[1:])
    ages = [after.age_s for before, after in steps if after.kind == kind and before.kind in ("LIVE", "STALE")]
    assert ages, here.link.kinds()
    for age in ages:
        assert age is not None and age <= after_s + 1.0 + here.lag_s, (kind, ages, here.lag_s)


def check_no_traceback(gpu: Gpu, here: Laptop | None = None) -> None:
    """I7: in no log of the host (stages, conductors, recorder, services), on no agent's standard error, nor here."""
    for path in gpu.root.rglob("*"):
        if (path.suffix == ".log" or path.name == "log") and path.is_file() and "code" not in path.parts:
            assert TRACEBACK not in path.read_bytes()[-1_000_000:], path.read_text()[-3000:]
    assert b"segfault" not in gpu.log.read_bytes()
    if here is not None:
        for said in here.link.agents_said():
            assert TRACEBACK not in said, said.decode(errors="replace")
        assert not here.troubles, "\n".join(here.troubles)
