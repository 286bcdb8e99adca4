"""Stand-ins for locks on volumes whose locks don't work: a file beside the lock that names the process that holds it.

Weaker than a lock: it ends with that one process, not with its children, and a restart of the host frees it. It is
written beside every lock, also where locks work: should they turn out not to, nobody who holds one is lost.
Imports rundir.atomic and identity.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pipeline.rundir.atomic import encode, read_json, temporary, write_json_fast, write_new
from pipeline.rundir.identity import alive, incarnation, process_start

MARKER = "locks.json"
"""In the root: {"work": false} when the two-process lock test failed there."""


def working(root: Path) -> bool:
    """Whether the locks of a root are trusted: unless its lock test said that they don't work."""
    return (read_json(root / MARKER) or {}).get("work") is not False


def needed(lock: Path) -> bool:
    """Whether the root that holds `lock` (two or three folders up) is marked as one whose locks don't work."""
    for folder in list(lock.absolute().parents)[1:3]:
        record = read_json(folder / MARKER)
        if record is not None:
            return record.get("work") is False
    return False


def claim(lock: Path) -> bool:
    """Name this process as the holder; False when another living process is. Raises OSError."""
    path, mine = _holder(lock), _me()
    while not write_new(path, encode(mine)):
        found = read_json(path)
        if found is not None and _lives(found):
            return False
        _bury(path, found)
    return True


def claimed(lock: Path) -> bool:
    """Whether a living process is named as the holder."""
    found = read_json(_holder(lock))
    return found is not None and _lives(found)


def name(lock: Path, pid: int | None = None) -> None:
    """Name a process (this one, by default) as the holder in the place of who was. Raises OSError.

    Not durable: after a power cut the host lives another life, and no name counts.
    """
    write_json_fast(_holder(lock), _identity(os.getpid() if pid is None else pid))


def disclaim(lock: Path) -> None:
    """Take the name away, if it is this process's. Raises OSError."""
    found = read_json(_holder(lock))
    if found == _me():
        os.unlink(_holder(lock))


def _holder(lock: Path) -> Path:
    return lock.with_name(lock.name + ".holder")


def _me() -> dict[str, Any]:
    return _identity(os.getpid())


def _identity(pid: int) -> dict[str, Any]:
    return {"pid": pid, "start": process_start(pid), "incarnation": incarnation()}


def _lives(record: dict[str, Any]) -> bool:
    pid = record.get("pid")
    return isinstance(pid, int) and record.get("incarnation") == incarnation() and alive(pid, record.get("start"))


def _bury(path: Path, dead: dict[str, Any] | None) -> None:
    """Move a dead holder's name away; a name that came in its place meanwhile is put back."""
    grave = temporary(path)
    try:
        os.rename(path, grave)
    except FileNotFoundError:
        return
    found = read_json(grave)
    if found != dead and found is not None:
        write_new(path, encode(found))
    os.unlink(grave)
