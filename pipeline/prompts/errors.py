"""What is wrong with a prompt file or a line of it. Imports nothing."""

from __future__ import annotations


class PromptError(Exception):
    """A prompt file can't be used at all, or a line can't. `remedy` says what to do (empty for a line)."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(f"{message} {remedy}".strip())
        self.message = message
        self.remedy = remedy
