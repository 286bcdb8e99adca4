"""Checkpoints: a folder that is whole or not there.

Written under a temporary name, every file fsynced and listed with size and sha256 in manifest.json, then renamed; then
`latest` points at it. A reader takes the newest folder whose manifest holds. Older ones go only once the new one is
complete. One writer a folder.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pipeline.rundir.atomic import TEMPORARY, fsync_folder, read_json, replace_link, temporary, write_json
from pipeline.rundir.errors import RunError, refuse_newer
from pipeline.rundir.paths import valid_name

MANIFEST, LATEST = "manifest.json", "latest"
_REPLACED = ".replaced"


def write_checkpoint(
    parent: Path, name: str, writer: Callable[[Path], object], meta: dict[str, Any], keep: int
) -> Path:
    """Let `writer` fill a fresh folder and publish it as `parent/name`; returns that path.

    `meta` goes into the manifest. The `keep` newest checkpoints stay, and those that a link in `parent` (such as
    `best`) points at. Raises what `writer` raises and OSError (full volume), with everything that was there before
    intact; RunError for a bad name, or when the writer made links.
    """
    if not valid_name(name) or name == LATEST or keep < 1:
        raise RunError(f"{name!r} can't be the name of a checkpoint", "Use a name such as step-000100")
    parent = Path(parent)
    parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _tidy(parent)
    order = max((_order(path) for path in _checkpoints(parent)), default=0) + 1
    build, final, aside = temporary(parent / name), parent / name, parent / f".{name}{_REPLACED}"
    build.mkdir(mode=0o700)
    try:
        writer(build)
        files = {path.relative_to(build).as_posix(): _sealed(path) for path in _files(build)}
        for folder, _, _ in os.walk(build, topdown=False):
            fsync_folder(Path(folder))
        manifest = {"schema": 1, "name": name, "order": order, "created": time.time(), "meta": meta, "files": files}
        write_json(build / MANIFEST, manifest)
        if final.exists():
            # the step was reached once more: the old folder can still be found until the new one has its name
            os.rename(final, aside)
        os.rename(build, final)
    except BaseException:
        shutil.rmtree(build, ignore_errors=True)
        _tidy(parent)
        raise
    fsync_folder(parent)
    replace_link(parent / LATEST, name)
    _prune(parent, keep)
    return final


def latest_checkpoint(parent: Path) -> Path | None:
    """The newest checkpoint whose manifest holds (every file there with its size and sha256); None without one.

    Raises RunError for one that a newer Eagledeck wrote.
    """
    for path in sorted(_checkpoints(Path(parent)), key=_order, reverse=True):
        if holds(path):
            return path
    return None


def newest_checkpoint(parent: Path) -> Path | None:
    """The newest checkpoint by its manifest, the files of which are left unread; None without one."""
    return max(_checkpoints(Path(parent)), key=_order, default=None)


def checkpoint_meta(path: Path) -> dict[str, Any]:
    """The `meta` it was written with. Raises RunError when there is no manifest."""
    manifest = read_json(Path(path) / MANIFEST)
    if manifest is None:
        raise RunError(f"{path} is no checkpoint: it has no {MANIFEST}", "Name a folder that holds one")
    meta = manifest.get("meta")
    return meta if isinstance(meta, dict) else {}


def holds(path: Path) -> bool:
    """Whether every file that the manifest lists is there with its size and sha256."""
    manifest = read_json(path / MANIFEST)
    if manifest is not None:
        refuse_newer(manifest, path / MANIFEST)
    files = manifest.get("files") if manifest else None
    if not isinstance(files, dict):
        return False
    try:
        if any(os.lstat(path / name).st_size != entry["bytes"] for name, entry in files.items()):
            return False
        return all(_digest(path / name) == entry["sha256"] for name, entry in files.items())
    except (OSError, KeyError, TypeError):
        return False


def _checkpoints(parent: Path) -> list[Path]:
    """Folders that carry a manifest, one that is being replaced included; anything else isn't ours to touch."""
    try:
        with os.scandir(parent) as entries:
            folders = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    return [path for path in folders if TEMPORARY not in path.name and _order(path)]


def _order(path: Path) -> int:
    """Place in the order of writing, from 1; 0 when the folder has no readable manifest."""
    manifest = read_json(path / MANIFEST)
    order = manifest.get("order") if manifest else None
    return order if isinstance(order, int) else 0


def _files(folder: Path) -> Iterator[Path]:
    for where, folders, names in os.walk(folder):
        for name in sorted(folders + names):
            path = Path(where) / name
            if path.is_symlink():
                raise RunError(f"{path} is a link", "A checkpoint holds plain files only")
            if name in names:
                yield path


def _sealed(path: Path) -> dict[str, Any]:
    """Size and sha256 of a file that is on the disk now."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
        return {"bytes": os.fstat(fd).st_size, "sha256": _digest(path)}
    finally:
        os.close(fd)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def _tidy(parent: Path) -> None:
    """Remove what a killed writer left half done; a replaced folder whose replacement never came gets its name back."""
    for entry in list(os.scandir(parent)):
        path = Path(entry.path)
        if TEMPORARY in entry.name:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(path)
            else:
                path.unlink()
        elif entry.name.startswith(".") and entry.name.endswith(_REPLACED):
            final = parent / entry.name[1 : -len(_REPLACED)]
            if final.exists():
                _remove(path)
            else:
                os.rename(path, final)


def _prune(parent: Path, keep: int) -> None:
    linked = {os.readlink(entry.path) for entry in os.scandir(parent) if entry.is_symlink()}
    newest = sorted(_checkpoints(parent), key=_order, reverse=True)
    replaced = [path for path in newest if path.name.startswith(".")]
    named = [path for path in newest if path not in replaced]
    for path in replaced + [path for path in named[keep:] if path.name not in linked]:
        _remove(path)


def _remove(path: Path) -> None:
    """Renamed first, so that a crash halfway leaves nothing that looks like a checkpoint."""
    doomed = temporary(path)
    os.rename(path, doomed)
    shutil.rmtree(doomed)
