"""What must be right on a host, checked: each finding says what was seen and, where something is wrong, what to do.

What takes both ends (sessions at once, what survives a disconnect) is remote.checkup's. Imports pipeline.rundir,
pipeline.config and modules beside it.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.budget import size_text
from pipeline.config import Plan
from pipeline.rundir import RunDir, RunError, try_locks
from pipeline.rundir.claims import working
from pipeline.volume import Volume, space, volume_of
from remote.agent.detach import Ready, detach
from remote.agent.environment import container_environment
from remote.agent.finding import finding
from remote.agent.gpus import GpuReader
from remote.agent.programs import engines, pythons
from remote.agent.surroundings import environment, passing
from remote.agent.trouble import told

LINGER_S = 60.0


def examine(root: Path, run: RunDir | None = None) -> dict[str, Any]:
    """{"findings": [{"name", "ok": bool|None, "value", "message", "remedy"}], "ok"}; ok None: for information."""
    plan = run.plan() if run else None
    volume = volume_of(run, plan) if run and plan else Volume(root)
    findings = [*_agent(), *pythons(plan), *(engines(run, plan) if run and plan else ())]
    findings += [*_volume(volume), *_lasting(volume.path), *_locks(root), *_gpus(), *_environment(run, plan), *_clock()]
    return {"findings": findings, "ok": all(found["ok"] is not False for found in findings)}


def _agent() -> Iterator[dict[str, Any]]:
    version = platform.python_version()
    good = sys.version_info >= (3, 9)
    yield finding(
        "agent python",
        good,
        version,
        f"{sys.executable} is Python {version}",
        "" if good else "install Python 3.9 or newer",
    )
    yield finding("system", None, platform.platform(), f"{platform.platform()}, {os.cpu_count()} processors")


def _volume(volume: Volume) -> Iterator[dict[str, Any]]:
    try:
        seen = space(volume)
    except OSError as error:
        yield finding(
            "volume", False, str(volume.path), f"{volume.path}: {error.strerror}", "mount it, or set volume.path"
        )
        return
    message = f"{volume.path}: {size_text(seen.free)} free of {size_text(seen.capacity)}"
    good = seen.free > volume.reserve and not seen.read_only
    remedy = (
        ""
        if good
        else ("it is read-only: mount it writable" if seen.read_only else "free some space, or lower the reserve")
    )
    yield finding("volume", good, {"free": seen.free, "total": seen.total}, message, remedy)
    if seen.inodes_free is not None:
        few = seen.inodes_free < 10_000
        yield finding(
            "inodes",
            not few,
            seen.inodes_free,
            f"{seen.inodes_free:,} files can still be made",
            "delete small files" if few else "",
        )


def _locks(root: Path) -> Iterator[dict[str, Any]]:
    """Two processes: a lock that one holds must be seen and refused by the other."""
    try:
        good = try_locks(root)
    except RunError as error:
        yield finding("locks", False, None, error.message, error.remedy)
        return
    except OSError as error:
        yield finding("locks", False, None, *told(error, root))
        return
    if good == working(root):
        decides = "" if good else "; the identity of processes decides instead, which their children don't keep"
    else:
        decides = "; what decides changes once nothing of this root runs and doctor looks again"
    message = f"locks {'hold' if good else 'fail'} between processes on {root}{decides}"
    yield finding("locks", good, {"work": good}, message, "" if good else "put the root on a local filesystem")


def _gpus() -> Iterator[dict[str, Any]]:
    reader = GpuReader()
    with contextlib.closing(reader):
        seen = reader.read()
    bad = [row for row in seen["gpus"] if row["error"]]
    names = ", ".join(f"{row['index']}: {row['name'] or row['error']}" for row in seen["gpus"])
    remedy = "look into `nvidia-smi` and `dmesg` on the host; a card that is lost comes back with a reset or a restart"
    yield finding("gpus", False if bad else None, len(seen["gpus"]), names or seen["note"], remedy if bad else "")


def _environment(run: RunDir | None, plan: Plan | None) -> Iterator[dict[str, Any]]:
    allowed = plan.stages["train"].env_allow if plan else ()
    yield from environment(container_environment(), os.environ, run.name if run else "", allowed)


def _lasting(path: Path) -> Iterator[dict[str, Any]]:
    try:
        mounts = Path("/proc/self/mountinfo").read_text("utf-8", "replace")
    except OSError:
        return  # not Linux
    yield from passing(Path(os.path.realpath(path)), mounts)


def linger() -> int:
    """Leaves a process behind, detached as supervisors are, that ends by itself; prints {"ok", "pid"}."""

    def stay(ready: Ready) -> int:
        for number in (signal.SIGHUP, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        ready.running()
        time.sleep(LINGER_S)
        return 0

    return detach(stay, Path(os.devnull))


def _clock() -> Iterator[dict[str, Any]]:
    yield finding("clock", None, time.time(), time.strftime("the host says %Y-%m-%d %H:%M:%S %Z"))
