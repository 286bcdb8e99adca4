"""The themes of the console and the variables that it adds to every theme. Imports Textual.

Series colours are told apart by people with the common colour-vision deficiencies (blue, orange, green, violet, … after
Okabe and Ito) and never stand alone: every curve also differs in shape, every state has a glyph and a word.
"""

from __future__ import annotations

from textual.color import Color
from textual.theme import Theme

EAGLEDECK = Theme(
    name="eagledeck",
    primary="#62b5f7",
    secondary="#7aa2c8",
    accent="#f0a85c",
    foreground="#d5dbe3",
    background="#0d1117",
    surface="#141a22",
    panel="#1c242e",
    success="#5fc98f",
    warning="#e8bf55",
    error="#f2706d",
    dark=True,
    variables={
        "ink-title": "#aeb8c4",
        "ink-muted": "#7d8896",
        "ink-faint": "#566070",
        "ink-rule": "#2a333e",
        "ink-track": "#2c3642",
        "ink-axis": "#465160",
        "series-1": "#62b5f7",
        "series-2": "#f0a85c",
        "series-3": "#5cc9a7",
        "series-4": "#b79cf2",
        "series-5": "#e8d36a",
        "series-6": "#ee8fb5",
        "series-7": "#8fd3e8",
        "series-8": "#a3b86c",
        "border": "#3b4755",
        "block-cursor-background": "#23425c",
        "block-cursor-foreground": "#eaf1f8",
        "block-cursor-text-style": "bold",
        "input-selection-background": "#62b5f7 30%",
        "button-focus-text-style": "bold reverse",
    },
)

EAGLEDECK_LIGHT = Theme(
    name="eagledeck-light",
    primary="#0a66b0",
    secondary="#4a6a8a",
    accent="#a8560a",
    foreground="#1f2630",
    background="#fbfaf7",
    surface="#f1efea",
    panel="#e6e3dc",
    success="#17724a",
    warning="#8a5a00",
    error="#b3282d",
    dark=False,
    variables={
        "ink-title": "#414b58",
        "ink-muted": "#656f7b",
        "ink-faint": "#8b939d",
        "ink-rule": "#d3cfc6",
        "ink-track": "#d6d2c9",
        "ink-axis": "#a9adb2",
        "series-1": "#0a66b0",
        "series-2": "#b45c07",
        "series-3": "#0b7a5c",
        "series-4": "#6a45b8",
        "series-5": "#857000",
        "series-6": "#ab2f6b",
        "series-7": "#0d7487",
        "series-8": "#566b12",
        "border": "#b9b4a8",
        "block-cursor-background": "#cfe3f5",
        "block-cursor-foreground": "#10202f",
        "block-cursor-text-style": "bold",
        "button-focus-text-style": "bold reverse",
    },
)

EAGLEDECK_ANSI = Theme(
    name="eagledeck-ansi",
    ansi=True,
    primary="ansi_cyan",
    secondary="ansi_blue",
    accent="ansi_yellow",
    foreground="ansi_default",
    background="ansi_default",
    surface="ansi_default",
    panel="ansi_default",
    success="ansi_green",
    warning="ansi_yellow",
    error="ansi_red",
    dark=True,
    variables={
        "ansi-background": "ansi_black",
        "ansi-foreground": "ansi_white",
        "border": "ansi_bright_black",
        "border-blurred": "ansi_bright_black",
        "block-cursor-foreground": "ansi_black",
        "block-cursor-background": "ansi_cyan",
        "input-cursor-background": "ansi_default",
        "input-cursor-foreground": "ansi_default",
        "input-cursor-text-style": "reverse",
    },
)
"""For terminals with 16 colours, where the nearest match of a true colour may be the background."""

THEMES = (EAGLEDECK, EAGLEDECK_LIGHT, EAGLEDECK_ANSI)

_ANSI = {
    "ink-title": "ansi_default",
    "ink-muted": "ansi_bright_black",
    "ink-faint": "ansi_bright_black",
    "ink-rule": "ansi_bright_black",
    "ink-track": "ansi_bright_black",
    "ink-axis": "ansi_bright_black",
    "series-1": "ansi_cyan",
    "series-2": "ansi_yellow",
    "series-3": "ansi_green",
    "series-4": "ansi_magenta",
    "series-5": "ansi_bright_yellow",
    "series-6": "ansi_bright_magenta",
    "series-7": "ansi_bright_cyan",
    "series-8": "ansi_bright_green",
}
_BAND_BLEND = 0.58


def variable_defaults(theme: Theme) -> dict[str, str]:
    """Values of `$ink-*`, `$series-1..8` and `$band-1..8` for a theme that does not set them: any theme can be chosen.

    Band n is series n faded towards the background: the envelope behind a smoothed curve.
    """
    if theme.ansi:
        bands = {f"band-{n}": "ansi_bright_black" for n in range(1, 9)}
        return {**_ANSI, **bands}
    background = Color.parse(theme.background or ("#121212" if theme.dark else "#efefef"))
    foreground = Color.parse(theme.foreground or background.inverse.hex)
    named = [theme.primary, theme.accent, theme.success, theme.secondary, theme.warning, theme.error]
    series = [Color.parse(value) for value in named if value] + [foreground, foreground]
    values = {
        "ink-title": foreground.blend(background, 0.15).hex,
        "ink-muted": foreground.blend(background, 0.4).hex,
        "ink-faint": foreground.blend(background, 0.6).hex,
        "ink-rule": foreground.blend(background, 0.8).hex,
        "ink-track": foreground.blend(background, 0.8).hex,
        "ink-axis": foreground.blend(background, 0.65).hex,
    }
    for number in range(1, 9):
        own = theme.variables.get(f"series-{number}")
        color = Color.parse(own) if own else series[(number - 1) % len(series)]
        values[f"series-{number}"] = color.hex
        values[f"band-{number}"] = color.blend(background, _BAND_BLEND).hex
    return values
