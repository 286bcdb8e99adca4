"""The base of panels that list what came last: they follow the end until a person scrolls up; then nothing moves."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, Generic, TypeVar

from textual import events

from console.widgets.ink import Line, Span
from console.widgets.panel import Panel

Entry = TypeVar("Entry")


def last_rows(entries: Sequence[Entry], rows: Callable[[Entry], Sequence[Line]], above: int, room: int) -> list[Line]:
    """The `room` rows that end `above` rows before the last one; entries that lie before them are not looked at."""
    found: list[Line] = []
    for entry in reversed(entries):
        if len(found) >= room + above:
            break
        found += reversed(rows(entry))
    return found[above : above + room][::-1]


def held_info(above: int, following: bool) -> Span:
    """What the heading says of the end: whether it is on show, or how many rows below."""
    return ("following", "dim") if following else (f"held, {above} below", "warn")


class Tail(Panel, Generic[Entry]):
    """`whole`: it has the screen to itself, and entries take the rows they need. Focus it to scroll."""

    can_focus = True
    ALLOW_MAXIMIZE: ClassVar[bool | None] = False  # z does it, and leaves the stages and the keys where they are

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._newest: tuple[Entry, ...] = ()
        self._held: tuple[Entry, ...] | None = None
        self._above = 0
        self._whole = False

    @abstractmethod
    def rows(self, entry: Entry, width: int) -> Sequence[Line]:
        """One entry."""

    @property
    def entries(self) -> tuple[Entry, ...]:
        """What is on show: the newest ones, or those at which it is held."""
        return self._newest if self._held is None else self._held

    @property
    def following(self) -> bool:
        return self._held is None

    @property
    def whole(self) -> bool:
        return self._whole

    @whole.setter
    def whole(self, whole: bool) -> None:
        if whole == self._whole:
            return
        passed = below = 0
        width = max(1, self.size.width)
        for entry in reversed(self.entries if self._above else ()):
            below += len(self.rows(entry, width))
            if below > self._above:
                break
            passed += 1
        self._whole = whole
        self._above = sum(len(self.rows(entry, width)) for entry in self.entries[len(self.entries) - passed :])
        self.redraw()

    def take(self, newest: tuple[Entry, ...]) -> None:
        """Newer entries; those at which it is held stay on show."""
        if newest != self._newest:
            self._newest = newest
            if self.following:
                self.redraw()

    def follow(self) -> None:
        """Back to the end."""
        if self._held is not None:
            self._held, self._above = None, 0
            self.redraw()

    def scroll_by(self, by: int) -> None:
        """Scroll up (negative) or down, in rows; reaching the end follows again."""
        room, width = max(1, self.size.height - 1), max(1, self.size.width)
        count = sum(len(self.rows(entry, width)) for entry in self.entries)
        above = min(max(0, count - room), max(0, self._above - by))
        if above == 0:
            self.follow()
        elif above != self._above:
            self._held, self._above = self.entries, above
            self.redraw()

    def page(self) -> int:
        return max(1, self.size.height - 2)

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
