"""The last line: the keys that matter now. Idle ones are faint; in a narrow terminal those that only look go first."""

from __future__ import annotations

from collections.abc import Set

from console.keys import footer_keys
from console.widgets.ink import Line, Part, fit, join
from console.widgets.panel import Panel

_IDLE = 4
"""Added to the rank of an idle key: of those that do something, the ones that can now stay longest."""


def footer_line(idle: Set[str], doing: str, width: int) -> Line:
    """`idle` are ids of keys that would do nothing now; `doing` says which action is under way."""
    parts: list[Part] = []
    if doing:
        parts.append((0, [(f"{doing} …", "busy")]))
    for key in footer_keys():
        faint = key.id in idle
        look, word = ("faint", "faint") if faint else ("key", "dim")
        parts.append((key.rank + (_IDLE if faint else 0), [(key.shown, look), (f" {key.hint}", word)]))
    return fit([(" ", ""), *join(parts, width - 2, 3 if width >= 96 else 2)], width)


class Footer(Panel):
    """Shows footer_line."""

    FADES = False

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._idle: frozenset[str] = frozenset()
        self._doing = ""

    def show(self, idle: frozenset[str], doing: str) -> None:
        if (idle, doing) != (self._idle, self._doing):
            self._idle, self._doing = idle, doing
            self.redraw()

    def lines(self, width: int, height: int) -> list[Line]:
        return [footer_line(self._idle, self._doing, width)]
