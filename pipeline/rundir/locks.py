"""Locks that the kernel frees on any death: open-file-description locks, asked about with F_OFD_GETLK, never by taking them.

A lock lives as long as any copy of its descriptor (dup, fork, exec with an inheritable fd). Where the platform lacks them
(macOS), flock stands in: the same lifetime, but a probe has to take a shared lock for an instant, so `acquire` tries again
for a moment before it gives up. Standard library only.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
import time
from pathlib import Path

from pipeline.rundir.errors import RunError

_OFD = sys.platform.startswith("linux") and hasattr(fcntl, "F_OFD_SETLK")
# struct flock with 64-bit offsets: l_type, l_whence, l_start, l_len, l_pid (0 for OFD locks), padded
_FLOCK = struct.Struct("hhqqi0q")
_BUSY = {errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK}
_FALLBACK_TRIES, _FALLBACK_PAUSE_S = 20, 0.01

_ours: dict[tuple[int, int], int] = {}
"""Locks this process holds: (device, inode) -> count."""


class Lock:
    """An exclusive lock held through `fd`. Made by `acquire` or `inherited`; a context manager."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path, self.fd = path, fd
        self._key = _key(fd)
        _ours[self._key] = _ours.get(self._key, 0) + 1

    @classmethod
    def acquire(cls, path: Path) -> Lock | None:
        """Take the lock of `path` (made when missing) without waiting; None when someone holds it. Raises OSError."""
        path = Path(path)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            taken = _take(fd)
        except BaseException:
            os.close(fd)
            raise
        if not taken:
            os.close(fd)
            return None
        return cls(path, fd)

    @classmethod
    def inherited(cls, path: Path, fd: int) -> Lock:
        """The lock of `path` that came from the parent as `fd`; children get it no further. Raises RunError."""
        path = Path(path)
        try:
            same = _key(fd) == _key_of(path)
        except OSError:
            same = False
        if not same or not _take(fd):
            raise RunError(f"Descriptor {fd} is not the lock {path}", "Start the stage through its supervisor")
        os.set_inheritable(fd, False)
        return cls(path, fd)

    @property
    def inheritable(self) -> bool:
        """Whether a program started by exec keeps the lock."""
        return os.get_inheritable(self.fd)

    @inheritable.setter
    def inheritable(self, value: bool) -> None:
        os.set_inheritable(self.fd, value)

    def release(self) -> None:
        """Let go of this descriptor; the lock is free once no other process has a copy of it. Twice is fine."""
        if self.fd < 0:
            return
        _ours[self._key] -= 1
        if not _ours[self._key]:
            del _ours[self._key]
        os.close(self.fd)
        self.fd = -1

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def held(path: Path) -> bool:
    """Whether anybody holds the lock of `path`, this process included. Never takes it (flock fallback: see above)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        if _key(fd) in _ours:
            return True
        return _asked(fd)
    finally:
        os.close(fd)


def held_here(path: Path) -> bool:
    """Whether this process holds the lock of `path`."""
    try:
        return _key_of(path) in _ours
    except OSError:
        return False


def _take(fd: int) -> bool:
    if _OFD:
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        except OSError as error:
            if error.errno in _BUSY:
                return False
            raise
        return True
    for _ in range(_FALLBACK_TRIES):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _BUSY:
                raise
            time.sleep(_FALLBACK_PAUSE_S)
        else:
            return True
    return False


def _asked(fd: int) -> bool:
    if _OFD:
        answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _BUSY:
            raise
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def _key(fd: int) -> tuple[int, int]:
    info = os.fstat(fd)
    return info.st_dev, info.st_ino


def _key_of(path: Path) -> tuple[int, int]:
    info = os.stat(path, follow_symlinks=False)
    return info.st_dev, info.st_ino
