"""What a person has said to use although it is STALE: kept.json of the run, by stage.

A keep holds for one output and one reason. When either changes, somebody is asked again.
Imports rundir.atomic, rundir.errors, rundir.layout and rundir.output.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.rundir.atomic import read_json, write_json
from pipeline.rundir.errors import refuse_newer
from pipeline.rundir.layout import RunDir
from pipeline.rundir.output import Output

KEPT = "kept.json"


@dataclass(frozen=True)
class Keep:
    """`run` and `output` say which output (another run's when it is borrowed), `reason` why it is stale, in words."""

    run: str
    output: int
    reason: str


def kept(run: RunDir) -> dict[str, Keep]:
    """What is kept, by stage."""
    stages = (read_json(run.path / KEPT) or {}).get("stages")
    rows = stages.items() if isinstance(stages, dict) else ()
    return {
        stage: Keep(str(row.get("run")), int(row.get("output") or 0), str(row.get("reason")))
        for stage, row in rows
        if isinstance(row, dict)
    }


def keep_of(output: Output, reason: str) -> Keep:
    return Keep(output.stage.run.name, output.number, reason)


def keep(run: RunDir, stages: Mapping[str, Keep]) -> None:
    """Remember these beside what is kept already. One writer: the conductor. Raises OSError, RunError (newer)."""
    now = {**kept(run), **stages}
    if now != kept(run):
        _write(run, now)


def forget(run: RunDir) -> None:
    """Whatever is stale is asked about again. Raises OSError, RunError (written by a newer Eagledeck)."""
    if kept(run):
        _write(run, {})


def _write(run: RunDir, stages: Mapping[str, Keep]) -> None:
    refuse_newer(read_json(run.path / KEPT) or {}, run.path / KEPT)
    rows: dict[str, Any] = {
        stage: {"run": row.run, "output": row.output, "reason": row.reason} for stage, row in stages.items()
    }
    write_json(run.path / KEPT, {"schema": 1, "stages": rows, "wall": time.time()})
