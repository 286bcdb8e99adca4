"""Who still writes for a stage whose supervisor is gone: found by the lock that its main process has open.

A supervisor may be killed between starting the process and remembering it; then its descriptor of writer.lock is the
only trace of it. Imports pipeline.rundir and modules beside it. Reads /proc; elsewhere nobody is found.
"""

from __future__ import annotations

import os
from pathlib import Path

from pipeline.rundir import Attempt, held
from remote.agent.members import Identity, read_process


def holders(lock: Path) -> list[Identity]:
    """Other processes that have the lock's file open, the oldest first: the main process before what it has forked."""
    try:
        wanted = os.stat(lock, follow_symlinks=False)
    except OSError:
        return []
    found = []
    for entry in os.listdir("/proc") if os.path.isdir("/proc/self/fd") else ():
        if entry.isdigit() and int(entry) != os.getpid() and _has_open(entry, lock.name, wanted):
            process = read_process(int(entry))
            if process is not None and not process.dead:
                found.append(process.identity)
    return sorted(found, key=lambda identity: (identity[1], identity[0]))


def still_runs(attempt: Attempt) -> bool:
    """Whether a remembered process lives, or somebody writes: what has to be adopted or killed before another start."""
    return bool(attempt.living()) or held(attempt.stage.writer_lock_path)


def _has_open(pid: str, name: str, wanted: os.stat_result) -> bool:
    folder = f"/proc/{pid}/fd"
    try:
        descriptors = os.listdir(folder)
    except OSError:
        return False  # gone, or another user's
    for descriptor in descriptors:
        path = f"{folder}/{descriptor}"
        try:
            # the name first: to stat a file of a network volume that hangs would hang here too
            if os.readlink(path).endswith(f"/{name}"):
                info = os.stat(path)
                if (info.st_dev, info.st_ino) == (wanted.st_dev, wanted.st_ino):
                    return True
        except OSError:
            continue
    return False
