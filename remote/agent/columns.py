"""Long series cut down to the points a chart can show, keeping every bucket's extremes. Pure; standard library only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

Column = Sequence[float]
"""NaN stands for "not measured at this row"."""


def decimate(columns: Mapping[str, Column], axes: Sequence[str], points: int) -> dict[str, list[float | None]]:
    """At most ``points`` rows of equally long ``columns``. NaN and infinities become None.

    Rows are put into buckets of equal count; a bucket gives two rows that carry each series' least and greatest value
    in the order they came. ``axes`` (step, time) keep their own values of the bucket's first and last row, so that an
    extreme is at most one bucket off. The last row is kept as it is. Series are rounded to six digits, axes are not.
    """
    count = len(next(iter(columns.values()))) if columns else 0
    if count <= max(points, 3):
        return {name: [_plain(value, name in axes) for value in column] for name, column in columns.items()}
    buckets = max(1, (points - 1) // 2)
    edges = [i * (count - 1) // buckets for i in range(buckets + 1)]
    out: dict[str, list[float | None]] = {}
    for name, column in columns.items():
        kept: list[float | None] = []
        for start, end in zip(edges, edges[1:]):
            if name in axes:
                kept += [_plain(column[start], True), _plain(column[end - 1], True)]
            else:
                kept += [_plain(value, False) for value in _extremes(column[start:end])]
        kept.append(_plain(column[count - 1], name in axes))
        out[name] = kept
    return out


def _extremes(values: Column) -> list[float]:
    seen = [value for value in values if math.isfinite(value)]
    if len(seen) < 2:
        return [*seen, math.nan, math.nan][:2]
    low, high = min(seen), max(seen)
    return [low, high] if seen.index(low) <= seen.index(high) else [high, low]


def _plain(value: float, exact: bool) -> float | None:
    if not math.isfinite(value):
        return None
    value = round(value, 3) if exact else float(f"{value:.6g}")
    return int(value) if value.is_integer() and abs(value) < 2**53 else value
