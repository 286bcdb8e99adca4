"""Turns what stopped a stage into a sentence for the person who runs it: what happened, where, what to do.

Imports pipeline.config and pipeline.rundir. Knows torch's and safetensors' errors by name only, so it never loads them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.config import ConfigError, size_text
from pipeline.rundir import RunError
from pipeline.rundir.atomic import FULL

_FULL_WORDS = ("No space left on device", "os error 28", "Disk quota exceeded", "os error 122")
_MEMORY_WORDS = ("can't allocate memory", "out of memory", "Cannot allocate memory", "std::bad_alloc")
_TORCH_WRITER = "PytorchStreamWriter failed writing file"
_NEARLY_FULL = 16 << 20


class StageError(Exception):
    """What a stage says when it can't go on: one sentence, and what to do about it."""

    def __init__(self, message: str, remedy: str = "", resumable: bool = True) -> None:
        super().__init__(message, remedy, resumable)
        self.message, self.remedy, self.resumable = message, remedy, resumable

    def __str__(self) -> str:
        return f"{self.message}. {self.remedy}" if self.remedy else self.message


@dataclass(frozen=True)
class Failure:
    """`expected` failures need no traceback: the sentence says all."""

    message: str
    remedy: str
    resumable: bool = True
    expected: bool = True


def explain(error: BaseException, stage: str, output: Path) -> Failure:
    """The failure behind an exception that ended `stage` while it wrote to `output`."""
    if isinstance(error, StageError):
        return Failure(error.message, error.remedy, error.resumable)
    if isinstance(error, (RunError, ConfigError)):
        return Failure(error.message, error.remedy)
    module = missing_module(error)
    if module:
        return Failure(
            f"{sys.executable} has no module {module}, which {stage} needs",
            f"Install the pipeline there (pip install '.[pipeline]' in a clone of Eagledeck), or set {stage}.python to "
            "a Python that has it; then resume",
        )
    full = _full_path(error, output)
    if full is not None:
        volume = mount_of(full)
        return Failure(
            f"The volume {volume} is full ({size_text(free_bytes(volume))} free) while {stage} wrote to {full}",
            "Free space there, then resume; what was saved is intact",
        )
    if _is_memory(error):
        where = "the GPU" if "CUDA" in str(error) or type(error).__name__ == "OutOfMemoryError" else "the host"
        return Failure(
            f"{stage} ran out of memory on {where}",
            f"Lower {stage}.{'batch_tokens' if stage in ('extract', 'train') else 'max_tokens'}, or free memory there",
            expected=False,
        )
    words = " ".join(str(error).split())[:300]
    return Failure(
        f"{stage} ended on an unexpected error: {type(error).__name__}{': ' + words if words else ''}",
        "The details are in the attempt's stage.log; resume goes on from what was saved",
        expected=False,
    )


def missing_module(error: BaseException) -> str:
    """The package that isn't installed, when that is what the error says; empty otherwise."""
    name = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
    package = name.partition(".")[0]
    return "" if package in {"pipeline", "remote", "console"} else package


def mount_of(path: Path) -> Path:
    """The mount point that holds `path` (its nearest existing ancestor when it isn't there)."""
    real = Path(os.path.realpath(path))
    while not os.path.ismount(real) and real != real.parent:
        real = real.parent
    return real


def free_bytes(path: Path) -> int:
    """Bytes that can still be written there without root's own reserve; 0 when it can't be asked."""
    try:
        info = os.statvfs(path)
    except OSError:
        return 0
    return info.f_bavail * info.f_frsize


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def _full_path(error: BaseException, output: Path) -> Path | None:
    """Where a volume was full, when that is what is behind the error."""
    for link in _chain(error):
        if isinstance(link, OSError) and link.errno in FULL:
            named = link.filename if isinstance(link.filename, (str, os.PathLike)) else None
            return Path(named) if named else output
        text = str(link)
        if any(words in text for words in _FULL_WORDS):
            return output
        if _TORCH_WRITER in text and free_bytes(output) < _NEARLY_FULL:
            return output
    return None


def _is_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or any(
        type(link).__name__ == "OutOfMemoryError" or any(words in str(link) for words in _MEMORY_WORDS)
        for link in _chain(error)
        if isinstance(link, (RuntimeError, OSError))
    )
