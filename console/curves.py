"""The curves of one stage output, filled in pieces: what arrived stays, and a reconnect asks only for what is missing.

Takes the columns of the `metrics` operation (remote/protocol.py) and gives snapshot curves. No I/O, no Textual.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from console.snapshot import Curve

POINTS = 600
"""Points of a whole curve; the host thins to them by minimum and maximum, so spikes survive."""
FIRST_POINTS, LEAST_POINTS = 32, 16
"""Points asked for at once where it isn't known yet how many the link carries."""
MOST_ROWS = 4 * POINTS
"""Rows kept before they are asked for again, thinned."""

_AXES = ("step", "epoch", "t")


@dataclass(frozen=True)
class Ask:
    """At most ``points`` rows after step ``since`` and up to step ``until``, None being the begin and the end."""

    points: int
    since: float | None = None
    until: float | None = None

    def args(self) -> dict[str, Any]:
        """Arguments of `metrics`, beside run and stage."""
        steps = {"since_step": self.since, "until_step": self.until}
        return {"points": self.points, **{name: step for name, step in steps.items() if step is not None}}


class CurveStore:
    """Rows by step of one output: first in few points from end to end, then finer, the newest steps first."""

    def __init__(self) -> None:
        self._generation: tuple[object, object] | None = None
        self._steps: list[float] = []
        self._epochs: list[float | None] = []
        self._values: dict[str, list[float | None]] = {}
        self._last: float | None = None
        self._rough: list[tuple[float, float, int]] = []
        """Spans of steps, the newest last, that are to be asked for again in so many points."""
        self._curves: tuple[Curve, ...] | None = ()

    def newest(self, points: int) -> Ask:
        """What was added, or all of it to begin with.

        From one step before the last one held: a validation row may follow at the same step as the training row.
        """
        return Ask(points, None if self._last is None else self._last - 1)

    def finer(self, points: int) -> Ask | None:
        """The newest steps of those that are held in too few points; None when there are none."""
        if not self._rough:
            return None
        low, high, wanted = self._rough[-1]
        if points >= wanted:
            return Ask(wanted, low, high)
        return Ask(points, max(low, math.floor(high - (high - low) * points / wanted)), high)

    def add(self, reply: Mapping[str, Any], ask: Ask) -> bool:
        """Merge the reply to ``ask``. False when the output changed, so that all of it is needed."""
        columns = reply.get("columns")
        if not isinstance(columns, Mapping):
            self._rough = []
            return True
        generation = (reply.get("output"), reply.get("generation"))
        if ask.since is not None and generation != self._generation:
            self._last, self._rough = None, []
            return False
        if ask.since is None:
            self._values, self._rough = {}, []
        self._generation = generation
        low, high = (-math.inf if ask.since is None else ask.since), (math.inf if ask.until is None else ask.until)
        self._replace(columns, low, high)
        if ask.until is None:
            self._go_on_from(reply, ask)
        else:
            self._refined(ask)
        self._curves = None
        return True

    def curves(self) -> tuple[Curve, ...]:
        """The curves by name, steps ascending. The same tuple until something was added."""
        if self._curves is None:
            steps, epochs = tuple(self._steps), tuple(self._epochs)
            self._curves = tuple(
                Curve(name, steps, epochs, tuple(values)) for name, values in sorted(self._values.items())
            )
        return self._curves

    def _go_on_from(self, reply: Mapping[str, Any], ask: Ask) -> None:
        last, rows = reply.get("last_step"), reply.get("rows")
        if isinstance(last, int | float):
            self._last = float(last)
        elif self._steps:
            self._last = self._steps[-1]
        if not self._steps or self._last is None:
            return
        begin = self._steps[0] - 1
        if isinstance(rows, int) and rows > ask.points and ask.points < POINTS:
            self._rough.append((begin if ask.since is None else ask.since, self._last, POINTS))
        elif len(self._steps) > MOST_ROWS and not self._rough:
            self._rough.append((begin, self._last, POINTS))

    def _refined(self, ask: Ask) -> None:
        if self._rough:
            low, _, wanted = self._rough.pop()
            if ask.since is not None and ask.since > low and wanted > ask.points:
                self._rough.append((low, ask.since, wanted - ask.points))

    def _replace(self, columns: Mapping[str, Any], low: float, high: float) -> None:
        """Put the rows of ``columns`` after step ``low`` and up to ``high`` in the place of those held."""
        steps, epochs = _column(columns.get("step")), _column(columns.get("epoch"))
        rows = [row for row, step in enumerate(steps) if step is not None and low < step <= high]
        place = slice(bisect_right(self._steps, low), bisect_right(self._steps, high))
        held = len(self._steps)
        self._steps[place] = [step for row in rows if (step := steps[row]) is not None]
        self._epochs[place] = _rows(epochs, rows)
        names = {name: _column(column) for name, column in columns.items() if name not in _AXES}
        for name in {**self._values, **names}:
            self._values.setdefault(name, [None] * held)[place] = _rows(names.get(name, []), rows)


def last_value(curves: Sequence[Curve], name: str) -> float | None:
    """The newest known value of a curve."""
    for curve in curves:
        if curve.name == name:
            return next((value for value in reversed(curve.values) if value is not None), None)
    return None


def _column(column: object) -> list[float | None]:
    if not isinstance(column, list):
        return []
    return [float(v) if isinstance(v, int | float) and math.isfinite(v) else None for v in column]


def _rows(column: list[float | None], rows: list[int]) -> list[float | None]:
    return [column[row] if row < len(column) else None for row in rows]
