"""What Linux offers beyond the os module: adopting orphans, dying with the parent, punching holes, finding data.

Imports the standard library only. Everything degrades: elsewhere the functions say False and change nothing.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Iterable, Iterator

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_MADV_DONTNEED = 4
_FALLOC_FL_KEEP_SIZE = 1
_FALLOC_FL_PUNCH_HOLE = 2


def become_subreaper(whether: bool = True) -> bool:
    """Orphans below this process become its children instead of init's, or no longer do (prctl(2))."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, int(whether))


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


def give_back_zeros(library: str) -> int:
    """Gives back the pages of a library's uninitialised data that hold zeros only; how many bytes that were.

    A page given back reads as zeros again, so nothing changes but the memory that counts as used: libnvidia-ml clears
    14 MB of tables when it begins, for cards that aren't there. Only in a process of one thread, and only in the
    mapping behind the library's own: nobody else can write there between the look and the call (madvise(2)).
    """
    try:
        if sys.platform != "linux" or len(os.listdir("/proc/self/task")) > 1:
            return 0
        madvise = ctypes.CDLL(None).madvise
        with open("/proc/self/maps", encoding="utf-8") as maps:
            spans = list(_unnamed_behind(library, maps))
    except (OSError, AttributeError):
        return 0
    given = 0
    for begin, end in spans:
        for first, last in _zero_runs(begin, end):
            if madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), ctypes.c_int(_MADV_DONTNEED)) == 0:
                given += last - first
    return given


def _unnamed_behind(library: str, maps: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Private writable mappings without a file that begin where one of the library's ends."""
    border = 0
    for line in maps:
        words = line.split(maxsplit=5)
        begin, end = (int(word, 16) for word in words[0].split("-"))
        named = words[5].strip() if len(words) > 5 else ""
        if os.path.basename(named).startswith(library):
            border = end
        elif not named and begin == border and words[1] == "rw-p":
            yield begin, end


def _zero_runs(begin: int, end: int) -> Iterator[tuple[int, int]]:
    zero = bytes(mmap.PAGESIZE)
    first = 0
    for at in range(begin, end, mmap.PAGESIZE):
        if ctypes.string_at(at, mmap.PAGESIZE) == zero:
            first = first or at
        elif first:
            yield first, at
            first = 0
    if first:
        yield first, end


def data_from(fd: int, offset: int) -> int:
    """The first offset from ``offset`` on that holds data rather than a hole; ``offset`` where that can't be told."""
    if not hasattr(os, "SEEK_DATA"):
        return offset
    try:
        return os.lseek(fd, offset, os.SEEK_DATA)
    except OSError:
        return offset
