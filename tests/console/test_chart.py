"""The line chart: scales, reduction, gaps, and pictures that are known."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.snapshot import Curve
from console.widgets.chart.columns import LIMIT, present, track
from console.widgets.chart.line_chart import marks_for
from console.widgets.chart.picture import Series, View, can_log, draw
from console.widgets.chart.raster import ASCII, BLOCK, BRAILLE, compose, polyline
from console.widgets.chart.scale import Scale, labels, scale_of, ticks
from console.widgets.chart.views import TrackStore, legend, series_of, views_of
from console.widgets.ink import text_of, width_of

floats = st.floats(allow_nan=True, allow_infinity=True)


def picture(series: list[Series], width: int, height: int, view: View | None = None) -> list[str]:
    return [text_of(line).rstrip() for line in draw(series, width, height, view)]


def line(xs: list[float], ys: list[float], label: str = "train", color: int = 1, points: bool = False) -> Series:
    return Series(label, color, track(xs, ys), points)


# ---------------------------------------------------------------- scales


@pytest.mark.parametrize(
    ("low", "high", "count", "expected"),
    [
        (0.0, 45_000.0, 5, [0, 10_000, 20_000, 30_000, 40_000]),
        (1.84, 6.28, 4, [2, 4, 6]),
        (0.0, 1.0, 5, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (-3.0, 3.0, 3, [-2, 0, 2]),
    ],
)
def test_ticks_are_round(low: float, high: float, count: int, expected: list[float]) -> None:
    assert ticks(Scale(low, high), count) == pytest.approx(expected)


def test_ticks_of_a_log_scale_are_its_decades_and_their_round_parts() -> None:
    assert ticks(Scale(0.9, 11, True), 4) == pytest.approx([1, 2, 5, 10])
    assert ticks(Scale(0.9, 110, True), 4) == pytest.approx([1, 3, 10, 30, 100])
    assert ticks(Scale(1.7, 6.5, True), 3) == pytest.approx([2, 5])
    assert ticks(Scale(1e-6, 1e3, True), 3) == pytest.approx([1e-6, 1e-2, 1e2])


@given(st.floats(-1e12, 1e12), st.floats(1e-9, 1e12), st.integers(1, 20))
def test_ticks_lie_inside_and_ascend(low: float, size: float, count: int) -> None:
    scale = scale_of([low, low + size])
    found = ticks(scale, count)
    spare = (scale.high - scale.low) * 1e-6
    assert all(scale.low - spare <= value <= scale.high + spare for value in found)
    assert found == sorted(found)
    assert len(found) <= 3 * count + 3
    assert len(set(labels(found))) == len(found)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 5000, 10_000], ["0", "5k", "10k"]),
        ([0, 2_500_000, 5_000_000], ["0", "2.5M", "5.0M"]),
        ([1.8, 2.0, 2.2], ["1.8", "2.0", "2.2"]),
        ([0.0001, 0.0002], ["1e-04", "2e-04"]),
        ([0.01, 0.1, 1, 10], ["0.01", "0.1", "1", "10"]),
        ([], []),
    ],
)
def test_labels_tell_neighbours_apart(values: list[float], expected: list[str]) -> None:
    assert labels(values) == expected


@given(st.lists(floats, max_size=20), st.booleans())
def test_a_scale_holds_every_finite_value(values: list[float], log: bool) -> None:
    scale = scale_of(values, log, room=0.02)
    assert scale.low < scale.high
    for value in values:
        if abs(value) <= 1e100 and (value > 1e-100 or not log):
            assert -0.001 <= scale.share(value) <= 1.001


# ---------------------------------------------------------------- reduction


def test_a_spike_survives_the_reduction_of_a_million_points() -> None:
    ys = [2.0] * 1_000_000
    ys[123_457] = 97.0
    made = track(range(1_000_000), ys)
    assert len(made.xs) == LIMIT
    assert max(made.highs) == 97.0
    at = made.xs[made.highs.index(97.0)]
    assert abs(at - 123_457) < 1_000_000 / LIMIT


def test_smoothing_divides_its_start_out() -> None:
    made = track(range(1000), [5.0] * 1000)
    assert made.smooth == pytest.approx([5.0] * 1000)


def test_smoothing_follows_the_curve_and_not_its_noise() -> None:
    rng = random.Random(1)
    made = track(range(1000), [3.0 + rng.choice([-1, 1]) for _ in range(1000)])
    assert abs(sum(made.smooth[500:]) / 500 - 3.0) < 0.1
    assert max(made.smooth[100:]) < 3.9


def test_a_gap_stays_a_gap_and_does_not_enter_the_mean() -> None:
    ys = [1.0] * 400
    ys[200] = math.nan
    ys[201] = math.inf
    made = track(range(400), ys)
    assert [index for index, value in enumerate(made.lows) if value != value] == [200, 201]
    assert made.smooth[202:] == pytest.approx([1.0] * 198)
    assert (made.last, made.best) == (1.0, 1.0)


def test_a_short_curve_is_not_smoothed() -> None:
    made = track(range(100), [float(i) for i in range(100)])
    assert made.smooth == ()
    assert made.smooth_last() == 99.0


def test_nothing_known_is_nothing_drawn() -> None:
    made = track([1, 2], [math.nan, math.nan])
    assert (made.last, made.best, made.smooth_last()) == (None, None, None)
    assert track([], []).xs == ()


def curve(name: str, *values: float | None) -> Curve:
    return Curve(name, tuple(range(len(values))), (None,) * len(values), values)


def test_rows_of_other_metrics_are_left_out_and_a_nan_of_the_stage_is_a_gap() -> None:
    train = curve("train/loss", 3.0, None, None, 2.0)
    rate = curve("lr", 1e-4, None, 1e-4, 1e-4)
    val = curve("val/loss", None, 3.1, None, None)
    rows, values = present(train, (train, rate, val))
    assert rows == [0, 2, 3]
    assert values[0] == 3.0
    assert math.isnan(values[1])
    assert values[2] == 2.0
    assert present(val, (train, rate, val)) == ([1], [3.1])


def test_a_curve_alone_keeps_its_gaps() -> None:
    rows, values = present(curve("train/loss", 3.0, None, 2.0), ())
    assert rows == [0, 1, 2]
    assert math.isnan(values[1])


# ---------------------------------------------------------------- rasters


def test_braille_dots_are_where_the_standard_has_them() -> None:
    """U+2800 plus dots 1-8, columns 1237 and 4568 (Unicode 15, Braille Patterns)."""
    blank = [[(" ", "")]]
    for dot, (column, row) in enumerate([(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3)]):
        layer = [0, 0]
        layer[column] = 1 << row
        assert text_of(compose([(layer, "a")], blank, BRAILLE)[0]) == chr(0x2800 + (1 << dot))


def test_the_topmost_layer_owns_its_cell() -> None:
    under = [[("-", "grid"), ("-", "grid"), ("-", "grid")]]
    found = compose([([0b11, 0b01, 0], "band"), ([0, 0b10, 0], "line")], under, BLOCK)
    assert found == [(("█", "band"), ("▄", "line"), ("-", "grid"))]


def test_a_line_has_no_holes() -> None:
    layer = polyline([(0.0, 0.0), (0.3, 1.0), (1.0, 0.1)], 30, 24)
    assert all(layer)
    for left, right in pairwise(layer):
        touching = left | left << 1 | left >> 1
        assert touching & right, "neighbouring columns must touch"


def test_a_nan_breaks_the_line() -> None:
    layer = polyline([(0.0, 0.5), (0.2, 0.5), (0.5, math.nan), (0.8, 0.5), (1.0, 0.5)], 11, 4)
    assert [bool(column) for column in layer] == [True, True, True] + [False] * 5 + [True, True, True]


# ---------------------------------------------------------------- pictures


FALLING = {
    BRAILLE: [
        "4┤⠉⠒⠤⣀┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈",
        " │    ⠉⠑⠢⢄⡀",
        "2┤┈┈┈┈┈┈┈┈⠈⠉⠒⠤⣀⡀┈┈┈┈┈┈┈┈",
        " │             ⠈⠑⠢⢄⣀",
        "0┤┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈⠉⠒⠤⣀",
        " └0─────────5────── step",
    ],
    BLOCK: [
        "4┤▀▀▄▄──────────────────",
        " │    ▀▀▄▄▄",
        "2┤─────────▀▀▄▄─────────",
        " │             ▀▀▀▄▄",
        "0┤──────────────────▀▀▄▄",
        " └0─────────5────── step",
    ],
    ASCII: [
        "4┤''..------------------",
        " │    ''...",
        "2┤---------''..---------",
        " │             '''..",
        "0┤------------------''..",
        " └0─────────5────── step",
    ],
}


@pytest.mark.parametrize("marks", [BRAILLE, BLOCK, ASCII], ids=lambda marks: marks.name)
def test_a_falling_line(marks: Any) -> None:
    assert picture([line([0, 10], [4.0, 0.0])], 24, 6, View(marks=marks)) == FALLING[marks]


def test_nan_and_infinity_leave_gaps_that_no_line_bridges() -> None:
    ys = [1, 1, math.nan, 3, 3, math.inf, 2]
    assert picture([line([0, 1, 2, 3, 4, 5, 6], ys)], 24, 6, View(marks=BLOCK)) == [
        "3┤──────────▀▀▀▀▀───────",
        " │",
        "2┤─────────────────────▀",
        " │",
        "1┤▄▄▄▄▄─────────────────",
        " └0──────2──────4── step",
    ]


def test_powers_of_ten_are_a_straight_line_on_a_log_axis() -> None:
    assert picture([line([0, 1, 2], [1.0, 10.0, 100.0])], 24, 7, View(log_y=True)) == [
        "100┤┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈⣀⠔⠊",
        "   │              ⡠⠔⠉",
        "   │          ⢀⡠⠒⠉",
        " 10┤┈┈┈┈┈┈┈⣀⠤⠒⠁┈┈┈┈┈┈┈┈┈",
        "   │   ⢀⡠⠔⠉",
        "  1┤⡠⠔⠊⠁┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈",
        "   └0─────────1──── step",
    ]


def test_a_constant_is_drawn_in_the_middle() -> None:
    found = picture([line([0, 1, 2], [2.0, 2.0, 2.0])], 20, 6, View(marks=BLOCK))
    rows = [index for index, text in enumerate(found) if "▀" in text or "▄" in text]
    assert rows == [2]


def test_sparse_points_get_a_sign_each() -> None:
    found = "\n".join(picture([line([1, 2, 3], [3.0, 2.0, 1.0], points=True)], 30, 8))
    assert found.count("●") == 3


@given(
    st.lists(st.tuples(floats, floats), max_size=30),
    st.integers(0, 60),
    st.integers(0, 20),
    st.booleans(),
    st.sampled_from([BRAILLE, BLOCK, ASCII]),
)
def test_any_data_in_any_size_fits(
    points: list[tuple[float, float]], width: int, height: int, log: bool, marks: Any
) -> None:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    found = draw([line(xs, ys)], width, height, View(log, "epoch", marks), ((("nothing", ""),),))
    assert len(found) == height
    assert all(width_of(row) == width for row in found)


def test_a_log_axis_needs_a_positive_value() -> None:
    assert can_log([line([0, 1], [-1.0, 2.0])])
    assert not can_log([line([0, 1], [-1.0, 0.0])])
    negative = [line([0, 1], [-1.0, 0.0])]
    assert picture(negative, 30, 8, View(log_y=True)) == picture(negative, 30, 8)


def test_an_empty_chart_says_why() -> None:
    found = [text_of(row) for row in draw((), 30, 5, empty=((("s starts the run", ""),), (), (("generate", ""),)))]
    assert [text.strip() for text in found] == ["", "s starts the run", "", "generate", ""]
    assert found[1].index("s") == found[3].index("g")


# ---------------------------------------------------------------- views


def test_views_are_those_that_can_be_filled(scenes: Any) -> None:
    names = [view.name for view in views_of(scenes.curves())]
    assert names == ["loss", "accuracy by position", "acceptance length", "learning rate", "gradient norm"]
    assert views_of(()) == []
    assert views_of((curve("train/loss", None, None),)) == []


def test_the_legend_tells_the_newest_and_the_best(scenes: Any) -> None:
    curves = (
        Curve("train/loss", (1.0, 2.0, 3.0), (0.1, 0.2, 0.3), (3.0, 2.5, 2.25)),
        Curve("val/loss", (1.0, 2.0, 3.0), (0.1, 0.2, 0.3), (3.1, 2.0, 2.4)),
    )
    view = views_of(curves)[0]
    series = series_of(view, curves, TrackStore(), "step")
    told = ["".join(text for text, _ in spans) for _, spans in legend(view, series)]
    assert told == ["─ train 2.250", "● val 2.400", "best 2.000"]


def test_tracks_are_made_once_for_a_curve(scenes: Any) -> None:
    curves, store = scenes.curves(), TrackStore()
    view = views_of(curves)[0]
    first = series_of(view, curves, store, "step")
    again = series_of(view, tuple(curves), store, "step")
    assert [a.track is b.track for a, b in zip(first, again)] == [True, True]
    longer = scenes.curves(steps=20_000)
    assert series_of(view, longer, store, "step")[0].track is not first[0].track


def test_epochs_can_be_the_axis(scenes: Any) -> None:
    curves = scenes.curves(steps=18_000, per_epoch=9000)
    series = series_of(views_of(curves)[0], curves, TrackStore(), "epoch")
    assert series[0].track.xs[-1] == pytest.approx(2.0)
    assert "epoch" in picture(series, 60, 10, View(x_unit="epoch"))[-1]


def test_characters_follow_the_terminal() -> None:
    assert marks_for({"TERM": "xterm-256color"}, "utf-8") is BRAILLE
    assert marks_for({"TERM": "linux"}, "UTF-8") is BLOCK
    assert marks_for({"TERM": "xterm"}, "ANSI_X3.4-1968") is ASCII
    assert marks_for({}, None) is BRAILLE


def test_an_empty_chart_with_few_rows_keeps_the_line_that_stands_out() -> None:
    said = ((("now", ""),), (), *(((name, "strong" if name == "c" else "dim"),) for name in "abcd"))

    def rows(height: int) -> list[str]:
        return [text_of(row).strip() for row in draw((), 30, height, empty=said)]

    assert rows(5) == ["now", "a", "b", "c", "d"]
    assert rows(4) == ["now", "a", "b", "c"]
    assert rows(2) == ["now", "c"]
