"""The newest events of the run: when, of which stage, what."""

from __future__ import annotations

import time
from collections.abc import Sequence

from console.snapshot import EventView
from console.widgets.ink import Line, Span, fit, heading, pad
from console.widgets.panel import Panel

_KINDS = {
    "checkpoint": ("◆", "good"),
    "saved": ("◆", "good"),
    "warning": ("!", "warn"),
    "reject": ("×", "warn"),
    "failed": ("✗", "bad"),
    "error": ("✗", "bad"),
}


def event_lines(events: Sequence[EventView], now: float, width: int, height: int) -> list[Line]:
    """A heading, then the newest events that fit, newest last."""
    room = max(0, height - 1)
    shown = events[-room:] if room else ()
    info: list[Span] = [] if len(events) <= room else [(f"last {len(shown)} of {len(events)}", "label")]
    if not events:
        info = [("none yet", "dim")]
    return [heading("events", info, width), *(event_line(event, now, width) for event in shown)]


def event_line(event: EventView, now: float, width: int) -> Line:
    """`14:02 ◆ train checkpoint 8000 saved`; another day shows its date: `11-29`."""
    glyph, role = _KINDS.get(event.kind, ("·", "dim"))
    spans: list[Span] = [(clock_text(event.t, now), "faint"), (f" {glyph} ", role)]
    message = event.message or event.kind
    if width >= 40:
        spans.append((pad(event.stage, 9), "label"))
        message = message.removeprefix(f"{event.stage} ")
    if glyph == "◆":  # which says it already
        message = message.removeprefix(f"{event.kind} ").removeprefix("at ")
    spans.append((message, role if role in {"bad", "warn"} else "value"))
    return fit(spans, width)


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
