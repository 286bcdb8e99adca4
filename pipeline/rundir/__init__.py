"""The run directory: everything that matters about a run, as files, and what follows from them.

Standard library only, Python >= 3.9. Imports pipeline.config and pipeline.fields; every other room may import this one.
What a supervisor needs is there at once, the rest when it is first asked for: plans and lineage would double its size.
"""

import importlib
from typing import TYPE_CHECKING, Any

from pipeline.rundir.atomic import read_json, replace_link, write_bytes, write_json, write_json_fast
from pipeline.rundir.attempt import Attempt
from pipeline.rundir.errors import PlanConflict, RunError
from pipeline.rundir.identity import alive, incarnation, process_start
from pipeline.rundir.jsonl import JsonLines, iter_jsonl, read_jsonl, repair_tail
from pipeline.rundir.layout import RunDir, StageDir, runs
from pipeline.rundir.locks import Lock, held, held_here
from pipeline.rundir.output import Output
from pipeline.rundir.paths import valid_name
from pipeline.stages import STAGES

if TYPE_CHECKING:
    from pipeline.rundir.checkpoint import checkpoint_meta, latest_checkpoint, newest_checkpoint, write_checkpoint
    from pipeline.rundir.curves import iter_metrics, joined_metrics
    from pipeline.rundir.lineage import (
        INPUTS,
        counting_output,
        fingerprint,
        fingerprint_params,
        inputs_of,
        made_from,
        recorded_inputs,
        stale,
    )
    from pipeline.rundir.locktest import know_locks, try_locks
    from pipeline.rundir.start import new_attempt, refuse_while_living, resume_refusal
    from pipeline.rundir.states import STATES, StageState, StageStatus, on_disk, run_status, status

_LATER: dict[str, tuple[str, ...]] = {
    "checkpoint": ("checkpoint_meta", "latest_checkpoint", "newest_checkpoint", "write_checkpoint"),
    "curves": ("iter_metrics", "joined_metrics"),
    "lineage": (
        "INPUTS",
        "counting_output",
        "fingerprint",
        "fingerprint_params",
        "inputs_of",
        "made_from",
        "recorded_inputs",
        "stale",
    ),
    "locktest": ("know_locks", "try_locks"),
    "start": ("new_attempt", "refuse_while_living", "resume_refusal"),
    "states": ("STATES", "StageState", "StageStatus", "on_disk", "run_status", "status"),
}


def __getattr__(name: str) -> Any:
    for module, names in _LATER.items():
        if name in names:
            value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "INPUTS",
    "STAGES",
    "STATES",
    "Attempt",
    "JsonLines",
    "Lock",
    "Output",
    "PlanConflict",
    "RunDir",
    "RunError",
    "StageDir",
    "StageState",
    "StageStatus",
    "alive",
    "checkpoint_meta",
    "counting_output",
    "fingerprint",
    "fingerprint_params",
    "held",
    "held_here",
    "incarnation",
    "inputs_of",
    "iter_jsonl",
    "iter_metrics",
    "joined_metrics",
    "know_locks",
    "latest_checkpoint",
    "made_from",
    "new_attempt",
    "newest_checkpoint",
    "on_disk",
    "process_start",
    "read_json",
    "read_jsonl",
    "recorded_inputs",
    "refuse_while_living",
    "repair_tail",
    "replace_link",
    "resume_refusal",
    "run_status",
    "runs",
    "stale",
    "status",
    "try_locks",
    "valid_name",
    "write_bytes",
    "write_checkpoint",
    "write_json",
    "write_json_fast",
]
