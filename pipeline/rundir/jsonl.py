"""JSON lines: one writer a file, one write a line; a torn tail is cut when a writer comes back, and ignored by readers.

Standard library only. Imports rundir.atomic.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.rundir.atomic import write_all

_BLOCK = 1 << 16


def repair_tail(path: Path) -> int:
    """Cut what a crash left of a last line (no newline, or no JSON) and return the bytes cut. No file: 0."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        size = end = os.fstat(fd).st_size
        while end:
            newline = _last_newline(fd, end)
            if newline == end - 1:
                start = _last_newline(fd, newline) + 1
                if _row(os.pread(fd, newline - start, start)) is not None:
                    break
                end = start
            else:
                end = newline + 1
        if end != size:
            os.ftruncate(fd, end)
            os.fsync(fd)
        return size - end
    finally:
        os.close(fd)


class JsonLines:
    """The one writer of a JSON lines file. Opening it cuts a torn tail; `durable` fsyncs every line."""

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
            os.ftruncate(self._fd, before)
            raise

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> JsonLines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def encode_line(obj: Mapping[str, Any]) -> bytes:
    """One line, newline included. NaN and infinities, which JSON lacks, become null."""
    try:
        text = json.dumps(obj, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(_finite(obj), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace") + b"\n"


def iter_jsonl(path: Path, offset: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
    """Rows from byte `offset` (the start of a line) with the offset after each; one line in memory at a time.

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
    """The rows from byte `offset` on and the offset to go on from. A file shorter than `offset` was replaced: read anew."""
    try:
        size = os.stat(path, follow_symlinks=False).st_size
    except FileNotFoundError:
        return [], 0
    if offset > size:
        offset = 0
    rows: list[dict[str, Any]] = []
    for row, offset in iter_jsonl(path, offset):
        rows.append(row)
    return rows, offset


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _last_newline(fd: int, end: int) -> int:
    """Offset of the last newline before `end`, or -1."""
    while end > 0:
        start = max(0, end - _BLOCK)
        found = os.pread(fd, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found
        end = start
    return -1


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
