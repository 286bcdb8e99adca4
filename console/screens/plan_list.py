"""The list of parameters in the plan editor: a cursor over rows, values at the right, changes marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from console.screens.plan_rows import FIRST, PlanRow
from console.widgets.ink import Line, Span, clip_middle, fit, pad
from console.widgets.panel import Panel

_KEY = 28


def list_lines(
    rows: Sequence[PlanRow], cursor: int, top: int, changed: Mapping[str, str], focused: bool, width: int, height: int
) -> list[Line]:
    """`height` rows from `top`; `changed` holds new values by key as they are read.

    The last column has a bar where there are more rows: how many, and which of them these are.
    """
    out = []
    more = len(rows) > height
    width -= 2 if more else 0
    for index in range(top, min(len(rows), top + height)):
        row = rows[index]
        room = max(4, width - _KEY - 4)
        section, _, name = row.key.rpartition(".")
        label: list[Span] = [(f"{section}." if section else "", "dim"), (name, "value")]
        value: list[Span] = [(clip_middle(row.shown, room), "value")]
        if row.key in changed:
            old = clip_middle(row.shown, room // 2 - 2)
            value = [(old, "dim"), (" → ", "changed"), (clip_middle(changed[row.key], room // 2), "changed")]
        if index == cursor:
            text = pad(f" {row.key}", _KEY + 2) + "".join(part for part, _ in value)
            out.append(fit([(text, "cursor" if focused else "strong")], width, "cursor" if focused else "strong"))
        else:
            lead: Span = ("•", "changed") if row.key in changed else (" ", "")
            out.append(fit([lead, *fit(label, _KEY + 1), *value], width))
    return [(*row, (" ", ""), mark) for row, mark in zip(out, _bar(len(rows), top, height))] if more else out


def _bar(count: int, top: int, height: int) -> list[Span]:
    """A bar's cells: `┃` where the rows on show lie among all of them. Its ends say that none is left there."""
    size = max(1, height * height // count)
    hidden = count - height
    place = (
        0 if top <= 0 else height - size if top >= hidden else 1 + (height - size - 2) * (top - 1) // max(1, hidden - 1)
    )
    return [("┃", "label") if place <= row < place + size else ("│", "track") for row in range(height)]


def matching(rows: Sequence[PlanRow], text: str) -> list[PlanRow]:
    """The rows whose keys hold every word of the text; without one, those that have them in their meaning."""
    words = text.lower().split()
    named = [row for row in rows if all(word in row.key.lower() for word in words)]
    return named or [row for row in rows if all(word in f"{row.key} {row.doc}".lower() for word in words)]


class PlanList(Panel):
    """Up and down move, Enter chooses."""

    can_focus = True
    FADES = False
    DEFAULT_CSS = """
    PlanList { height: 1fr; min-height: 4; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "up", id="plan.up", show=False),
        Binding("down,j", "move(1)", "down", id="plan.down", show=False),
        Binding("pageup", "page(-1)", "a page up", id="plan.page_up", show=False),
        Binding("pagedown", "page(1)", "a page down", id="plan.page_down", show=False),
        Binding("home", "move(-9999)", "first", id="plan.first", show=False),
        Binding("end", "move(9999)", "last", id="plan.last", show=False),
        Binding("enter", "choose", "edit", id="plan.choose", show=False),
    ]

    class Moved(Message):
        """The cursor stands on another row."""

    class Chosen(Message):
        """Enter on the row under the cursor."""

    def __init__(self, rows: Sequence[PlanRow]) -> None:
        super().__init__(id="plan-list")
        self.all_rows = self.rows = rows
        self.filter = ""
        self.cursor = next((index for index, row in enumerate(rows) if row.key == FIRST), 0)
        self._changed: dict[str, str] = {}
        self._top = 0

    @property
    def current(self) -> PlanRow:
        return self.rows[self.cursor]

    def show(self, rows: Sequence[PlanRow]) -> None:
        """Other rows; the cursor stays on its parameter, if that is still there."""
        self.all_rows = rows
        if not self.find(self.filter):
            self.find("")

    def find(self, text: str) -> bool:
        """Only the rows that the text names, all of them for an empty one; False where it names none: then none go."""
        found = matching(self.all_rows, text)
        if not found:
            return False
        key, self.filter, self.rows = self.current.key, text, found
        self.cursor = next((index for index, row in enumerate(found) if row.key == key), 0)
        self.redraw()
        return True

    def mark(self, changed: dict[str, str]) -> None:
        self._changed = changed
        self.redraw()

    def lines(self, width: int, height: int) -> list[Line]:
        self._top = min(max(self._top, self.cursor - height + 1), self.cursor)
        return list_lines(self.rows, self.cursor, self._top, self._changed, self.has_focus, width, height)

    def action_move(self, by: int) -> None:
        self.cursor = min(len(self.rows) - 1, max(0, self.cursor + by))
        self.redraw()
        self.post_message(self.Moved())

    def action_page(self, by: int) -> None:
        self.action_move(by * max(1, self.size.height - 1))

    def action_choose(self) -> None:
        self.post_message(self.Chosen())

    def on_focus(self) -> None:
        self.redraw()

    def on_blur(self) -> None:
        self.redraw()

    def on_click(self, event: events.Click) -> None:
        self.cursor = min(len(self.rows) - 1, self._top + event.y)
        self.redraw()
        self.post_message(self.Chosen())
