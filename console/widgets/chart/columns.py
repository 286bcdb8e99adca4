"""A curve made ready to be drawn at any size: at most LIMIT points, each with its extremes and a smoothed value.

Plain Python on purpose: the host sends at most a few hundred points a curve, for which importing numpy costs far more
than it saves. Longer curves are reduced once, when they arrive, by minimum and maximum, so that a spike survives and a
redraw never touches the original points. Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from console.snapshot import Curve
from console.widgets.chart.scale import drawable

LIMIT = 1200
"""Points kept of a curve: beyond the dot columns of any terminal in use."""

SMOOTHING_SHARE = 100
"""The smoothing window is this part of the curve: short curves are drawn as they are."""


@dataclass(frozen=True)
class Track:
    """A curve ready to be drawn. Equal lengths; NaN in `lows`, `highs` and `smooth` is a gap; `xs` ascend.

    `smooth` is empty when the curve is too short to smooth. `last` is the newest finite value, `best` the lowest one.
    """

    xs: tuple[float, ...]
    lows: tuple[float, ...]
    highs: tuple[float, ...]
    smooth: tuple[float, ...]
    last: float | None
    best: float | None

    def smooth_last(self) -> float | None:
        """The newest smoothed value where there is one: what a noisy curve stands at."""
        return next((value for value in reversed(self.smooth) if value == value), self.last)


def present(curve: Curve, siblings: Sequence[Curve]) -> tuple[list[int], list[float]]:
    """Rows of `curve` that belong to it, and their values, NaN where it has none.

    All curves of an output share their rows, so most rows of a validation curve hold nothing: these are left out. A row
    in which a metric logged together with this one has a value while this one has none is a NaN of the stage: it stays,
    as a gap. Where nothing is logged together with it, a row without any value is the gap.
    """
    others = [other for other in siblings if other.name != curve.name and len(other.values) == len(curve.values)]
    family = [other.values for other in others if _family(other.name) == _family(curve.name)]
    strangers = [] if family else [other.values for other in others]
    rows, values = [], []
    for row, value in enumerate(curve.values):
        if value is not None:
            rows.append(row)
            values.append(value if math.isfinite(value) else math.nan)
        elif any(other[row] is not None for other in family) or (
            not family and all(other[row] is None for other in strangers)
        ):
            rows.append(row)
            values.append(math.nan)
    return rows, values


def _family(name: str) -> str:
    """Metrics that a stage logs together: those of validation, and all others."""
    return "val" if name.startswith("val/") else "train"


def track(xs: Sequence[float], ys: Sequence[float], limit: int = LIMIT) -> Track:
    """Reduce and smooth one curve; `ys` hold NaN for gaps. Points without a place on the x axis are left out."""
    points = [(x, y if drawable(y) else math.nan) for x, y in zip(xs, ys) if drawable(x)]
    if any(points[i][0] > points[i + 1][0] for i in range(len(points) - 1)):
        points.sort(key=lambda point: point[0])
    count = len(points)
    window = count / SMOOTHING_SHARE
    smooth = _smooth([y for _, y in points], window) if window > 1.5 else []
    finite = [y for _, y in points if y == y]
    last = finite[-1] if finite else None
    best = min(finite) if finite else None
    if count <= limit:
        values = tuple(y for _, y in points)
        return Track(tuple(x for x, _ in points), values, values, tuple(smooth), last, best)
    kept_x, lows, highs, kept_smooth = [], [], [], []
    for index in range(limit):
        start, end = index * count // limit, (index + 1) * count // limit
        known = [y for _, y in points[start:end] if y == y]
        kept_x.append(points[(start + end - 1) // 2][0])
        lows.append(min(known, default=math.nan))
        highs.append(max(known, default=math.nan))
        kept_smooth.append(smooth[end - 1] if known else math.nan)
    return Track(tuple(kept_x), tuple(lows), tuple(highs), tuple(kept_smooth), last, best)


def _smooth(values: Sequence[float], window: float) -> list[float]:
    """Exponential mean with its start-up bias divided out; a NaN stays a gap and does not enter the mean."""
    beta = 1.0 - 1.0 / window
    mean, weight = 0.0, 0.0
    out = []
    for value in values:
        if value != value:
            out.append(math.nan)
            continue
        mean = beta * mean + (1.0 - beta) * value
        weight = beta * weight + (1.0 - beta)
        out.append(mean / weight)
    return out
