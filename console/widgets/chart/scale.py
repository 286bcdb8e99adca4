"""Axes: from values to shares of a length, ticks at 1, 2 or 5 times a power of ten, their labels. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

MOST, LEAST = 1e100, 1e-100
"""Beyond these a value is no measurement, and arithmetic on it could overflow."""
FLAT = 1e-5
"""A curve that varies by less than this part of its values is drawn flat: labels could not tell its ticks apart."""


def drawable(value: float) -> bool:
    """False for NaN, the infinities, and what is as good as infinite."""
    return abs(value) <= MOST


@dataclass(frozen=True)
class Scale:
    """A range of values, linear or logarithmic. `low < high`, both positive if `log`."""

    low: float
    high: float
    log: bool = False

    def share(self, value: float) -> float:
        """0.0 at `low`, 1.0 at `high`; a value that a log scale cannot hold lies at the bottom."""
        if not self.log:
            return (value - self.low) / (self.high - self.low)
        if value <= 0:
            return 0.0
        low = math.log(self.low)
        return (math.log(value) - low) / (math.log(self.high) - low)


def scale_of(values: Sequence[float], log: bool = False, room: float = 0.0) -> Scale:
    """A scale that holds all finite `values`, with `room` (a share of the range) left free at both ends.

    One value alone, or none, gets a range around it, so that a flat curve is drawn in the middle.
    """
    finite = [value for value in values if drawable(value) and (value > LEAST or not log)]
    if not finite:
        return Scale(1.0, 10.0, True) if log else Scale(0.0, 1.0)
    low, high = min(finite), max(finite)
    if log:
        if high / low < 1.0001:
            return Scale(low / 1.5, high * 1.5, True)
        spare = (high / low) ** room
        return Scale(low / spare, high * spare, True)
    size = max(abs(low), abs(high))
    if high - low <= max(size * FLAT, LEAST):
        spare = size * 0.1 if size > LEAST else 0.5
        return Scale(low - spare, high + spare)
    spare = (high - low) * room
    return Scale(low - spare, high + spare)


def ticks(scale: Scale, count: int) -> list[float]:
    """About `count` round values inside the scale, ascending; at least one whenever a round value lies inside."""
    if scale.log:
        found = _log_ticks(scale, count)
        if len(found) >= 2:
            return found
    return _linear_ticks(scale.low, scale.high, count)


def _linear_ticks(low: float, high: float, count: int) -> list[float]:
    raw = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def _log_ticks(scale: Scale, count: int) -> list[float]:
    decades = range(math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        found = [f * 10.0**d for d in decades for f in factors if scale.low <= f * 10.0**d <= scale.high]
        if len(found) <= max(2, count + 1):
            return found
    every = math.ceil(len(found) / max(1, count))
    return found[::every]


def labels(values: Sequence[float]) -> list[str]:
    """One text for each tick, with the digits that tell neighbours apart: `0 5k 10k`, `1.8 2.0`, `1e-05`."""
    if not values:
        return []
    largest = max(abs(value) for value in values)
    smallest = min((abs(value) for value in values if value), default=largest)
    gaps = [abs(b - a) for a, b in pairwise(values)]
    gap = min(gaps) if gaps else largest or 1.0
    if largest and (largest < 1e-3 or largest >= 1e15):
        digits = _digits(gap / 10.0 ** math.floor(math.log10(largest)))
        return [f"{value:.{digits}e}" if value else "0" for value in values]
    for limit, unit, suffix in ((1e12, 1e12, "T"), (1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if largest >= limit:
            digits = _digits(gap / unit)
            return [f"{value / unit:.{digits}f}{suffix}" if value else "0" for value in values]
    if 0 < smallest < 1 and largest / smallest >= 100 and len(values) > 1:
        return [f"{value:g}" for value in values]
    digits = _digits(gap)
    return [f"{value:.{digits}f}" for value in values]


def _digits(gap: float) -> int:
    if gap <= 0:
        return 0
    digits = 0
    while digits < 8 and abs(gap * 10**digits - round(gap * 10**digits)) > 1e-6 * gap * 10**digits:
        digits += 1
    return digits
