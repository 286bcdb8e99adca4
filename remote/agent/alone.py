"""Killing a stage that runs alone: nobody supervises it, so its processes are gathered here, and its end is written.

Imports pipeline.rundir and modules beside it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from pipeline.rundir import Attempt, Lock
from remote.agent.attempts import completed
from remote.agent.holders import holders
from remote.agent.members import Identity, Membership, send
from remote.agent.verdict import Ending, verdict

KILL_S = 10.0


def runs_alone(attempt: Attempt) -> bool:
    """Whether it runs without a supervisor: begun by hand, and not adopted since."""
    state = attempt.state()
    return attempt.spec().get("by") == "alone" and state.get("supervisor") == state.get("main")


def kill_alone(attempt: Attempt) -> None:
    """Kills the stage's process with its descendants and what shares a session of theirs; then writes exit.json."""
    main = attempt.state().get("main") or {}
    known = [*_identities(main), *holders(attempt.stage.writer_lock_path)]
    if not known:
        return
    # The session it was started in is a shell's, with other work in it; one that it leads is its own.
    shell = {sid for sid in (_session(pid) for pid, _ in known[:1]) if sid != known[0][0]}
    membership, end = Membership(None, known, excluded=shell), time.monotonic() + KILL_S
    while time.monotonic() < end:
        living = [process.identity for process in membership.scan()]
        if not living:
            break
        # the main process first, so that it starts nothing anew
        for member in sorted(living, key=lambda member: member != known[0]):
            send(member, signal.SIGKILL)
        time.sleep(0.02)
    else:
        return  # what can't be killed goes on being told as what it is
    _write_end(attempt)


def _write_end(attempt: Attempt) -> None:
    """exit.json under the stage's lock, unless another attempt was faster."""
    lock = Lock.acquire(attempt.stage.lock_path)
    if lock is None:
        return
    with lock:
        latest = attempt.stage.latest()
        if latest is None or latest.number != attempt.number or attempt.exit() is not None:
            return
        end = Ending(attempt.outcome(), signal=int(signal.SIGKILL), asked="kill", complete=completed(attempt))
        with contextlib.suppress(OSError):  # a full volume: its processes are gone all the same
            attempt.write_exit(**verdict(end))


def _identities(record: dict[str, object]) -> list[Identity]:
    pid, start = record.get("pid"), record.get("start")
    return [(pid, start)] if isinstance(pid, int) and isinstance(start, int) else []


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return pid
