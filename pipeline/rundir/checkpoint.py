"""Checkpoints: a folder that is whole or not there.

Written under a temporary name, every file fsynced and listed with size and sha256 in manifest.json, then renamed; `latest`
points at it. A reader takes the newest folder whose manifest holds. Older ones go only once the new one is complete.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

from pipeline.rundir.atomic import TEMPORARY, fsync_folder, read_json, replace_link, temporary, write_json
from pipeline.rundir.errors import RunError
from pipeline.rundir.paths import valid_name

MANIFEST, LATEST = "manifest.json", "latest"
_REPLACED = ".old-"


def write_checkpoint(parent: Path, name: str, writer: Callable[[Path], None], meta: dict[str, Any], keep: int) -> Path:
    """Let `writer` fill a fresh folder and publish it as `parent/name`; returns that path.

    `meta` goes into the manifest. The `keep` newest checkpoints stay, and those that a link in `parent` (such as `best`) points at.
    Raises OSError (full volume) with everything there was before intact, RunError for a bad name.
    """
    if not valid_name(name) or name == LATEST or keep < 1:
        raise RunError(f"{name!r} can't be the name of a checkpoint", "Use a name such as step-000100")
    parent = Path(parent)
    parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _sweep(parent)
    order = max((_order(path) for path in _folders(parent)), default=0) + 1
    build = temporary(parent / name)
    build.mkdir(mode=0o700)
    try:
        writer(build)
        files = {str(path.relative_to(build)): _sealed(path) for path in _files(build)}
        for folder, _, _ in os.walk(build, topdown=False):
            fsync_folder(Path(folder))
        manifest = {"schema": 1, "name": name, "order": order, "created": time.time(), "meta": meta, "files": files}
        write_json(build / MANIFEST, manifest)
        final = parent / name
        if final.exists():
            # the step was reached once more; the old folder stays readable under its hidden name until the new one is there
            os.rename(final, parent / f".{name}{_REPLACED}{order}")
        os.rename(build, final)
    except BaseException:
        shutil.rmtree(build, ignore_errors=True)
        raise
    fsync_folder(parent)
    replace_link(parent / LATEST, name)
    _prune(parent, keep)
    return final


def latest_checkpoint(parent: Path) -> Path | None:
    """The newest checkpoint whose manifest holds (every file there with its size and sha256); None without one."""
    for path in sorted(_folders(Path(parent)), key=_order, reverse=True):
        if holds(path):
            return path
    return None


def checkpoint_meta(path: Path) -> dict[str, Any]:
    """The `meta` it was written with. Raises RunError when there is no manifest."""
    manifest = read_json(Path(path) / MANIFEST)
    if manifest is None:
        raise RunError(f"{path} is no checkpoint: it has no {MANIFEST}", "Name a folder that holds one")
    meta = manifest.get("meta")
    return meta if isinstance(meta, dict) else {}


def holds(path: Path) -> bool:
    """Whether the folder is exactly what its manifest says."""
    manifest = read_json(path / MANIFEST)
    files = manifest.get("files") if manifest else None
    if not isinstance(files, dict):
        return False
    try:
        if any(os.lstat(path / name).st_size != entry["bytes"] for name, entry in files.items()):
            return False
        return all(_digest(path / name) == entry["sha256"] for name, entry in files.items())
    except (OSError, KeyError, TypeError):
        return False


def _folders(parent: Path) -> list[Path]:
    """Finished folders, those that are being replaced included."""
    try:
        entries = list(os.scandir(parent))
    except FileNotFoundError:
        return []
    return [
        Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False) and TEMPORARY not in entry.name
    ]


def _order(path: Path) -> int:
    manifest = read_json(path / MANIFEST)
    order = manifest.get("order") if manifest else None
    return order if isinstance(order, int) else 0


def _files(folder: Path) -> Iterator[Path]:
    for where, folders, names in os.walk(folder):
        for name in sorted(names + folders):
            path = Path(where) / name
            if path.is_symlink():
                raise RunError(f"{path} is a link", "A checkpoint holds plain files only")
            if name in names and name != MANIFEST:
                yield path


def _sealed(path: Path) -> dict[str, Any]:
    """Size and sha256 of a file that is now on the disk."""
    digest = _digest(path)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
        return {"bytes": os.fstat(fd).st_size, "sha256": digest}
    finally:
        os.close(fd)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while True:
            block = file.read(1 << 20)
            if not block:
                return digest.hexdigest()
            digest.update(block)


def _sweep(parent: Path) -> None:
    """Remove what a killed writer left, unless it is all there is of a checkpoint."""
    for entry in list(os.scandir(parent)):
        if TEMPORARY in entry.name:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)


def _prune(parent: Path, keep: int) -> None:
    linked = {os.readlink(entry.path) for entry in os.scandir(parent) if entry.is_symlink()}
    folders = sorted(_folders(parent), key=_order, reverse=True)
    kept = 0
    for path in folders:
        replaced = path.name.startswith(".") and _REPLACED in path.name
        if not replaced and (kept < keep or path.name in linked):
            kept += 1
            continue
        # renamed first, so that a crash halfway leaves no folder that looks like a checkpoint
        doomed = temporary(path)
        os.rename(path, doomed)
        shutil.rmtree(doomed)
