"""The conductor of a run, seen from outside: what its files and its lock say, and how it is asked to end.

Imports pipeline.rundir only.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from pipeline.rundir import RunDir, held, read_json

REQUESTS = ("kill", "stop")
_ASKED_BEFORE = ".starting"


def conductor_view(run: RunDir) -> dict[str, Any]:
    """{"state", "pid", "stage", "message", "remedy", "cause", "settles"}: idle, running, waiting, halted, stopped (by a
    person, between two stages), done, or lost (it was killed).

    `cause` of a halt: "stale" (then), "ended" (the stage has said how), or "".
    """
    record = read_json(run.path / "conductor" / "state.json") or {}
    state = str(record.get("state") or "idle")
    alive = held(run.path / "conductor" / "lock")
    if state in ("running", "waiting") and not alive:
        state = "lost"
    return {
        "state": state,
        "pid": record.get("pid") if alive else None,
        "stage": str(record.get("stage") or ""),
        "message": str(record.get("message") or ""),
        "remedy": str(record.get("remedy") or ""),
        "cause": str(record.get("cause") or "") if state == "halted" else "",
        "settles": record.get("settles") or [] if state in ("running", "waiting") else [],
    }


def request_stop(run: RunDir, kill: bool = False) -> bool:
    """Asks a running conductor to end, with the stage it watches; False when none runs."""
    if not held(run.path / "conductor" / "lock"):
        return False
    control = run.path / "conductor" / "control"
    control.mkdir(mode=0o700, exist_ok=True)
    for name in REQUESTS if kill else ("stop",):
        (control / name).touch(mode=0o600)
    return True


def out_of_the_way(run: RunDir, seconds: float) -> bool:
    """Whether no conductor is ending on request, or ends within that time: a start mustn't take it for one at work."""
    folder, end = run.path / "conductor", time.monotonic() + seconds
    while held(folder / "lock") and (folder / "control" / "stop").exists():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def mark_start(control: Path) -> None:
    """Before the lock is taken: requests older than this were for a conductor that is gone."""
    (control / _ASKED_BEFORE).unlink(missing_ok=True)
    (control / _ASKED_BEFORE).touch(mode=0o600)


def drop_old_requests(control: Path) -> None:
    """With the lock: what was asked since the lock is held stays, as a person may ask for a stop at any moment."""
    try:
        started = os.stat(control / _ASKED_BEFORE).st_mtime_ns
    except FileNotFoundError:  # another start, which did not get the lock, is about to make it anew
        return
    for name in REQUESTS:
        try:
            if os.stat(control / name).st_mtime_ns < started:
                os.unlink(control / name)
        except FileNotFoundError:
            pass
