"""The base of all panels: lines are made once for a change of data, size or theme, and then only handed out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol, cast

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from console.widgets.ink import Line, fit

if TYPE_CHECKING:
    from console.widgets.palette import Palette


class Inked(Protocol):
    """What a panel needs of its app."""

    palette: Palette


class Panel(Widget):
    """A widget that draws `lines(width, height)`. Subclasses keep plain values and call `redraw` when these change."""

    ALLOW_SELECT: ClassVar[bool] = False
    DEFAULT_CSS = """
    Panel { width: 1fr; height: 1fr; }
    """
    FADES: ClassVar[bool] = True
    """Whether the panel fades when its numbers are no longer current."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._strips: list[Strip] | None = None
        self._drawn_size: tuple[int, int] = (0, 0)
        self._stale = False

    @abstractmethod
    def lines(self, width: int, height: int) -> Sequence[Line]:
        """The content for this size; missing rows are blank, surplus rows are not shown."""

    @property
    def stale(self) -> bool:
        return self._stale

    @stale.setter
    def stale(self, stale: bool) -> None:
        if self.FADES and stale != self._stale:
            self._stale = stale
            self.redraw()

    def redraw(self) -> None:
        """Forget what was drawn; it is drawn again with the next frame."""
        self._strips = None
        self.refresh()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._strips = None

    def render_line(self, y: int) -> Strip:
        size = (self.size.width, self.size.height)
        if self._strips is None or size != self._drawn_size:
            self._strips = self._draw(*size)
            self._drawn_size = size
        return self._strips[y] if y < len(self._strips) else Strip.blank(size[0])

    def _draw(self, width: int, height: int) -> list[Strip]:
        palette = cast(Inked, self.app).palette
        under = Style(bgcolor=self.rich_style.bgcolor)
        styles: dict[str, Style] = {}

        def segment(text: str, role: str) -> Segment:
            if role not in styles:
                styles[role] = under + palette.style(role, self._stale)
            return Segment(text, styles[role])

        rows = [fit(line, width) for line in list(self.lines(width, height))[:height]]
        rows += [((" " * width, ""),)] * (height - len(rows))
        return [Strip([segment(text, role) for text, role in row], width) for row in rows]
