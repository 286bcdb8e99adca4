"""Which curves belong to one picture: loss, accuracy by position, acceptance length, speed, learning rate, norm.

Pure functions over snapshot curves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from console.format import number, short_count
from console.snapshot import Curve
from console.widgets.chart.columns import Track, present, track
from console.widgets.chart.picture import Series
from console.widgets.ink import Part, Span


@dataclass(frozen=True)
class ChartView:
    """One picture. `members` are (curve name, label, drawn with points)."""

    name: str
    members: tuple[tuple[str, str, bool], ...]
    digits: int = 3
    lower_is_better: bool = False


_FIXED = (
    ChartView("loss", (("train/loss", "train", False), ("val/loss", "val", True)), 3, True),
    ChartView("acceptance length", (("val/acceptance_length", "simulated", True),), 2),
    ChartView("tokens/s", (("tokens_per_s", "tokens/s", False),), 0),
    ChartView("learning rate", (("lr", "lr", False),), 6),
    ChartView("gradient norm", (("grad_norm", "norm", False),), 3),
)


def views_of(curves: Sequence[Curve]) -> list[ChartView]:
    """The pictures that these curves can fill, loss first."""
    names = {curve.name for curve in curves if any(value is not None for value in curve.values)}
    found = [view for view in _FIXED if any(member[0] in names for member in view.members)]
    for prefix in ("val/acc_", "train/acc_"):
        found_places = (name.removeprefix(prefix) for name in names if name.startswith(prefix))
        places = sorted(int(place) for place in found_places if place.isdecimal() and len(place) <= 2)
        if places:
            members = tuple((f"{prefix}{place}", f"{place + 1}", prefix.startswith("val")) for place in places[:8])
            found.insert(1 if found and found[0].name == "loss" else 0, ChartView("accuracy by position", members, 3))
            break
    return found


class TrackStore:
    """Tracks by curve and x unit, made once for each new curve. Curves are compared by identity first."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[Curve, Track]] = {}

    def track(self, curve: Curve, siblings: Sequence[Curve], x_unit: str) -> Track:
        known = self._known.get((curve.name, x_unit))
        if known is not None and (known[0] is curve or known[0] == curve):
            return known[1]
        rows, values = present(curve, siblings)
        if x_unit == "epoch":
            xs = [math.nan if (epoch := curve.epochs[row]) is None else epoch for row in rows]
        else:
            xs = [curve.steps[row] for row in rows]
        made = track(xs, values)
        self._known[curve.name, x_unit] = (curve, made)
        return made


def series_of(view: ChartView, curves: Sequence[Curve], store: TrackStore, x_unit: str) -> list[Series]:
    """The curves of a picture that have a point, in its order, coloured by their place in it."""
    by_name = {curve.name: curve for curve in curves}
    found = []
    for place, (name, label, points) in enumerate(view.members):
        curve = by_name.get(name)
        if curve is None:
            continue
        made = store.track(curve, curves, x_unit)
        if made.last is not None:
            found.append(Series(label, place + 1, made, points))
    return found


def has_epochs(curves: Sequence[Curve]) -> bool:
    return any(epoch is not None for curve in curves for epoch in curve.epochs[-1:] + curve.epochs[:1])


def legend(view: ChartView, series: Sequence[Series]) -> list[Part]:
    """`train ─ 1.842`, `val ● 1.861`, `best 1.839`: the newest values, each with the sign of its curve."""
    parts: list[Part] = []
    for place, one in enumerate(series):
        sign = "●" if one.points else "─"
        spans: list[Span] = [(sign, f"series-{one.color}-strong"), (f" {one.label} ", "label")]
        value = _value(one.track.smooth_last(), view.digits)
        spans.append((value, "strong" if place < 2 else "value"))
        parts.append((place, spans))
    if view.lower_is_better:
        judged = next((one for one in series if one.points), None)
        if judged is not None and judged.track.best is not None:
            parts.append((len(series) + 1, [("best ", "label"), (_value(judged.track.best, view.digits), "value")]))
    return parts


def _value(value: float | None, digits: int) -> str:
    if value is not None and digits == 0:
        return short_count(value)
    if value is not None and 0 < abs(value) < 10 ** (1 - digits):
        return f"{value:.2e}"
    return number(value, digits)
