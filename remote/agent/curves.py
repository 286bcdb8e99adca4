"""The metrics of outputs, read once and then only what was added, joined over attempts, decimated for the wire.

Imports pipeline.rundir and remote.agent.columns. The joining rule is that of pipeline.rundir.curves: an attempt that
resumes at step N replaces what earlier ones did after N. Within one attempt steps never fall.
"""

from __future__ import annotations

import math
import os
from array import array
from bisect import bisect_right
from pathlib import Path
from typing import Any

from pipeline.rundir import StageDir, iter_jsonl
from remote.agent.columns import decimate

AXES = ("step", "epoch", "t")
ROWS_KEPT = 50_000
"""Rows of one attempt held in memory; beyond that the older ones are thinned, extremes kept."""
NAMES_KEPT = 64


class AttemptMetrics:
    """metrics.jsonl of one attempt as columns of doubles (NaN: not in that row)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.thinned = 0
        self._read_anew((0, 0))

    def _read_anew(self, file: tuple[int, int]) -> None:
        self.columns: dict[str, array[float]] = {name: array("d") for name in AXES}
        self.taken_up = math.inf
        """The last step of earlier attempts that this one builds on; infinity when it has written nothing."""
        self._offset, self._file = 0, file

    def refresh(self) -> None:
        """Reads what was added. A file that was replaced or became shorter is read anew."""
        try:
            seen = os.stat(self.path)
        except OSError:
            return
        if (seen.st_dev, seen.st_ino) != self._file or seen.st_size < self._offset:
            self._read_anew((seen.st_dev, seen.st_ino))
        if seen.st_size == self._offset:
            return
        for row, offset in iter_jsonl(self.path, self._offset):
            self._offset = offset
            self._add(row)

    def _add(self, row: dict[str, Any]) -> None:
        step = row.get("step")
        if math.isinf(self.taken_up):
            first = row.get("resume_step", step)
            if isinstance(first, (int, float)):
                # One that doesn't say where it resumed replaces its own first step too.
                self.taken_up = float(first) if "resume_step" in row else math.nextafter(float(first), -math.inf)
        if not isinstance(step, (int, float)) or isinstance(step, bool):
            return
        count = len(self.columns["step"])
        for name, value in row.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                column = self.columns.get(name)
                if column is None:
                    if len(self.columns) >= NAMES_KEPT:
                        continue
                    column = self.columns[name] = array("d", [math.nan]) * count
                column.append(float(value))
        for column in self.columns.values():
            if len(column) == count:
                column.append(math.nan)
        if count + 1 >= ROWS_KEPT:
            thin = decimate(self.columns, AXES, ROWS_KEPT // 2)
            self.columns = {
                name: array("d", (math.nan if value is None else value for value in column))
                for name, column in thin.items()
            }
            self.thinned += 1


class Curves:
    """Metrics of all stages asked for, kept between requests."""

    def __init__(self) -> None:
        self._attempts: dict[Path, AttemptMetrics] = {}
        self._outputs: dict[Path, int | None] = {}

    def read(
        self,
        stage: StageDir,
        output: int,
        names: list[str] | None,
        points: int,
        since: float | None,
        until: float | None = None,
    ) -> dict[str, Any]:
        """{"columns": {"step": […], …}, "rows", "last_step", "generation"}; rows after step ``since`` and up to step
        ``until`` where these are given. ``rows``: how many there are before they are thinned to ``points``.

        While ``generation`` stays the same, rows are only added; when it changes, earlier rows may be gone.
        """
        attempts = [number for number in stage.attempts() if self._output_of(stage, number) == output]
        metrics = [self._metrics(stage.attempt(number).path / "metrics.jsonl") for number in attempts]
        for one in metrics:
            one.refresh()
        limits: list[float] = []
        cut = math.inf
        for one in reversed(metrics):
            limits.append(cut)
            cut = min(cut, one.taken_up)
        joined = _join(list(zip(metrics, reversed(limits))), names, since, until)
        steps = joined.get("step", array("d"))
        begun = [number for number, one in zip(attempts, metrics) if one.columns["step"]]
        thinned = sum(one.thinned for one in metrics)
        return {
            "columns": decimate(joined, AXES, points),
            "rows": len(steps),
            "last_step": int(max(steps)) if steps else None,
            "generation": f"{output}.{begun[-1] if begun else 0}.{thinned}",
        }

    def _metrics(self, path: Path) -> AttemptMetrics:
        found = self._attempts.get(path)
        if found is None:
            found = self._attempts[path] = AttemptMetrics(path)
        return found

    def _output_of(self, stage: StageDir, number: int) -> int | None:
        attempt = stage.attempt(number)
        if self._outputs.get(attempt.path) is None:
            value = attempt.spec().get("output")
            self._outputs[attempt.path] = value if isinstance(value, int) else None
        return self._outputs[attempt.path]


def _join(
    parts: list[tuple[AttemptMetrics, float]], names: list[str] | None, since: float | None, until: float | None
) -> dict[str, array[float]]:
    wanted = [*AXES, *dict.fromkeys(name for one, _ in parts for name in one.columns if name not in AXES)]
    if names is not None:
        wanted = [name for name in wanted if name in AXES or name in names]
    joined: dict[str, array[float]] = {name: array("d") for name in wanted}
    low, high = -math.inf if since is None else since, math.inf if until is None else until
    for one, limit in parts:
        steps = one.columns["step"]
        start, end = bisect_right(steps, low), bisect_right(steps, min(limit, high))
        for name in wanted:
            column = one.columns.get(name)
            joined[name].extend(column[start:end] if column is not None else [math.nan] * max(0, end - start))
    return joined
