"""The newest events of the run: when, of which stage, what."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence

from console.snapshot import EventView
from console.widgets.ink import Line, Span, fit, fold, heading, pad, width_of
from console.widgets.tail import Tail, held_info, last_rows

_KINDS = {
    "checkpoint": ("◆", "good"),
    "saved": ("◆", "good"),
    "warning": ("!", "warn"),
    "reject": ("×", "warn"),
    "failed": ("✗", "bad"),
    "error": ("✗", "bad"),
}


_READ_ON = 4
"""From this many rows on, one that is too long may have a second row at the cost of the oldest one."""


def event_lines(events: Sequence[EventView], now: float, width: int, height: int, focused: bool = False) -> list[Line]:
    """A heading, then the newest events that fit, newest last; in rows left over they are told to their end."""
    room = max(0, height - 1)
    shown = events[-room:] if room else ()
    rows: list[Line] = []
    spare = max(room - len(shown), 1 if room >= _READ_ON else 0)
    for event in reversed(shown):
        found = event_rows(event, now, width, 1 + spare)
        spare -= len(found) - 1
        rows = [*found, *rows]
    if len(rows) > room:
        rows, shown = rows[-room:], shown[1:]
    info: list[Span] = [] if len(shown) == len(events) else [(f"last {len(shown)} of {len(events)}", "label")]
    if not events:
        info = [("none yet", "dim")]
    return [heading("events", info, width, focused=focused), *rows]


def event_rows(event: EventView, now: float, width: int, most: int | None = None) -> list[Line]:
    """`14:02 ◆ train checkpoint 8000 saved`, in at most `most` rows; another day shows its date: `11-29`."""
    glyph, role = _KINDS.get(event.kind, ("·", "dim"))
    spans: list[Span] = [(clock_text(event.t, now), "faint"), (f" {glyph} ", role)]
    message = event.message or event.kind
    if width >= 40:
        spans.append((pad(event.stage, 9), "label"))
        message = message.removeprefix(f"{event.stage} ")
    elif " " not in message and event.stage:
        message = f"{event.stage} {message}"  # `done` alone says nothing
    if glyph == "◆":  # which says it already
        message = message.removeprefix(f"{event.kind} ").removeprefix("at ")
    look = role if role in {"bad", "warn"} else "value"
    indent = width_of(spans)
    if most is None:
        texts = fold(message, width - indent)
    elif most == 1:
        texts = [message]  # which is cut at the last cell instead of the last word
    else:
        texts = textwrap.wrap(message, max(1, width - indent), max_lines=most, placeholder="…") or [""]
    head = fit([*spans, (texts[0], look)], width)
    return [head, *(fit([(" " * indent, ""), (text, look)], width) for text in texts[1:])]


def clock_text(t: float, now: float) -> str:
    """Local `HH:MM` today, `MM-DD` on another day."""
    try:
        then, today = time.localtime(t), time.localtime(now)
    except (OverflowError, ValueError, OSError):
        return "—    "
    return time.strftime("%H:%M" if then[:3] == today[:3] else "%m-%d", then)


class Events(Tail[EventView]):
    """Shows event_lines; alone or scrolled, every event to its end."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._now = 0.0

    def show(self, events: tuple[EventView, ...], now: float) -> None:
        self._now = now
        self.take(events)

    def rows(self, entry: EventView, width: int) -> list[Line]:
        return event_rows(entry, self._now, width)

    def lines(self, width: int, height: int) -> list[Line]:
        if self.following and not self.whole:
            return event_lines(self.entries, self._now, width, height, self.has_focus)
        info: list[Span] = [(f"all {len(self.entries)}", "label"), ("  ", ""), held_info(self._above, self.following)]
        rows = last_rows(self.entries, lambda event: self.rows(event, width), self._above, max(0, height - 1))
        return [heading("events", info, width, focused=self.has_focus), *rows]
