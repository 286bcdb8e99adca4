"""Where things lie under a host's root, and which names may enter a path.

Imports pipeline.rundir only. Everything that comes from the wire passes through here before it touches the filesystem.
"""

from __future__ import annotations

import os
from pathlib import Path

from pipeline.rundir import STAGES, valid_name
from pipeline.rundir.atomic import TEMPORARY
from pipeline.rundir.claims import MARKER
from pipeline.rundir.paths import RESERVED

CODE = Path(__file__).resolve().parent.parent.parent
"""The folder the host-side code runs from: the working directory of everything that is started here."""


RUN_FILES = frozenset({"run.json", "plan", "kept.json", "conductor", *STAGES})
"""What a run's folder holds of its own."""


class PathRefused(Exception):
    """A name or a path that may not be used. Has message and remedy."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


def code_hash() -> str:
    """The name of the code folder when it is named by its hash, "" in a checkout."""
    name = CODE.name
    return name if len(name) == 16 and all(c in "0123456789abcdef" for c in name) else ""


def inside(root: Path, text: str) -> Path:
    """``text``, relative to ``root`` or absolute, links followed. Raises PathRefused when it leaves ``root``."""
    if not text or "\0" in text:
        raise PathRefused("an empty path", "name a file under the root")
    base = os.path.realpath(root)
    full = os.path.realpath(os.path.join(base, text))
    if full != base and not full.startswith(base.rstrip("/") + "/"):
        raise PathRefused(f"{text!r:.200} lies outside {base}", f"use a path under {base}")
    return Path(full)


def owned(root: Path, parts: tuple[str, ...]) -> bool:
    """Whether a path, in parts under ``root``, is one that Eagledeck writes itself: nobody may put a file there.

    In a run's folder these are its own files and all that lies in a stage's folder; what else lies there is the
    user's, such as RUN/prompts.jsonl. No file makes a folder a run but ours.
    """
    if parts[0] in RESERVED or parts == (MARKER,) or TEMPORARY in parts[-1] or parts[1:] == ("run.json",):
        return True
    return len(parts) > 1 and parts[1] in RUN_FILES and (root / parts[0] / "run.json").exists()


def run_path(root: Path, name: str) -> Path:
    """The folder of a run, which need not exist. Raises PathRefused for a name that is not one."""
    if not valid_name(name) or name in RESERVED:
        raise PathRefused(
            f"{name!r:.80} is not the name of a run",
            "use lower-case letters, digits, '.', '_' and '-', starting with a letter or digit, at most 64",
        )
    return root / name


def stage_name(name: str) -> str:
    """``name`` when it is a stage. Raises PathRefused otherwise."""
    if name not in STAGES:
        raise PathRefused(f"{name!r:.80} is not a stage", "stages are " + ", ".join(STAGES))
    return name


def service_path(root: Path, name: str) -> Path:
    """The folder of a service, which need not exist. Raises PathRefused for a name that is not one."""
    if not valid_name(name):
        raise PathRefused(f"{name!r:.80} is no name of a service", "use lower-case letters, digits, '.', '_', '-'")
    return root / "services" / name
