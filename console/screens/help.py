"""All keys, from the table that the bindings are made of."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.geometry import Size
from textual.widgets import Static

from console.keys import GROUPS, KEYS
from console.screens.dialog import Dialog
from console.widgets.ink import Line, fit, pad, text_of
from console.widgets.panel import Panel


def help_lines(width: int) -> list[Line]:
    """Groups of keys; two columns where there is room for them."""
    groups: list[list[Line]] = []
    for name in GROUPS:
        groups.append([((name, "title"),), *(_row(key.shown, key.help) for key in KEYS if key.group == name)])
    if width < 100:
        return [fit(line, width) for group in groups for line in (*group, ())][:-1]
    columns: list[list[Line]] = [[], []]
    for group in groups:
        column = min(columns, key=len)
        column += [*group, ()]
    half = width // 2
    rows = max(len(column) for column in columns)
    out = []
    for row in range(rows):
        cells = [fit(column[row] if row < len(column) else (), half) for column in columns]
        out.append(fit([span for cell in cells for span in cell], width))
    while out and not text_of(out[-1]).strip():
        out.pop()
    return out


def _row(shown: str, text: str) -> Line:
    return ((f"  {pad(shown, 7)}", "key"), (text, "value"))


class HelpLines(Panel):
    """Shows help_lines."""

    FADES = False
    DEFAULT_CSS = """
    HelpLines { height: auto; margin: 0 0 1 0; }
    """

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(help_lines(width))

    def lines(self, width: int, height: int) -> list[Line]:
        return help_lines(width)


class Help(Dialog[None]):
    """`?`"""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q", "dismiss", "close", id="help.close", show=False)
    ]

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog help") as dialog:
            dialog.border_title = "keys"
            dialog.border_subtitle = "↑ ↓ · Esc closes"
            yield HelpLines()
            answers = "Underlined letters answer a dialog; the key that opened it never does, as it may be held down."
            yield Static(answers, markup=False, classes="fact")
            yield Static("Selecting text: hold shift while dragging.", markup=False, classes="fact")
