"""Themes: every role in every theme, readable, and nothing but native colours where there are few or none."""

from __future__ import annotations

from typing import Any

import pytest
from textual.color import Color
from textual.theme import BUILTIN_THEMES

from console.widgets.palette import Palette, roles
from themes.palettes import EAGLEDECK, EAGLEDECK_LIGHT, THEMES, variable_defaults


def palette(theme: Any) -> Palette:
    variables = {**variable_defaults(theme), **theme.to_color_system().generate(), **theme.variables}
    return Palette(variables, theme.ansi)


@pytest.mark.parametrize("theme", [*THEMES, *BUILTIN_THEMES.values()], ids=lambda theme: theme.name)
def test_every_role_has_a_style_in_every_theme(theme: Any) -> None:
    made = palette(theme)
    for role in roles():
        assert made.style(role).color is not None
        assert made.style(role, stale=True).color is not None


def contrast(one: Color, other: Color) -> float:
    """WCAG 2.2 contrast ratio."""

    def luminance(color: Color) -> float:
        parts = [part / 255 for part in color.rgb]
        red, green, blue = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [EAGLEDECK, EAGLEDECK_LIGHT], ids=lambda theme: theme.name)
@pytest.mark.parametrize(
    ("role", "least"),
    [("value", 7.0), ("label", 4.5), ("log", 7.0), ("good", 4.5), ("warn", 4.5), ("bad", 4.5), ("key", 4.5)]
    + [(f"series-{number}", 3.0) for number in range(1, 9)]
    + [("faint", 2.5), ("axis", 1.5), ("track", 1.2)],
)
def test_text_can_be_read(theme: Any, role: str, least: float) -> None:
    ink = palette(theme).style(role).color
    assert ink is not None
    assert contrast(Color.from_rich_color(ink), Color.parse(theme.background)) >= least


async def test_a_theme_can_be_chosen_while_it_runs(scenes: Any) -> None:
    async with scenes.console(scenes.training()) as (app, pilot, _):
        panel = app.screen.query_one("#truth")
        assert app.theme == "eagledeck"
        before = panel.render_line(0)
        for name in ("eagledeck-light", "nord", "ansi-dark", "eagledeck-ansi", "eagledeck"):
            app.theme = name
            await pilot.pause()
            after = panel.render_line(0)
            assert after.text == before.text
            assert ([s.style for s in after] == [s.style for s in before]) == (name == "eagledeck")


def colours(app: Any) -> set[str]:
    found = set()
    for strip in app.screen._compositor.render_strips():
        for segment in strip.apply_filter(app._filters[-1], Color(0, 0, 0)) if app.no_color else strip:
            for color in (segment.style.color, segment.style.bgcolor) if segment.style else ():
                if color is not None:
                    found.add("true" if color.triplet is not None else color.name)
    return found


async def test_no_color_means_no_colour(scenes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with scenes.console(scenes.failed()) as (app, _, _):
        assert colours(app) == {"default"}
        assert "FAILED" in "\n".join(scenes.screen_lines(app))


async def test_sixteen_colours_get_the_native_theme(scenes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("COLORTERM")
    async with scenes.console(scenes.failed()) as (app, _, _):
        assert app.theme == "eagledeck-ansi"
        assert "true" not in colours(app)
        assert {"color(1)", "color(2)", "color(3)"} <= colours(app)  # red, green, yellow of ECMA-48


async def test_modals_work_in_native_colours(scenes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with scenes.console(scenes.training()) as (app, pilot, _):
        for key in ("K", "e", "question_mark"):
            await pilot.press(key)
            await pilot.pause()
            assert app.screen.id != "overview"
            await pilot.press("escape")
