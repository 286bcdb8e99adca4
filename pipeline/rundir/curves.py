"""The metrics of an output as one curve: its attempts joined, each cut at the step where the next one took up.

Imports rundir.jsonl and layout. Streams: one line of one file in memory at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from pipeline.rundir.attempt import Attempt
from pipeline.rundir.jsonl import iter_jsonl
from pipeline.rundir.layout import StageDir
from pipeline.rundir.output import Output

METRICS = "metrics.jsonl"


def joined_metrics(stage: StageDir, output: Output) -> list[dict[str, Any]]:
    """All rows of `iter_metrics`."""
    return list(iter_metrics(stage, output))


def iter_metrics(stage: StageDir, output: Output) -> Iterator[dict[str, Any]]:
    """Rows {"t", "step", "epoch"?, name: number…} of an output's attempts in order.

    An attempt that resumes begins with {"resume_step": N}: what earlier attempts did after step N was lost and done
    again, so it is left out. Torn tails and rows without a step are passed over.
    """
    attempts = [attempt for attempt in map(stage.attempt, stage.attempts()) if _writes_to(attempt, output.number)]
    cuts, cut = [], math.inf
    for attempt in reversed(attempts):
        cuts.append(cut)
        cut = min(cut, _taken_up_at(attempt))
    for attempt, limit in zip(attempts, reversed(cuts)):
        for row, _ in iter_jsonl(attempt.path / METRICS):
            step = row.get("step")
            if isinstance(step, (int, float)) and step <= limit:
                yield row


def _writes_to(attempt: Attempt, output: int) -> bool:
    return attempt.spec().get("output") == output


def _taken_up_at(attempt: Attempt) -> float:
    """The last step of earlier attempts that this one builds on; infinity when it has written nothing."""
    for row, _ in iter_jsonl(attempt.path / METRICS):
        if isinstance(row.get("resume_step"), (int, float)):
            return float(row["resume_step"])
        if isinstance(row.get("step"), (int, float)):
            # an attempt that doesn't say where it resumed: what it does again replaces what was there
            return math.nextafter(float(row["step"]), -math.inf)
    return math.inf
