"""What all dialogs have in common: how they take up little room in small terminals."""

from __future__ import annotations

from typing import TypeVar

from textual.await_complete import AwaitComplete
from textual.screen import ModalScreen

Answered = TypeVar("Answered")


class Dialog(ModalScreen[Answered]):
    """A modal whose `.dialog` spans a terminal that is little wider, and has no air in a short one: console.tcss."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (90, "-medium"), (112, "-wide")]  # noqa: RUF012  not a ClassVar in Textual
    VERTICAL_BREAKPOINTS = [(0, "-short"), (24, "-normal")]  # noqa: RUF012

    _answered = False

    def dismiss(self, result: Answered | None = None) -> AwaitComplete:
        """The first answer counts: keys that came in one read with it still reach a dialog that has been left."""
        if self._answered:
            return AwaitComplete()
        self._answered = True
        return super().dismiss(result)
