"""The overview and its dialogs as they were last looked at and found good: text and styles of the whole screen.

UPDATE_PICTURES=1 writes the pictures anew; the difference then belongs in the review.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

PICTURES = Path(__file__).parent / "snapshots"
DIALOGS = {
    "dialog_stop": ("training", "x"),
    "dialog_restart": ("failed", "n"),
    "dialog_restart_stage": ("failed", "n", "g"),
    "dialog_kill": ("training", "K"),
    "dialog_edit": ("done", "e", "enter", *"12000", "enter"),
    "dialog_help": ("training", "question_mark"),
}
"""What is pressed in which scene."""
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def style_word(style: Any) -> str:
    """`#62b5f7 on #0d1117 bold`."""
    flags = [name for name in ("bold", "reverse", "dim", "underline") if getattr(style, name)]
    return " ".join(
        [style.color.name if style.color else "-", "on", style.bgcolor.name if style.bgcolor else "-", *flags]
    )


def picture(app: Any) -> str:
    """The screen's text, then a map of its styles by a letter each, then what the letters mean."""
    legend: dict[str, str] = {}
    text, styles = [], []
    for strip in app.screen._compositor.render_strips():
        line, marks = "", ""
        for segment in strip:
            word = style_word(segment.style)
            letter = legend.setdefault(word, LETTERS[len(legend)])
            line += segment.text
            # Blanks show no foreground: their style matters only where it is seen.
            marks += "".join(letter if sign != " " or "reverse" in word else " " for sign in segment.text)
        text.append(line.rstrip())
        styles.append(marks.rstrip())
    used = "".join(styles)
    meaning = [f"{letter} {word}" for word, letter in legend.items() if letter in used]
    return "\n".join([*text, "", "-- styles", *styles, "", "-- legend", *meaning, ""])


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", ["before_start", "generating", "training", "done", "lost", "failed"])
async def test_the_overview_looks_as_it_did(scenes: Any, name: str, size: tuple[int, int]) -> None:
    async with scenes.console(scenes.STATES[name](), size=size) as (app, _, _):
        found = picture(app)
    compare(found, f"{name}-{size[0]}x{size[1]}.txt")


@pytest.mark.parametrize("size", [(60, 15), (80, 24)], ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", DIALOGS)
async def test_a_dialog_looks_as_it_did(scenes: Any, name: str, size: tuple[int, int]) -> None:
    scene, *keys = DIALOGS[name]
    async with scenes.console(scenes.STATES[scene](), size=size) as (app, pilot, _):
        await pilot.press(*keys)
        await app.workers.wait_for_complete()
        await pilot.pause()
        found = picture(app)
    compare(found, f"{name}-{size[0]}x{size[1]}.txt")


def compare(found: str, name: str) -> None:
    path = PICTURES / name
    if os.environ.get("UPDATE_PICTURES"):
        path.write_text(found, "utf-8")
    assert found == path.read_text("utf-8")


def test_every_picture_belongs_to_a_test(scenes: Any) -> None:
    names = {f"{name}-{size}.txt" for name in scenes.STATES for size in ("80x24", "120x40")}
    names |= {f"{name}-{size}.txt" for name in DIALOGS for size in ("60x15", "80x24")}
    assert {path.name for path in PICTURES.glob("*.txt")} == names
