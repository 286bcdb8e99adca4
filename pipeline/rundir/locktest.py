"""Whether the locks of a volume work, found out with two processes, and remembered in the root for everybody who locks.

Run as a program it is the second process. Imports rundir.locks and claims.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

from pipeline.rundir import claims, locks
from pipeline.rundir.atomic import temporary, write_json
from pipeline.rundir.errors import RunError

_TIMEOUT_S = 30
_LOCKS = ("*/lock", "*/*/lock", "*/*/writer.lock", "*/*/use.lock")
"""Where locks are in a root: of the recorder; of conductors, stages and services."""
_SECOND = "import sys; from pathlib import Path; from pipeline.rundir.locktest import second; second(Path(sys.argv[1]))"


def know_locks(root: Path) -> None:
    """Try the locks of a root that hasn't been tried yet. Where that can't be done, they are trusted."""
    if not (root / claims.MARKER).exists():
        with contextlib.suppress(RunError, OSError):
            try_locks(root)


def try_locks(root: Path) -> bool:
    """Try locks between two processes in `root`, remember the result in its locks.json and return it.

    When it is False, the locks of runs in this root go by the holder's identity from then on. While anything in the
    root is held, what decides stays as it is. Raises RunError when the second process can't be run, OSError when the
    root can't be written.
    """
    root = Path(root)
    work = _two_processes(root)
    if work == claims.working(root) or not anything_held(root):
        write_json(root / claims.MARKER, {"schema": 1, "work": work, "tested": time.time()})
    return work


def anything_held(root: Path) -> bool:
    """Whether a lock in the root is held, by the kernel's word or by a holder's name."""
    return any(_held(path) for pattern in _LOCKS for path in root.glob(pattern))


def _held(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return bool(locks.asked(fd)) or claims.claimed(path)
    finally:
        os.close(fd)


def _two_processes(root: Path) -> bool:
    path = temporary(root / "locktest")
    code = Path(__file__).resolve().parents[2]
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        if locks.take(fd) is not True:
            return False
        argv = [sys.executable, "-B", "-c", _SECOND, str(path)]
        try:
            done = subprocess.run(argv, cwd=code, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            raise RunError(
                f"The lock test in {root} got no answer within {_TIMEOUT_S} s", "Look at that volume"
            ) from None
        if done.returncode != 0:
            raise RunError(f"The lock test in {root} couldn't be run: {done.stderr[-200:]}", "Look at that Python")
        return done.stdout.strip() == "held refused"
    finally:
        os.close(fd)
        os.unlink(path)


def second(path: Path) -> None:
    """The second process: what a probe and an attempt to take the lock say while the first one holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    print("held" if locks.asked(fd) else "free", "taken" if locks.take(fd) else "refused")
