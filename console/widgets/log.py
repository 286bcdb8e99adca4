"""The log tail: one row a line, or, where it has the screen to itself, every line to its end."""

from __future__ import annotations

import re

from console.widgets.ink import Line, Span, fit, fold, heading
from console.widgets.tail import Tail, held_info, last_rows

_BAD = re.compile(r"\b(error|exception|traceback|fatal|failed)\b", re.IGNORECASE)
_WARN = re.compile(r"\bwarn(ing)?\b", re.IGNORECASE)


def line_role(text: str) -> str:
    """Lines that speak of errors or warnings stand out."""
    if _BAD.search(text):
        return "bad"
    return "warn" if _WARN.search(text) else "log"


def log_rows(text: str, whole: bool, width: int) -> list[Line]:
    """One line of the log: cut to one row, or folded into as many as it takes."""
    role = line_role(text)
    if not whole:
        return [fit([(text, role)], width)]
    first, *others = fold(text, width, indent=2)
    return [fit([(first, role)], width), *(fit([("  ", ""), (row, role)], width) for row in others)]


def log_lines(
    lines: tuple[str, ...],
    source: str,
    above: int,
    following: bool,
    focused: bool,
    width: int,
    height: int,
    whole: bool = False,
) -> list[Line]:
    """A heading, then the rows that end `above` rows before the last one."""
    info: list[Span] = [(source, "value"), ("  ", ""), held_info(above, following)] if source else [("none yet", "dim")]
    marks: list[Span] = [(f"{len(lines)} line{'' if len(lines) == 1 else 's'}", "faint")] if lines else []
    out = [heading("log", info, width, marks, focused)]
    return out + last_rows(lines, lambda text: log_rows(text, whole, width), above, max(0, height - 1))


class Log(Tail[str]):
    """Shows log_lines."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._source = ""

    def show(self, lines: tuple[str, ...], source: str) -> None:
        if source != self._source:
            self._source = source
            self.follow()
            self.redraw()
        self.take(lines)

    def rows(self, entry: str, width: int) -> list[Line]:
        return log_rows(entry, self.whole, width)

    def lines(self, width: int, height: int) -> list[Line]:
        return log_lines(
            self.entries, self._source, self._above, self.following, self.has_focus, width, height, self.whole
        )
