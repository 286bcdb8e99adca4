"""Lines always have the width they are given, in cells, and say where something was cut."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.widgets.ink import bar, clip, clip_middle, fit, heading, join, pad, right, spread, text_of, width_of

texts = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), max_size=30)
widths = st.integers(0, 40)
lines = st.lists(st.tuples(texts, st.sampled_from(["", "dim", "bad"])), max_size=5)


@given(lines, widths)
def test_fit_has_exactly_the_width(line: list[tuple[str, str]], width: int) -> None:
    assert width_of(fit(line, width)) == width


@given(lines, st.lists(st.tuples(st.integers(0, 9), lines), max_size=4), widths)
def test_rows_of_parts_have_exactly_the_width(
    left: list[tuple[str, str]], parts: list[tuple[int, list[tuple[str, str]]]], width: int
) -> None:
    assert width_of(spread(left, parts, width)) == width
    assert width_of(join(parts, width)) == width
    assert width_of(heading("title", left, width, left)) == width


@given(texts, widths)
def test_clip_stays_within_the_width(text: str, width: int) -> None:
    for cut in (clip(text, width), clip_middle(text, width)):
        assert width_of([(cut, "")]) <= width
    assert width_of([(pad(text, width), "")]) == width_of([(right(text, width), "")]) == width


def test_a_cut_is_marked() -> None:
    assert clip("checkpoint", 6) == "check…"
    assert clip_middle("/data/models/Kimi-K2.5", 13) == "/data/…i-K2.5"
    assert clip("漢字漢字", 5) == "漢字…"


def test_parts_of_the_highest_rank_go_first_and_keep_their_places() -> None:
    parts = [(2, [("plan 3", "")]), (9, [("verifier", "")]), (1, [("14:02:07", "")])]
    assert text_of(spread([("LIVE", "")], parts, 40)) == "LIVE        plan 3   verifier   14:02:07"
    assert text_of(spread([("LIVE", "")], parts, 26)).split() == ["LIVE", "plan", "3", "14:02:07"]
    assert text_of(spread([("LIVE", "")], parts, 16)).split() == ["LIVE", "14:02:07"]


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (None, "──────────"),
        (math.nan, "──────────"),
        (0.0, "──────────"),
        (0.001, "╸─────────"),
        (0.5, "━━━━━─────"),
        (0.999, "━━━━━━━━━╸"),
        (1.0, "━━━━━━━━━━"),
        (7.0, "━━━━━━━━━━"),
    ],
)
def test_a_bar_is_empty_or_full_only_when_it_is(share: float | None, text: str) -> None:
    assert text_of(bar(share, 10, "good")) == text


def test_a_bar_shows_its_mark_over_filled_and_empty_cells() -> None:
    assert text_of(bar(0.2, 10, "good", 0.85)) == "━━──────│─"
    assert text_of(bar(0.95, 10, "good", 0.85)) == "━━━━━━━━│╸"
