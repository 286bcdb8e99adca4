"""Opening an attempt: who may, on which output, and what it is to run.

Imports pipeline.config and the other modules of this folder.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from pipeline.config import Plan
from pipeline.fields import show
from pipeline.rundir import lineage, locks
from pipeline.rundir.atomic import fsync_folder, write_json
from pipeline.rundir.attempt import Attempt
from pipeline.rundir.errors import RunError
from pipeline.rundir.layout import StageDir
from pipeline.rundir.output import Output
from pipeline.rundir.paths import numbered, stay_inside


def new_attempt(
    stage: StageDir,
    *,
    restart: bool = False,
    argv: list[str] | None = None,
    cwd: str = "",
    python: str = "",
    by: str = "",
) -> Attempt:
    """Make attempts/000N with spec.json and pick its output: the one that counts (resume), or a new one (`restart`).

    This process has to hold the stage's lock (`Lock.acquire(stage.make().lock_path)`). `argv` may contain {run} and {attempt};
    without it: `PYTHON -u -m pipeline.STAGE --run RUN --attempt ATTEMPT`. The output becomes `current` when the attempt starts
    (its first write_state). Raises RunError: lock not held, a writer or a remembered member lives, the stage borrows,
    inputs are missing, or the output can't be continued.
    """
    name = stage.stage
    if not locks.held_here(stage.lock_path):
        raise RunError(
            f"{stage.run.name}/{name} can't start: its lock isn't held by this process", "Take the lock first"
        )
    refuse_while_living(stage)
    plan = stage.run.plan()
    lent = lineage.lender(stage.run, name, plan)
    if lent is not None:
        raise RunError(
            f"{name} is borrowed from {plan.stages[name].from_run} and doesn't run here",
            f"Clear {name}.from_run to run it",
        )
    inputs = lineage.inputs_of(stage.run, name, plan)
    output, resumed = _pick_output(stage, plan, inputs, restart)
    number = max(stage.attempts(), default=0) + 1
    attempt = stage.attempt(number)
    for folder in (attempt.path.parent, attempt.path, attempt.path / "control"):
        folder.mkdir(mode=0o700, exist_ok=folder == attempt.path.parent)
    stay_inside(stage.run.path, attempt.path)
    settings = plan.stages[name]
    interpreter = python or settings.python or sys.executable
    words = argv or [interpreter, "-u", "-m", f"pipeline.{name}", "--run", "{run}", "--attempt", "{attempt}"]
    places = {"{run}": str(stage.run.path), "{attempt}": str(attempt.path)}
    spec: dict[str, Any] = {
        "schema": 1,
        "run": stage.run.name,
        "stage": name,
        "attempt": number,
        "output": output.number,
        "resumed": resumed,
        "argv": [places.get(word, word) for word in words],
        "cwd": cwd or str(Path(__file__).resolve().parents[2]),
        "python": interpreter,
        "gpus": settings.gpus,
        "env_allow": list(settings.env_allow),
        "env": dict(settings.env),
        "grace_s": settings.grace_s,
        "services": list(settings.services),
        "plan_revision": plan.revision,
        "by": by,
        "created": time.time(),
    }
    write_json(attempt.path / "spec.json", spec)
    fsync_folder(attempt.path.parent)
    return attempt


def refuse_while_living(stage: StageDir) -> None:
    """Raise RunError while the stage's writer lock is held elsewhere or a remembered member of an attempt lives."""
    label = f"{stage.run.name}/{stage.stage}"
    if locks.held(stage.writer_lock_path) and not locks.held_here(stage.writer_lock_path):
        raise RunError(f"A process of {label} still writes", "Stop or kill the stage, then start it again")
    latest = stage.latest()
    living = [pid for pid in latest.living() if pid != os.getpid()] if latest else []
    if living:
        pids = ", ".join(str(pid) for pid in living)
        raise RunError(f"Processes of {label} still live (pid {pids})", "Stop or kill the stage, then start it again")


def resume_refusal(stage: StageDir, plan: Plan | None = None) -> str:
    """Why the current output can't be continued under the plan, in words; "" when it can, or when there is none."""
    plan = plan or stage.run.plan()
    output = _resumable_output(stage)
    if output is None or output.untouched:
        return ""
    allowed = lineage.targets(plan.params(stage.stage))
    changes = lineage.changed_params(plan, stage.stage, output)
    for name, (old, new) in changes.items():
        if name not in allowed:
            return f"output {output.number} was begun with {name} = {show(old)}, the plan says {show(new)}"
    if output.complete and not changes:
        return f"output {output.number} is complete"
    try:
        inputs = lineage.inputs_of(stage.run, stage.stage, plan)
    except RunError as error:
        return error.message
    records = output.source().get("inputs", {})
    for name, found in inputs.items():
        if records.get(name) != lineage.input_record(found):
            return f"output {output.number} was begun from another output of {name}"
    return ""


def _resumable_output(stage: StageDir) -> Output | None:
    """The output of the newest started attempt is current; before any start it is the newest one."""
    current = stage.current()
    if current is None and stage.outputs():
        current = stage.output(stage.outputs()[-1])
    return current


def _pick_output(stage: StageDir, plan: Plan, inputs: dict[str, Output], restart: bool) -> tuple[Output, bool]:
    output = None if restart else _resumable_output(stage)
    if output is not None and not output.untouched:
        refusal = resume_refusal(stage, plan)
        if refusal:
            raise RunError(f"{stage.run.name}/{stage.stage} can't go on: {refusal}", "Restart opens a new output")
        return output, True
    if output is None:
        output = _unused_output(stage) or _open_output(stage)
    output.write_source(
        {
            "schema": 1,
            "plan_revision": plan.revision,
            "params": lineage.shaping_params(plan, stage.stage),
            "fingerprint": lineage.fingerprint_params(plan, stage.stage),
            "inputs": {name: lineage.input_record(found) for name, found in inputs.items()},
            "borrowed": {name: plan.stages[name].from_run for name in inputs if plan.stages[name].from_run},
            "created": time.time(),
        }
    )
    return output, False


def _unused_output(stage: StageDir) -> Output | None:
    """A newest output that nothing was written to (an attempt that never got going): taken instead of one more."""
    found = stage.outputs()
    newest = stage.output(found[-1]) if found else None
    return newest if newest is not None and newest.untouched else None


def _open_output(stage: StageDir) -> Output:
    folder = stage.path / "out"
    folder.mkdir(mode=0o700, exist_ok=True)
    number = max(stage.outputs(), default=0) + 1
    path = numbered(folder, number)
    path.mkdir(mode=0o700)
    stay_inside(stage.run.path, path)
    fsync_folder(folder)
    return stage.output(number)
