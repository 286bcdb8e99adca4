"""The refusals of a run directory, as sentences for the person who asked."""

from __future__ import annotations


class RunError(Exception):
    """Something about a run that can't be done. `message` says what and where, `remedy` what to do."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy)
        self.message, self.remedy = message, remedy

    def __str__(self) -> str:
        return f"{self.message}. {self.remedy}" if self.remedy else self.message


class PlanConflict(RunError):
    """The plan got a newer revision between reading it and writing the next one."""
