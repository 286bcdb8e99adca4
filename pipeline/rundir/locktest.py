"""Whether the locks of a volume work, found out with two processes, and remembered in the root for everybody who locks.

Run as a program it is the second process. Imports rundir.locks and claims.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from pipeline.rundir import claims, locks
from pipeline.rundir.atomic import temporary, write_json
from pipeline.rundir.errors import RunError

_TIMEOUT_S = 30
_SECOND = "import sys; from pathlib import Path; from pipeline.rundir.locktest import second; second(Path(sys.argv[1]))"


def try_locks(root: Path) -> bool:
    """Try locks between two processes in `root`, write the result to its locks.json and return it.

    When it is False, the locks of runs in this root go by the holder's identity from then on. Raises RunError when the
    second process can't be run, OSError when the root can't be written.
    """
    path = temporary(Path(root) / "locktest")
    code = Path(__file__).resolve().parents[2]
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        if locks.take(fd) is not True:
            work = False
        else:
            done = subprocess.run(
                [sys.executable, "-c", _SECOND, str(path)],
                cwd=code,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
            if done.returncode != 0:
                raise RunError(f"The lock test in {root} couldn't be run: {done.stderr[-200:]}", "Look at that Python")
            work = done.stdout.strip() == "held refused"
    finally:
        os.close(fd)
        os.unlink(path)
    write_json(Path(root) / claims.MARKER, {"schema": 1, "work": work, "tested": time.time()})
    return work


def second(path: Path) -> None:
    """The second process: what a probe and an attempt to take the lock say while the first one holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    print("held" if locks.asked(fd) else "free", "taken" if locks.take(fd) else "refused")
