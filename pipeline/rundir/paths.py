"""Names inside a root: which are allowed, and that no path leaves the root through a symbolic link."""

from __future__ import annotations

import os
import re
from pathlib import Path

from pipeline.rundir.errors import RunError

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_NUMBER = re.compile(r"[0-9]{4,}")
RESERVED = frozenset({"telemetry", "services", "code"})
"""Folders of the root that are no runs."""


def valid_name(name: str) -> bool:
    """Whether a run or service may be called so: a-z, 0-9, '.', '_', '-', a letter or digit first, up to 64."""
    return _NAME.fullmatch(name) is not None


def numbers(folder: Path) -> list[int]:
    """The numbers of the folders `0001`, `0002`, … in a folder, ascending; links don't count. No folder: []."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(name) for name in names if _NUMBER.fullmatch(name))


def numbered(folder: Path, number: int, suffix: str = "") -> Path:
    return folder / f"{number:04d}{suffix}"


def number_of(name: str) -> int | None:
    return int(name) if _NUMBER.fullmatch(name) else None


def stay_inside(root: Path, path: Path) -> None:
    """Raise RunError when `path`, its links followed, lies outside `root`. It needn't be there yet."""
    if not os.path.islink(path) and os.path.dirname(path) == str(root):
        # nothing to follow, and `root` is where it is
        return
    real_root, real = os.path.realpath(root), os.path.realpath(path)
    if os.path.commonpath([real_root, real]) != real_root:
        raise RunError(
            f"{path} is a link that leaves {root}", "Eagledeck follows no link out of its root; move the folder back"
        )
