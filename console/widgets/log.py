"""The log tail. It follows the end until a person scrolls up; follow off means that nothing moves."""

from __future__ import annotations

import re

from textual import events

from console.widgets.ink import Line, Span, fit, heading
from console.widgets.panel import Panel

_BAD = re.compile(r"\b(error|exception|traceback|fatal|failed)\b", re.IGNORECASE)
_WARN = re.compile(r"\bwarn(ing)?\b", re.IGNORECASE)


def line_role(text: str) -> str:
    """Lines that speak of errors or warnings stand out."""
    if _BAD.search(text):
        return "bad"
    return "warn" if _WARN.search(text) else "log"


def log_lines(
    lines: tuple[str, ...], source: str, above: int, following: bool, focused: bool, width: int, height: int
) -> list[Line]:
    """A heading, then the lines that end `above` lines before the last one."""
    info: list[Span] = [(source, "value")] if source else [("none yet", "dim")]
    info.append(("  following" if following else f"  held, {above} below", "dim" if following else "warn"))
    marks: list[Span] = [(f"{len(lines)} line{'' if len(lines) == 1 else 's'}", "faint")] if lines else []
    out = [heading("log", info if source else info[:1], width, marks, focused)]
    room = max(0, height - 1)
    end = len(lines) - above
    for text in lines[max(0, end - room) : end]:
        out.append(fit([(text, line_role(text))], width))
    return out


class Log(Panel):
    """Shows log_lines; focus it to scroll."""

    can_focus = True

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lines: tuple[str, ...] = ()
        self._held: tuple[str, ...] | None = None
        self._source = ""
        self._above = 0

    @property
    def following(self) -> bool:
        return self._held is None

    def show(self, lines: tuple[str, ...], source: str) -> None:
        changed = (lines, source) != (self._lines, self._source)
        if source != self._source:
            self.follow()
        self._lines, self._source = lines, source
        if changed and self.following:
            self.redraw()

    def follow(self) -> None:
        """Back to the end."""
        if self._held is not None:
            self._held, self._above = None, 0
            self.redraw()

    def scroll_by(self, by: int) -> None:
        """Scroll up (negative) or down; reaching the end follows again."""
        lines = self._lines if self._held is None else self._held
        room = max(1, self.size.height - 1)
        above = min(max(0, len(lines) - room), max(0, self._above - by))
        if above == 0:
            self.follow()
        elif above != self._above:
            self._held, self._above = lines, above
            self.redraw()

    def page(self) -> int:
        return max(1, self.size.height - 2)

    def lines(self, width: int, height: int) -> list[Line]:
        held = self._lines if self._held is None else self._held
        return log_lines(held, self._source, self._above, self.following, self.has_focus, width, height)

    def on_focus(self) -> None:
        self.redraw()

    def on_blur(self) -> None:
        self.redraw()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.scroll_by(-3)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.scroll_by(3)
