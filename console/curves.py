"""The curves of one stage output, filled in pieces: what arrived stays, and a reconnect asks only for what is missing.

Takes the columns of the `metrics` operation (remote/protocol.py) and gives snapshot curves. No I/O, no Textual.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from console.snapshot import Curve

POINTS = 600
"""Points asked for at once; the host thins to them by minimum and maximum, so spikes survive."""
MOST_ROWS = 4 * POINTS
"""Rows kept before the whole curve is asked for again, thinned."""

_AXES = ("step", "epoch", "t")


class CurveStore:
    """Rows by step of one output. `since` is the step to ask from, None for everything."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._generation: tuple[object, object] | None = None
        self._steps: list[float] = []
        self._epochs: list[float | None] = []
        self._values: dict[str, list[float | None]] = {}
        self._last: float | None = None
        self._curves: tuple[Curve, ...] | None = ()

    @property
    def since(self) -> float | None:
        """One step before the last one held: a validation row may follow at the same step as the training row."""
        if self._last is None or len(self._steps) > MOST_ROWS:
            return None
        return self._last - 1

    def add(self, reply: Mapping[str, Any], since: float | None) -> bool:
        """Merge a reply to a request made with `since`. False when the output changed, so that everything is needed."""
        generation = (reply.get("output"), reply.get("generation"))
        columns = reply.get("columns")
        if not isinstance(columns, Mapping):
            return True
        if since is not None and generation != self._generation:
            self._clear()
            return False
        if since is None:
            self._steps, self._epochs, self._values = [], [], {}
        self._generation = generation
        self._cut_after(since)
        self._append(columns, since)
        last = reply.get("last_step")
        if isinstance(last, int | float):
            self._last = float(last)
        elif self._steps:
            self._last = self._steps[-1]
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

    def _cut_after(self, since: float | None) -> None:
        keep = len(self._steps)
        while keep and since is not None and self._steps[keep - 1] > since:
            keep -= 1
        del self._steps[keep:], self._epochs[keep:]
        for values in self._values.values():
            del values[keep:]

    def _append(self, columns: Mapping[str, Any], since: float | None) -> None:
        steps = _column(columns.get("step"))
        epochs = _column(columns.get("epoch"))
        names = {name: _column(column) for name, column in columns.items() if name not in _AXES}
        for row, step in enumerate(steps):
            if step is None or (since is not None and step <= since):
                continue
            self._steps.append(step)
            self._epochs.append(epochs[row] if row < len(epochs) else None)
            for name, column in names.items():
                values = self._values.setdefault(name, [None] * (len(self._steps) - 1))
                values.append(column[row] if row < len(column) else None)
            for values in self._values.values():
                if len(values) < len(self._steps):
                    values.append(None)


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
