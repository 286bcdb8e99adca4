"""The container of the overview's panels, laid out by the arrangement and not by the stylesheet."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.geometry import NULL_OFFSET, NULL_SPACING, Size
from textual.layout import ArrangeResult, Layout, WidgetPlacement
from textual.widget import Widget

from console.screens.arrangement import Facts, arrange

if TYPE_CHECKING:
    from console.widgets.panel import Panel


class DeckLayout(Layout):
    """Places each child at the region that `arrange` has for its id; a child without one is not shown."""

    name = "deck"

    def __init__(self) -> None:
        self.facts = Facts()

    def arrange(self, parent: Widget, children: list[Widget], size: Size, greedy: bool = True) -> ArrangeResult:
        places = arrange(size.width, size.height, self.facts)
        return [
            WidgetPlacement(places[child.id], NULL_OFFSET, NULL_SPACING, child)
            for child in children
            if child.id in places
        ]


class Deck(Widget):
    """Holds the panels; `facts` is what their places depend on."""

    DEFAULT_CSS = """
    Deck { width: 100%; height: 100%; }
    """
    ALLOW_SELECT: ClassVar[bool] = False

    def __init__(self, *panels: Panel) -> None:
        super().__init__(*panels)
        self._layout = DeckLayout()

    @property
    def layout(self) -> Layout:
        return self._layout

    @property
    def facts(self) -> Facts:
        return self._layout.facts

    @facts.setter
    def facts(self, facts: Facts) -> None:
        if facts != self._layout.facts:
            self._layout.facts = facts
            # A layout asked for by a child is what makes Textual arrange its parent anew.
            for child in self.children[:1]:
                child.refresh(layout=True)
