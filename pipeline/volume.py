"""The volume of a run: its size, what is used and what may still be written.

A declared capacity is the quota of the volume's folder, which statvfs can't see: the folder's own bytes count against
it, whatever else lies on the filesystem. Standard library only (Python >= 3.9). Imports pipeline.config,
pipeline.hostpath and pipeline.rundir.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from pipeline.config import Plan
from pipeline.hostpath import host_path
from pipeline.rundir import RunDir

FRESH_S = 5.0
"""A folder is measured again after this time, or after REST times what it took: at most 5 % of a core."""
REST = 20.0
WAIT_S = 15.0
"""A measurement is waited for this long; what is there by then has to do."""
BLOCK = 512
"""Unit of st_blocks, in bytes."""


@dataclass(frozen=True)
class Volume:
    """Where a volume lies, and what the plan says about it in bytes; capacity 0: what the filesystem says."""

    path: Path
    capacity: int = 0
    reserve: int = 0


@dataclass(frozen=True)
class Space:
    """Bytes. `capacity` is the quota, or the filesystem's size where that is smaller; `used` is counted against it.

    `free` is what an unprivileged writer can still write (f_bavail), within what the quota leaves. `total` is the
    filesystem's size. `used` is None, and takes nothing off a quota, until a large folder has been measured once.
    """

    total: int
    capacity: int
    used: int | None
    free: int
    inodes_free: int | None
    read_only: bool


def volume_of(run: RunDir, plan: Plan) -> Volume:
    """The volume of a run under a plan: its folder, or the root of the runs where it names none."""
    path = host_path(plan.volume.path, run.path) if plan.volume.path else run.root
    return Volume(path, plan.volume.capacity_bytes, plan.volume.reserve_bytes)


def space(volume: Volume) -> Space:
    """The volume now. The nearest folder that exists is asked, since it may not be there yet. Raises OSError."""
    place = volume.path
    while not place.exists() and place != place.parent:
        place = place.parent
    seen = os.statvfs(place)
    total, filled = seen.f_blocks * seen.f_frsize, (seen.f_blocks - seen.f_bfree) * seen.f_frsize
    capacity, free = total, seen.f_bavail * seen.f_frsize
    used: int | None = filled
    if 0 < volume.capacity < total:
        capacity, used = volume.capacity, _meter(volume.path).read(filled)
        free = max(0, min(free, capacity - (used or 0)))
    inodes = seen.f_favail if seen.f_files else None
    return Space(total, capacity, used, free, inodes, bool(seen.f_flag & os.ST_RDONLY))


def measure_again(volume: Volume) -> None:
    """Has the next `space` walk the folder of a quota: before somebody is refused for the growth of others."""
    _meter(volume.path).again()


def tree_bytes(folder: Path) -> int:
    """Bytes that a folder takes on its filesystem, sparse files and hard links as they are. Follows no link.

    What vanishes meanwhile or can't be read counts nothing, and so does another filesystem mounted inside.
    """
    total, linked = 0, set()
    try:
        device = os.stat(folder).st_dev
    except OSError:
        return 0
    ahead = [str(folder)]
    while ahead:
        with contextlib.suppress(OSError), os.scandir(ahead.pop()) as entries:
            for entry in entries:
                try:
                    info, is_folder = entry.stat(follow_symlinks=False), entry.is_dir(follow_symlinks=False)
                except OSError:
                    continue
                if is_folder:
                    # only folders are asked: an overlay filesystem reports other devices for its files
                    if info.st_dev != device:
                        continue
                    ahead.append(entry.path)
                elif info.st_nlink > 1:
                    if info.st_ino in linked:
                        continue
                    linked.add(info.st_ino)
                total += info.st_blocks * BLOCK
    return total


class FolderMeter:
    """The bytes of one folder, walked in a thread of its own; what the filesystem grew by since then is added.

    That may be somebody else's growth: the next walk puts it right, and meanwhile nobody writes past a quota.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._there = threading.Event()
        self._walking = False
        self._asked = 0
        self._due, self._patience_s = 0.0, WAIT_S
        self._bytes: int | None = None
        self._filesystem_used = self._base = 0

    def again(self) -> None:
        """The next reading waits for a walk that begins after this."""
        with self._lock:
            self._asked += 1
            self._due, self._patience_s = 0.0, WAIT_S
            self._there.clear()

    def read(self, filesystem_used: int) -> int | None:
        """Bytes in the folder, never more than the filesystem's used bytes, which are given; None: not known yet."""
        with self._lock:
            self._filesystem_used = filesystem_used
            if time.monotonic() >= self._due and not self._walking:
                self._walking = True
                threading.Thread(target=self._measure, daemon=True).start()
        if not self._there.wait(self._patience_s):
            self._patience_s = 0.0
        with self._lock:
            if self._bytes is None:
                return None
            return min(filesystem_used, self._bytes + max(0, filesystem_used - self._base))

    def _measure(self) -> None:
        while True:
            with self._lock:
                asked, base = self._asked, self._filesystem_used
            began = time.monotonic()
            found = tree_bytes(self.folder)
            now = time.monotonic()
            with self._lock:
                self._bytes, self._base = found, base
                if self._asked == asked:
                    self._due = now + max(FRESH_S, REST * (now - began))
                    self._walking = False
                    self._there.set()
                    return


_METERS: dict[Path, FolderMeter] = {}


def _meter(folder: Path) -> FolderMeter:
    return _METERS.setdefault(folder, FolderMeter(folder))
