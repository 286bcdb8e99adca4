"""A button of one line, and the row of them at the foot of a question."""

from __future__ import annotations

from typing import ClassVar

from rich.cells import cell_len
from textual.binding import Binding, BindingType
from textual.message import Message

from console.widgets.ink import Line
from console.widgets.panel import Panel


class Choice(Panel):
    """`[ Cancel ]`; Enter or space or a click presses it."""

    can_focus = True
    FADES = False
    DEFAULT_CSS = """
    Choice { height: 1; margin: 0 0 0 2; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,space", "press", "choose", id="choice.press", show=False),
        Binding("left", "app.focus_previous", "previous", id="choice.previous", show=False),
        Binding("right", "app.focus_next", "next", id="choice.next", show=False),
    ]

    class Pressed(Message):
        """A choice was made."""

        def __init__(self, choice: Choice) -> None:
            super().__init__()
            self.choice = choice

    def __init__(self, key: str, label: str, danger: bool = False) -> None:
        super().__init__(id=f"choice-{key}")
        self.key = key
        self.label = label
        self.danger = danger
        self.styles.width = cell_len(label) + 4

    def lines(self, width: int, height: int) -> list[Line]:
        if self.disabled:
            return [((f"[ {self.label} ]", "faint"),)]
        if self.has_focus:
            return [((f"[ {self.label} ]", "danger-focused" if self.danger else "choice-focused"),)]
        return [(("[ ", "faint"), (self.label, "bad" if self.danger else "value"), (" ]", "faint"))]

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
