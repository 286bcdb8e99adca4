"""A command line that can't be carried out as it was given."""

from __future__ import annotations


class Refusal(Exception):
    """`message` says what is wrong, `remedy` what to do, `status` the exit status: 2 for wrong usage."""

    def __init__(self, message: str, remedy: str = "", status: int = 1) -> None:
        super().__init__(f"{message} {remedy}".strip())
        self.message = message
        self.remedy = remedy
        self.status = status
