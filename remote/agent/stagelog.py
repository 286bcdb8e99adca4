"""Keeps a log bounded without a pipe and without a rename: the oldest range is given back to the filesystem.

Offsets stay valid, writers notice nothing, and where the filesystem can't punch holes the log simply grows.
Imports remote.agent.kernel only.
"""

from __future__ import annotations

import os
from pathlib import Path

from remote.agent.kernel import data_from, punch_hole

LIMIT = 256 * 1024 * 1024
BLOCK = 64 * 1024


class LogBound:
    """Bounds the disk blocks of one log file. When it holds more than ``limit`` bytes, all but the newest half go."""

    def __init__(self, path: Path, limit: int = LIMIT) -> None:
        self.path = path
        self.limit = limit
        self.supported = True

    def check(self) -> int:
        """Bytes given back (0: nothing to do). Never raises: a log is not worth an attempt."""
        if not self.supported:
            return 0
        try:
            if os.stat(self.path).st_blocks * 512 <= self.limit:
                return 0
            fd = os.open(self.path, os.O_RDWR)
        except OSError:
            return 0
        try:
            size = os.fstat(fd).st_size
            end = (size - self.limit // 2) // BLOCK * BLOCK
            start = data_from(fd, 0)
            if end <= start:
                return 0
            self.supported = punch_hole(fd, 0, end)
            return end - start if self.supported else 0
        except OSError:
            return 0
        finally:
            os.close(fd)


def last_line(path: Path, most: int = 300) -> str:
    """The last line of a log that is not blank, without control characters; "" when there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 8192))
            lines = file.read(8192).decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    for line in reversed(lines):
        text = "".join(c for c in line if c.isprintable()).strip()
        if text:
            return text[:most]
    return ""
