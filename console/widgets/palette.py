"""From roles to terminal styles, resolved once for a theme and not once for a widget.

Reads the theme's variables (themes/palettes.py adds ours to every theme). A style never holds a background, so the
widget's own shows through. Imports Textual's colour type and Rich's style.
"""

from __future__ import annotations

from collections.abc import Mapping

from rich.style import Style
from textual.color import Color

_ROLES: dict[str, str] = {
    "": "foreground",
    "title": "ink-title bold",
    "title-focused": "primary bold",
    "rule": "ink-rule",
    "rule-focused": "primary",
    "label": "ink-muted",
    "dim": "ink-muted",
    "faint": "ink-faint",
    "log": "ink-title",
    "value": "foreground",
    "strong": "foreground bold",
    "brand": "primary bold",
    "good": "success",
    "busy": "primary bold",
    "warn": "warning",
    "bad": "error bold",
    "badge": "warning bold reverse",
    "track": "ink-track",
    "mark": "foreground bold",
    "axis": "ink-axis",
    "grid": "ink-track",
    "key": "primary bold",
    "choice": "foreground",
    "choice-letter": "primary bold underline",
    "choice-focused": "primary bold reverse",
    "choice-focused-letter": "primary bold reverse underline",
    "danger": "error bold",
    "danger-letter": "error bold underline",
    "danger-focused": "error bold reverse",
    "danger-focused-letter": "error bold reverse underline",
    "cursor": "primary reverse",
    "changed": "warning bold",
    "bar-power": "series-2",
    "bar-util": "series-1",
    "bar-vram": "series-4",
    "bar-volume": "series-3",
    "bar-samples": "series-1",
    "bar-tokens": "series-1",
    "bar-stage": "primary",
    **{f"series-{n}": f"series-{n}" for n in range(1, 9)},
    **{f"series-{n}-strong": f"series-{n} bold" for n in range(1, 9)},
    **{f"band-{n}": f"band-{n}" for n in range(1, 9)},
}
"""Role: the theme variable of its colour, then text attributes."""

_STALE_BLEND = 0.55


class Palette:
    """Styles of one theme; `stale` styles are the same ones faded, for numbers that are no longer current."""

    def __init__(self, variables: Mapping[str, str], ansi: bool) -> None:
        self._variables = variables
        self._ansi = ansi
        self._styles: dict[tuple[str, bool], Style] = {}

    def style(self, role: str, stale: bool = False) -> Style:
        """The style of a role. KeyError for a role that does not exist."""
        found = self._styles.get((role, stale))
        if found is None:
            found = self._styles[role, stale] = self._resolve(_ROLES[role], stale)
        return found

    def _resolve(self, recipe: str, stale: bool) -> Style:
        variable, *attributes = recipe.split()
        color = self._color(variable)
        bold, reverse, underline = ("bold" in attributes), ("reverse" in attributes), ("underline" in attributes)
        if stale:
            faded = self._color("ink-muted") if self._ansi else color.blend(self._color("background"), _STALE_BLEND)
            return Style(color=faded.rich_color, reverse=reverse or None)
        return Style(color=color.rich_color, bold=bold or None, reverse=reverse or None, underline=underline or None)

    def _color(self, variable: str) -> Color:
        text, _, opacity = self._variables[variable].partition(" ")
        color = Color.parse(text)
        if color.ansi is not None:
            return color
        if opacity.endswith("%"):
            color = color.with_alpha(color.a * float(opacity[:-1]) / 100)
        if color.a < 1:
            color = Color.parse(self._variables["background"]) + color
        return color


def roles() -> tuple[str, ...]:
    """Every role that a panel may use."""
    return tuple(_ROLES)
