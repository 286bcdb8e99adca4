"""What a host's filesystem refused, as a sentence and what to do. Imports pipeline.rundir.atomic."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path

from pipeline.rundir.atomic import FULL

_REMEDIES: Mapping[int, str] = {
    errno.EACCES: "give the user that you log in as the right to read and write there",
    errno.EPERM: "give the user that you log in as the right to read and write there",
    errno.EROFS: "mount that volume writable",
    errno.ENOENT: "put it back, or mount the volume that it is on",
    errno.EMFILE: "raise the limit of open files (ulimit -n) of that user",
    errno.ENFILE: "the host has too many files open: end what holds them",
    errno.EIO: "look at the volume: it fails to read or write",
    errno.ESTALE: "mount that network volume anew",
}


def told(error: OSError, where: Path) -> tuple[str, str]:
    """(message, remedy); ``where`` is named when the error itself names no file."""
    path = error.filename if isinstance(error.filename, (str, bytes, Path)) else where
    name = path.decode("utf-8", "replace") if isinstance(path, bytes) else str(path)
    message = f"{error.strerror or error}: {name}"
    if error.errno in FULL:
        return message, "free some space on that volume, then go on"
    return message, _REMEDIES.get(error.errno or 0, f"see that {name} can be read and written, then go on")
