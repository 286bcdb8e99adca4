"""Milliseconds to draw the loss chart anew, by the number of points of a curve, and to take a new curve in.

A redraw follows every toggle, resize and change of theme; taking in happens once for new data. The host sends at most
a few hundred points a curve; the larger counts show where plain Python would stop being enough. The claim is a redraw
of a million points within 16 ms at 120x40.

    python -m benchmarks.chart_redraw [--size 120x40] [--json]
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable

from console.snapshot import Curve
from console.widgets.chart.picture import Series, draw
from console.widgets.chart.views import TrackStore, series_of, views_of

LIMIT_MS = 16.0
POINTS = (600, 2_400, 100_000, 1_000_000)
REDRAWS = 15


def curves(points: int) -> tuple[Curve, ...]:
    """A noisy loss and a validation loss at twenty of its steps."""
    rng = random.Random(points)
    steps = tuple(float(index) for index in range(points))
    losses = tuple(1.8 + 4.2 * math.exp(-4 * index / points) + rng.gauss(0, 0.1) for index in range(points))
    every = points // 20
    checked = tuple(loss + 0.05 if index % every == every - 1 else None for index, loss in enumerate(losses))
    return (
        Curve("train/loss", steps, (None,) * points, losses),
        Curve("val/loss", steps, (None,) * points, checked),
    )


def milliseconds(work: Callable[[], object], times: int) -> float:
    """Median of `times` runs, in processor time: other work on the machine does not count."""
    taken = []
    for _ in range(times):
        began = time.process_time()
        work()
        taken.append((time.process_time() - began) * 1000)
    return statistics.median(taken)


def measure(points: int, width: int, height: int) -> tuple[float, float]:
    """(redraw, taking in)."""
    data = curves(points)
    view = views_of(data)[0]

    def take_in() -> list[Series]:
        return series_of(view, data, TrackStore(), "step")

    series = take_in()
    return milliseconds(lambda: draw(series, width, height), REDRAWS), milliseconds(take_in, 3)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="120x40", help="columns x rows of the chart")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    columns, _, rows = args.size.partition("x")
    found = {points: measure(points, int(columns), int(rows)) for points in POINTS}
    slowest = max(redraw for redraw, _ in found.values())
    if args.json:
        told = [{"points": points, "redraw_ms": one, "take_in_ms": two} for points, (one, two) in found.items()]
        print(json.dumps({"size": args.size, "limit_ms": LIMIT_MS, "charts": told}))
    else:
        print(f"loss chart at {args.size}, two curves, milliseconds")
        print(f"{'points':>10}{'redraw':>10}{'taking in':>12}")
        for points, (redraw, taking) in found.items():
            print(f"{points:>10,}{redraw:>10.1f}{taking:>12.1f}")
    return 0 if slowest <= LIMIT_MS else 1


if __name__ == "__main__":
    sys.exit(main())
