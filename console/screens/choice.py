"""A button of one line, and the letter that presses it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len
from textual.binding import Binding, BindingType
from textual.message import Message

from console.widgets.ink import Line, Span
from console.widgets.panel import Panel


def letters_of(labels: Sequence[str], taken: str = "") -> list[str]:
    """For each label the first of its letters that no other one has and that is not in `taken`; empty without one."""
    used = set(taken.lower())
    found = []
    for label in labels:
        letter = next((sign for sign in label.lower() if "a" <= sign <= "z" and sign not in used), "")
        used.add(letter)
        found.append(letter)
    return found


class Choice(Panel):
    """`[ Cancel ]`; Enter or space or a click presses it. `letter` is underlined: the screen lets it press, too."""

    can_focus = True
    FADES = False
    DEFAULT_CSS = """
    Choice { height: 1; margin: 0 0 0 2; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,space", "press", "choose", id="choice.press", show=False),
        Binding("left,up", "app.focus_previous", "previous", id="choice.previous", show=False),
        Binding("right,down", "app.focus_next", "next", id="choice.next", show=False),
    ]

    class Pressed(Message):
        """A choice was made."""

        def __init__(self, choice: Choice) -> None:
            super().__init__()
            self.choice = choice

    def __init__(self, key: str, label: str, danger: bool = False, letter: str = "") -> None:
        super().__init__(id=f"choice-{key}")
        self.key = key
        self.label = label
        self.danger = danger
        self.letter = letter
        self.styles.width = cell_len(label) + 4

    def lines(self, width: int, height: int) -> list[Line]:
        if self.disabled:
            return [((f"[ {self.label} ]", "faint"),)]
        if self.has_focus:
            role = "danger-focused" if self.danger else "choice-focused"
            return [(("[ ", role), *self._label(role), (" ]", role))]
        role = "danger" if self.danger else "choice"
        return [(("[ ", "faint"), *self._label(role), (" ]", "faint"))]

    def _label(self, role: str) -> list[Span]:
        place = self.label.lower().find(self.letter) if self.letter else -1
        if place < 0:
            return [(self.label, role)]
        return [
            (self.label[:place], role),
            (self.label[place], f"{role}-letter"),
            (self.label[place + 1 :], role),
        ]

    def watch_disabled(self, disabled: bool) -> None:
        super().watch_disabled(disabled)
        self.redraw()

    def action_press(self) -> None:
        if not self.disabled:
            self.post_message(self.Pressed(self))

    def on_click(self) -> None:
        self.action_press()

    def on_focus(self) -> None:
        self.redraw()

    def on_blur(self) -> None:
        self.redraw()
