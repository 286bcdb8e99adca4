"""Whether a file that shapes an output still has the content it had: its record is path, bytes, mtime_ns and sha256.

A file is read only when its size or its time has changed. Standard library only.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SAME, GROWN, CHANGED = "", "has grown", "has changed"


def record_of(path: str) -> dict[str, Any] | None:
    """The record of a file as it is now; None when there is none. Raises OSError when it can't be read."""
    info = _stat(path)
    if info is None:
        return None
    return {"path": path, "bytes": info[0], "mtime_ns": info[1], "sha256": _digest(path, *info)}


def change(record: object) -> str:
    """SAME, GROWN (its old lines are where they were, more follow) or CHANGED.

    A file that is gone has been used up, not changed. Raises OSError when it can't be read.
    """
    if not isinstance(record, Mapping):
        return SAME
    path, size = str(record.get("path")), record.get("bytes")
    info = _stat(path)
    if info is None or info == (size, record.get("mtime_ns")):
        return SAME
    if info[0] == size:
        return SAME if _digest(path, *info) == record.get("sha256") else CHANGED
    if not isinstance(size, int) or not 0 < size < info[0]:
        return CHANGED
    return GROWN if _beginning(path, size, *info) == record.get("sha256") else CHANGED


def _stat(path: str) -> tuple[int, int] | None:
    try:
        info = os.stat(path)
    except OSError:
        return None
    return (info.st_size, info.st_mtime_ns) if Path(path).is_file() else None


@functools.lru_cache(maxsize=64)
def _digest(path: str, size: int, changed: int) -> str:
    """sha256 of a file as it is at that size and time (the key of the cache)."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


@functools.lru_cache(maxsize=64)
def _beginning(path: str, length: int, size: int, changed: int) -> str:
    """sha256 of the first bytes of a file; "" when they end within a line, which then is another line now."""
    digest, left, block = hashlib.sha256(), length, b""
    with open(path, "rb") as file:
        while left and (block := file.read(min(left, 1 << 20))):
            digest.update(block)
            left -= len(block)
        whole = block.endswith(b"\n") or file.read(1) == b"\n"
    return digest.hexdigest() if whole and not left else ""
