"""Whole files replaced in one step: the old one or the new one is there, never half of one.

Temp in the same folder (mode 0600), write all, fsync, rename, fsync folder. A short write or a full volume raises
OSError, removes the temp and leaves the old file as it was. Standard library only.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TEMPORARY = ".tmp-"
"""Part of every temporary name; whatever carries it is worthless once its writer is gone."""

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What a full volume or an exhausted quota answers."""

_NO_FSYNC = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF}
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def temporary(path: Path) -> Path:
    """A fresh hidden name beside `path`."""
    return path.with_name(f".{path.name}{TEMPORARY}{os.getpid()}-{os.urandom(4).hex()}")


def write_all(fd: int, data: bytes) -> None:
    """Write every byte; a write may be short (a nearly full volume, a signal). Raises OSError."""
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
    """Replace `path` durably by the JSON of `obj`, NaN and infinities as null. Raises OSError."""
    write_bytes(path, encode(obj))


def write_json_fast(path: Path, obj: Any) -> None:
    """Replace `path` by the JSON of `obj` without fsync: readers see old or new, a power cut may lose it."""
    _replace(Path(path), encode(obj), durable=False)


def write_new(path: Path, data: bytes) -> bool:
    """Create `path` durably with all its bytes, unless it is there already (then False). Raises OSError."""
    temp = _filled(path, data, durable=True)
    try:
        os.link(temp, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # without hard links a reader may meet the file while it is being written; readers pass over broken JSON
        return _create(path, data)
    finally:
        os.unlink(temp)
    fsync_folder(path.parent)
    return True


def encode(obj: Any) -> bytes:
    """JSON as it stands in a file; lone surrogates become escapes, NaN and infinities null."""
    text = json.dumps(finite(obj), ensure_ascii=False, allow_nan=False, indent=1) + "\n"
    return text.encode("utf-8", "backslashreplace")


def finite(value: Any) -> Any:
    """The value with NaN and infinities, which JSON lacks, replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None when there is no such file or it holds none (a power cut can empty it).

    Follows no link. Raises PermissionError and other trouble of the volume.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return None
        raise
    try:
        with os.fdopen(fd, "rb") as file:
            obj = json.loads(file.read())
    except (ValueError, RecursionError, IsADirectoryError):
        return None
    return obj if isinstance(obj, dict) else None


def replace_link(path: Path, target: str) -> None:
    """Point the symbolic link `path` at `target` (relative), in one step and durably. Raises OSError."""
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
    temp = _filled(path, data, durable)
    try:
        os.replace(temp, path)
    except OSError:
        os.unlink(temp)
        raise
    if durable:
        fsync_folder(path.parent)


def _filled(path: Path, data: bytes, durable: bool) -> Path:
    """A temporary file beside `path` with all the bytes; nothing is left of it when that fails."""
    temp = temporary(path)
    fd = os.open(temp, _CREATE, 0o600)
    try:
        try:
            write_all(fd, data)
            if durable:
                os.fsync(fd)
        finally:
            # close() reports what NFS and quotas refuse late
            os.close(fd)
    except BaseException:
        os.unlink(temp)
        raise
    return temp


def _create(path: Path, data: bytes) -> bool:
    try:
        fd = os.open(path, _CREATE, 0o600)
    except FileExistsError:
        return False
    try:
        write_all(fd, data)
        os.fsync(fd)
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(fd)
    fsync_folder(path.parent)
    return True
