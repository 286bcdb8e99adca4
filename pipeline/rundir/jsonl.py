"""JSON lines: one writer a file, one write a line; a writer that comes back cuts a torn tail, readers pass over it.

Standard library only. Imports rundir.atomic.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.rundir.atomic import finite, write_all

_BLOCK = 1 << 16


def repair_tail(path: Path) -> int:
    """Cut what a crash left of the last line (no newline, or no JSON object); returns the bytes cut, 0 without a file.

    Only the file's writer may call it. Raises OSError.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        size = os.fstat(fd).st_size
        end = _end_of_good_lines(fd, size)
        if end != size:
            os.ftruncate(fd, end)
            os.fsync(fd)
        return size - end
    finally:
        os.close(fd)


class JsonLines:
    """The one writer of a JSON lines file. Opening it cuts a torn tail (`cut` bytes); `durable` fsyncs every line."""

    def __init__(self, path: Path, durable: bool = False) -> None:
        self.path, self.durable = Path(path), durable
        self.cut = repair_tail(self.path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(self.path, flags, 0o600)

    def append(self, obj: Mapping[str, Any]) -> None:
        """Add one line. Raises OSError (full volume); then the file ends where it ended before."""
        before = os.fstat(self._fd).st_size
        try:
            write_all(self._fd, encode_line(obj))
            if self.durable:
                os.fsync(self._fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, before)
            raise

    def sync(self) -> None:
        """Make the lines so far durable. Raises OSError."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Twice is fine. Raises OSError, for what NFS and quotas refuse late."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> JsonLines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def encode_line(obj: Mapping[str, Any]) -> bytes:
    """One line, newline included. NaN and infinities, which JSON lacks, become null; lone surrogates become escapes."""
    try:
        text = json.dumps(obj, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(finite(obj), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace") + b"\n"


def iter_jsonl(path: Path, offset: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
    """Rows from byte `offset` (the start of a line), each with the offset after it; one line in memory at a time.

    An unterminated tail is left for the next call, lines that hold no JSON object are passed over. No file: nothing.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    with os.fdopen(fd, "rb", buffering=_BLOCK) as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            row = _row(line)
            if row is not None:
                yield row, offset


def read_jsonl(path: Path, offset: int = 0) -> tuple[list[dict[str, Any]], int]:
    """The rows from byte `offset` on, and the offset to go on from. A file shorter than `offset` is read anew."""
    try:
        size = os.stat(path, follow_symlinks=False).st_size
    except FileNotFoundError:
        return [], 0
    reached = offset if offset <= size else 0
    rows: list[dict[str, Any]] = []
    for row, after in iter_jsonl(path, reached):
        rows.append(row)
        reached = after
    return rows, reached


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _end_of_good_lines(fd: int, size: int) -> int:
    """Offset after the last line that is terminated and holds a JSON object."""
    end = size
    while end:
        newline = _last_newline(fd, end)
        if newline < end - 1:
            end = newline + 1
            continue
        start = _last_newline(fd, newline) + 1
        if _row(os.pread(fd, newline - start, start)) is not None:
            break
        end = start
    return end


def _last_newline(fd: int, end: int) -> int:
    """Offset of the last newline before `end`, or -1."""
    while end > 0:
        start = max(0, end - _BLOCK)
        found = os.pread(fd, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found
        end = start
    return -1
