"""The picture of a chart: axes with round ticks, a faint grid, curves over their envelopes. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from console.widgets.chart.columns import Track
from console.widgets.chart.raster import BRAILLE, Marks, compose, polyline
from console.widgets.chart.scale import Scale, labels, scale_of, ticks
from console.widgets.ink import Line, Span, fit, runs, width_of

POINTS_MARKED = 40
"""A curve of at most this many points that is drawn with points gets a sign at each of them."""


@dataclass(frozen=True)
class Series:
    """A curve in the picture. `color` is a series number; `points` marks single points: colour is not the only sign."""

    label: str
    color: int
    track: Track
    points: bool = False


@dataclass(frozen=True)
class View:
    """How to look at it: logarithmic y, the unit of x, and the characters to draw with."""

    log_y: bool = False
    x_unit: str = "step"
    marks: Marks = BRAILLE


def can_log(series: Sequence[Series]) -> bool:
    """A log scale needs a positive value."""
    return any(low > 0 for one in series for low in one.track.lows)


def draw(
    series: Sequence[Series], width: int, height: int, view: View | None = None, empty: Sequence[Line] = ()
) -> list[Line]:
    """The chart in exactly `width` x `height` cells; `empty` stands in its middle when there is nothing to draw."""
    view = view or View()
    xs = [x for one in series for x in one.track.xs[:1] + one.track.xs[-1:]]
    ys = [y for one in series for y in (*one.track.lows, *one.track.highs) if y == y]
    if height < 2 or width < 8 or not xs or not ys:
        return _blank(width, height, empty)
    log = view.log_y and can_log(series)
    x_scale = scale_of(xs)
    if min(xs) >= 0 and x_scale.low < 0:
        x_scale = Scale(0.0, x_scale.high)
    y_scale = scale_of(ys, log, room=0.02)
    rows = height - 1
    marks = view.marks
    names = _rows_of_ticks(y_scale, rows)
    gutter = max((cell_len(name) for name in names.values()), default=1)
    columns = width - gutter - 1
    if columns < 4:
        return _blank(width, height, empty)
    under = [[(marks.grid, "grid")] * columns if row in names else [(" ", "")] * columns for row in range(rows)]
    dots, lines = columns * marks.across, rows * marks.down
    layers: list[tuple[int, list[int], str]] = []
    signs: list[tuple[int, int, str]] = []
    for one in series:
        _add(layers, signs, one, (x_scale, y_scale), (dots, lines), marks)
    layers.sort(key=lambda layer: layer[0])
    body = compose([(dots, role) for _, dots, role in layers], under, marks)
    for column, row, role in signs:
        body[row] = _put(body[row], column, (marks.point, role))
    out: list[Line] = []
    for row, cells in enumerate(body):
        name = names.get(row, "")
        axis = "┤" if name else "│"
        out.append((((name.rjust(gutter)), "dim"), (axis, "axis"), *cells))
    out.append(_x_axis(x_scale, gutter, columns, view.x_unit))
    return [fit(line, width) for line in out]


def _add(
    layers: list[tuple[int, list[int], str]],
    signs: list[tuple[int, int, str]],
    one: Series,
    scales: tuple[Scale, Scale],
    size: tuple[int, int],
    marks: Marks,
) -> None:
    """Envelopes lie lowest, then curves marked with points, then the others: a sparse curve never hides a dense one."""
    x_scale, y_scale = scales
    dots, lines = size
    track = one.track
    across = [x_scale.share(x) for x in track.xs]
    envelope: list[tuple[float, float]] = []
    for x, low, high in zip(across, track.lows, track.highs):
        envelope.append((x, y_scale.share(low) if low == low else low))
        if high != low and high == high:
            envelope.append((x, y_scale.share(high)))
    if track.smooth:
        smooth = [(x, y_scale.share(y) if y == y else y) for x, y in zip(across, track.smooth)]
        layers.append((0, polyline(envelope, dots, lines), f"band-{one.color}"))
        layers.append((2, polyline(smooth, dots, lines), f"series-{one.color}"))
    else:
        layers.append((1 if one.points else 2, polyline(envelope, dots, lines), f"series-{one.color}"))
    if one.points and len(track.xs) <= POINTS_MARKED:
        for x, value in zip(across, track.highs):
            if value == value:
                column = round(x * (dots - 1)) // marks.across
                row = round((1.0 - y_scale.share(value)) * (lines - 1)) // marks.down
                signs.append((column, min(row, lines // marks.down - 1), f"series-{one.color}-strong"))


def _rows_of_ticks(scale: Scale, rows: int) -> dict[int, str]:
    """Tick labels by row."""
    found = ticks(scale, max(3, rows // 3))
    out: dict[int, str] = {}
    for value, name in zip(found, labels(found)):
        row = min(rows - 1, max(0, math.floor((1.0 - scale.share(value)) * rows)))
        out[row] = name
    return out


def _x_axis(scale: Scale, gutter: int, columns: int, unit: str) -> Line:
    count = max(3, columns // 9)
    found = ticks(scale, count)
    if unit == "step":
        found = [value for value in found if value == round(value)] or found
    cells: list[Span] = [("─", "axis")] * columns
    free_from = 0
    end = columns - len(unit) - 2
    for value, name in zip(found, labels(found)):
        middle = round(scale.share(value) * (columns - 1))
        start = max(0, middle - len(name) // 2)
        if start < free_from or start + len(name) > end:
            continue
        for offset, letter in enumerate(name):
            cells[start + offset] = (letter, "dim")
        free_from = start + len(name) + 2
    if columns >= len(unit) + 6:
        for offset, letter in enumerate(f" {unit}"):
            cells[columns - len(unit) - 1 + offset] = (letter, "dim")
    return ((" " * gutter, ""), ("└", "axis"), *runs(cells))


def _put(line: Line, column: int, sign: Span) -> Line:
    """The line with one cell replaced; every character of a chart row is one cell wide."""
    out: list[Span] = []
    at = 0
    for text, role in line:
        end = at + len(text)
        if at <= column < end:
            out += [(text[: column - at], role), sign, (text[column - at + 1 :], role)]
        else:
            out.append((text, role))
        at = end
    return tuple(span for span in out if span[0])


def _blank(width: int, height: int, said: Sequence[Line]) -> list[Line]:
    """Nothing but what is said, as one block in the middle: left-aligned, so that columns in it stay columns.

    With too few rows the blank lines go first, the last one before the others; then what is farthest from the line that
    stands out.
    """
    out: list[Line] = [fit((), width) for _ in range(height)]
    shown = list(said)
    while len(shown) > height and () in shown:
        del shown[len(shown) - 1 - shown[::-1].index(())]
    while len(shown) > max(0, height):
        strong = next((row for row, line in enumerate(shown) if any(role == "strong" for _, role in line)), 0)
        del shown[1 if strong >= height > 1 else -1]
    left = max(0, width - max((width_of(line) for line in shown), default=0)) // 2
    top = (height - len(shown)) // 2
    for row, line in enumerate(shown):
        out[top + row] = fit([(" " * left, ""), *line], width)
    return out
