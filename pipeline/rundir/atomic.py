"""Whole files replaced in one step: the old one or the new one is there, never half of one.

Temp in the same folder (mode 0600), write all, fsync, rename, fsync folder. A short write or a full volume raises OSError,
removes the temp and leaves the old file as it was. Standard library only.
"""

from __future__ import annotations

import errno
import json
import os
import uuid
from pathlib import Path
from typing import Any

TEMPORARY = ".tmp-"
"""Part of every temporary name; whatever carries it is worthless once its writer is gone."""

_NO_FSYNC = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF}


def temporary(path: Path) -> Path:
    """A fresh hidden name beside `path`."""
    return path.with_name(f".{path.name}{TEMPORARY}{os.getpid()}-{uuid.uuid4().hex[:8]}")


def write_all(fd: int, data: bytes) -> None:
    """Write every byte; a write may be short (a nearly full volume, a signal)."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def fsync_folder(path: Path) -> None:
    """Make the names in a folder durable, where the filesystem can."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_FSYNC:
            raise
    finally:
        os.close(fd)


def write_bytes(path: Path, data: bytes) -> None:
    """Replace `path` durably. Raises OSError; then the old file is intact."""
    _replace(Path(path), data, durable=True)


def write_json(path: Path, obj: Any) -> None:
    """Replace `path` durably by the JSON of `obj`. Raises OSError, or ValueError for NaN and infinities."""
    write_bytes(path, encode(obj))


def write_json_fast(path: Path, obj: Any) -> None:
    """Replace `path` by the JSON of `obj` without fsync: readers see old or new, a power cut may lose it."""
    _replace(Path(path), encode(obj), durable=False)


def encode(obj: Any) -> bytes:
    return (json.dumps(obj, ensure_ascii=False, allow_nan=False, indent=1) + "\n").encode("utf-8", "surrogatepass")


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None when there is no file, or none that holds an object (a power cut can empty it)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with os.fdopen(fd, "rb") as file:
        data = file.read()
    try:
        obj = json.loads(data)
    except ValueError:
        return None
    return obj if isinstance(obj, dict) else None


def replace_link(path: Path, target: str) -> None:
    """Point the symbolic link `path` at `target` (relative), in one step and durably."""
    path = Path(path)
    temp = temporary(path)
    os.symlink(target, temp)
    try:
        os.replace(temp, path)
    except OSError:
        os.unlink(temp)
        raise
    fsync_folder(path.parent)


def _replace(path: Path, data: bytes, durable: bool) -> None:
    temp = temporary(path)
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            write_all(fd, data)
            if durable:
                os.fsync(fd)
        finally:
            # close() reports what NFS and quotas refuse late
            os.close(fd)
        os.replace(temp, path)
    except BaseException:
        try:
            os.unlink(temp)
        except FileNotFoundError:
            pass
        raise
    if durable:
        fsync_folder(path.parent)
