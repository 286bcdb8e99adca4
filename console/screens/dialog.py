"""What all dialogs have in common: how they take up little room in small terminals."""

from __future__ import annotations

from typing import TypeVar

from textual.screen import ModalScreen

Answered = TypeVar("Answered")


class Dialog(ModalScreen[Answered]):
    """A modal whose `.dialog` spans a terminal that is little wider, and has no air in a short one: console.tcss."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (90, "-medium"), (112, "-wide")]  # noqa: RUF012  not a ClassVar in Textual
    VERTICAL_BREAKPOINTS = [(0, "-short"), (24, "-normal")]  # noqa: RUF012
