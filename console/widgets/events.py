"""The newest events of the run: when, of which stage, what."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence

from console.snapshot import EventView
from console.widgets.ink import Line, Span, fit, heading, pad, width_of
from console.widgets.panel import Panel

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


def event_lines(events: Sequence[EventView], now: float, width: int, height: int) -> list[Line]:
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
    return [heading("events", info, width), *rows]


def event_rows(event: EventView, now: float, width: int, most: int) -> list[Line]:
    """`14:02 ◆ train checkpoint 8000 saved` in at most `most` rows; another day shows its date: `11-29`."""
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
    texts = textwrap.wrap(message, max(1, width - indent), max_lines=most, placeholder="…") or [""]
    if most == 1:
        texts = [message]  # which is cut at the last cell instead of the last word
    head = fit([*spans, (texts[0], look)], width)
    return [head, *(fit([(" " * indent, ""), (text, look)], width) for text in texts[1:])]


def clock_text(t: float, now: float) -> str:
    """Local `HH:MM` today, `MM-DD` on another day."""
    try:
        then, today = time.localtime(t), time.localtime(now)
    except (OverflowError, ValueError, OSError):
        return "—    "
    return time.strftime("%H:%M" if then[:3] == today[:3] else "%m-%d", then)


class Events(Panel):
    """Shows event_lines."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._events: tuple[EventView, ...] = ()
        self._now = 0.0

    def show(self, events: tuple[EventView, ...], now: float) -> None:
        self._now = now
        if events != self._events:
            self._events = events
            self.redraw()

    def lines(self, width: int, height: int) -> list[Line]:
        return event_lines(self._events, self._now, width, height)
