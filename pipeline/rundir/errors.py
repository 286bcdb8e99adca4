"""The refusals of a run directory, as sentences for the person who asked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class RunError(Exception):
    """Something about a run that can't be done. `message` says what and where, `remedy` what to do."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy)
        self.message, self.remedy = message, remedy

    def __str__(self) -> str:
        return f"{self.message}. {self.remedy}" if self.remedy else self.message


def refuse_newer(record: Mapping[str, Any], where: Path, known: int = 1) -> None:
    """Raise RunError when a record's `schema` is higher than `known`: what it says may mean something else."""
    schema = record.get("schema", known)
    if not isinstance(schema, int) or schema > known:
        raise RunError(
            f"{where} was written by a newer Eagledeck (schema {schema}; this one reads up to {known})",
            "Update Eagledeck, or use the version that wrote it",
        )


def restart_words(run: str, stage: str) -> str:
    """What to do where an output can't be gone on with."""
    return f"`eagledeck restart {run} {stage}` opens a new output; this one stays on disk"


class PlanConflict(RunError):
    """The plan got a newer revision between reading it and writing the next one."""
