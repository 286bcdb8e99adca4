"""Locks that the kernel frees on any death: open-file-description locks, asked with F_OFD_GETLK, never by taking them.

A lock lives as long as any copy of its descriptor (dup, fork, exec with an inheritable descriptor). Where the platform
lacks them (macOS), flock stands in: the same lifetime, but a probe has to take a shared lock for an instant, so
`acquire` tries again for a moment before it gives up. Where the volume's locks don't work, the identity of the holder
decides (rundir.claims). Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import sys
import time
from pathlib import Path

from pipeline.rundir import claims
from pipeline.rundir.errors import RunError

_OFD = sys.platform.startswith("linux") and hasattr(fcntl, "F_OFD_SETLK")
# struct flock with 64-bit offsets: l_type, l_whence, l_start, l_len, l_pid (0 for OFD locks), padded
_FLOCK = struct.Struct("hhqqi0q")
_BUSY = {errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK}
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}
_FALLBACK_TRIES, _FALLBACK_PAUSE_S = 20, 0.01

_ours: dict[tuple[int, int], list[int]] = {}
"""Locks this process holds: (device, inode) -> descriptors."""


class Lock:
    """An exclusive lock held through `fd`. Made by `acquire` or `inherited`; a context manager.

    Kernel's lock and holder's name are both taken wherever they can be. Which of the two decides is the root's marker.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self.path, self.fd = path, fd
        self._key = _key(fd)
        _ours.setdefault(self._key, []).append(fd)

    @classmethod
    def acquire(cls, path: Path) -> Lock | None:
        """Take the lock of `path` (made when missing) without waiting; None when someone holds it. Raises OSError."""
        path = Path(path)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            taken = None if claims.needed(path) else take(fd)
            if taken is None:
                taken = not held_here(path) and claims.claim(path)
                with contextlib.suppress(OSError):
                    # for a root whose locks are found to work later; here it says nothing
                    if taken:
                        take(fd)
            elif taken:
                with contextlib.suppress(OSError):
                    # a full volume has no room for it; the lock is what counts
                    claims.name(path)
        except BaseException:
            os.close(fd)
            raise
        if not taken:
            os.close(fd)
            return None
        return cls(path, fd)

    @classmethod
    def inherited(cls, path: Path, fd: int) -> Lock:
        """The lock of `path` that came from the parent as `fd`; exec takes it no further. Raises RunError."""
        path = Path(path)
        try:
            same = _key(fd) == _key_of(path)
        except OSError:
            same = False
        by_claim = same and claims.needed(path)
        if not same or (not by_claim and take(fd) is False):
            raise RunError(f"Descriptor {fd} is not the lock {path}", "Start the stage through its supervisor")
        try:
            claims.name(path)
        except OSError:
            if by_claim:
                raise
        os.set_inheritable(fd, False)
        return cls(path, fd)

    def hand_to(self, pid: int) -> None:
        """Name a child that got the descriptor as the holder: `release` then leaves its name where it is."""
        with contextlib.suppress(OSError):
            claims.name(self.path, pid)

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
        _ours[self._key].remove(self.fd)
        if not _ours[self._key]:
            del _ours[self._key]
            with contextlib.suppress(OSError):
                # before the lock is free, so that the next holder's name stays
                claims.disclaim(self.path)
        os.close(self.fd)
        self.fd = -1

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def held(path: Path) -> bool:
    """Whether anybody holds the lock of `path`, this process included. Never takes it (flock: see above)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        answer = None if claims.needed(path) else asked(fd)
    finally:
        os.close(fd)
    return claims.claimed(path) if answer is None else answer


def held_here(path: Path) -> bool:
    """Whether this process holds the lock of `path`."""
    try:
        key = _key_of(path)
    except OSError:
        return False
    return any(_is_open(fd, key) for fd in _ours.get(key, ()))


def take(fd: int) -> bool | None:
    """Whether the lock was taken; None when the volume has no locks."""
    for _ in range(1 if _OFD else _FALLBACK_TRIES):
        try:
            if _OFD:
                fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
            else:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return None
            if error.errno not in _BUSY:
                raise
            if not _OFD:
                time.sleep(_FALLBACK_PAUSE_S)
        else:
            return True
    return False


def asked(fd: int) -> bool | None:
    """Whether somebody holds the lock; None when the volume has no locks."""
    try:
        if _OFD:
            answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
            return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        if error.errno not in _BUSY:
            raise
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def _is_open(fd: int, key: tuple[int, int]) -> bool:
    """Whether the descriptor still is that file: a process that detaches closes descriptors unasked."""
    try:
        return _key(fd) == key
    except OSError:
        return False


def _key(fd: int) -> tuple[int, int]:
    info = os.fstat(fd)
    return info.st_dev, info.st_ino


def _key_of(path: Path) -> tuple[int, int]:
    info = os.stat(path, follow_symlinks=False)
    return info.st_dev, info.st_ino
