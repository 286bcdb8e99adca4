"""What Linux offers beyond the os module: adopting orphans, dying with the parent, punching holes, finding data.

Imports the standard library only. Everything degrades: elsewhere the functions say False and change nothing.
"""

from __future__ import annotations

import ctypes
import os
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_FALLOC_FL_KEEP_SIZE = 1
_FALLOC_FL_PUNCH_HOLE = 2


def become_subreaper() -> bool:
    """Orphans below this process become its children instead of init's (prctl(2))."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(signal_number: int) -> bool:
    """This process gets ``signal_number`` when the thread that started it ends (prctl(2)); for samplers only."""
    return _prctl(_PR_SET_PDEATHSIG, signal_number)


def _prctl(option: int, value: int) -> bool:
    if sys.platform != "linux":
        return False
    try:
        zero = ctypes.c_ulong(0)
        return int(ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), zero, zero, zero)) == 0
    except (OSError, AttributeError):
        return False


def punch_hole(fd: int, offset: int, length: int) -> bool:
    """Gives the blocks of a range back to the filesystem; the file keeps its size and offsets (fallocate(2))."""
    if sys.platform != "linux":
        return False
    try:
        libc = ctypes.CDLL(None)
        call = getattr(libc, "fallocate64", None) or libc.fallocate
        mode = _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE
        return int(call(fd, mode, ctypes.c_int64(offset), ctypes.c_int64(length))) == 0
    except (OSError, AttributeError):
        return False


def data_from(fd: int, offset: int) -> int:
    """The first offset from ``offset`` on that holds data rather than a hole; ``offset`` where that can't be told."""
    if not hasattr(os, "SEEK_DATA"):
        return offset
    try:
        return os.lseek(fd, offset, os.SEEK_DATA)
    except OSError:
        return offset
