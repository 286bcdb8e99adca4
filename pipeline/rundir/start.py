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
from pipeline.rundir.contents import CHANGED
from pipeline.rundir.errors import RunError, refuse_newer, restart_words
from pipeline.rundir.layout import StageDir
from pipeline.rundir.output import Output
from pipeline.rundir.paths import numbered, stay_inside

_ONLY_MORE = frozenset({"train"})
"""Stages whose finished output can be carried further, and not be turned back: what is trained stays so."""


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

    This process has to hold the stage's lock (`Lock.acquire(stage.make().lock_path)`). `argv` may contain the words
    {run} and {attempt}; without it: `PYTHON -u -m pipeline.STAGE --run RUN --attempt ATTEMPT`. The output becomes
    `current` when the attempt starts (its first write_state). Raises OSError, or RunError: the lock isn't held, a
    writer or a remembered member lives, the stage is borrowed, inputs are missing, the output can't be continued.
    """
    name = stage.stage
    if not locks.held_here(stage.lock_path):
        raise RunError(
            f"{stage.run.name}/{name} can't start: this process doesn't hold its lock", "Take the lock first"
        )
    refuse_while_living(stage)
    plan = stage.run.plan()
    if lineage.lender(stage.run, name, plan) is not None:
        raise RunError(
            f"{name} is borrowed from {plan.stages[name].from_run} and doesn't run here",
            f"Clear {name}.from_run to run it",
        )
    inputs = lineage.inputs_of(stage.run, name, plan)
    for part in ("attempts", "out"):
        stay_inside(stage.run.path, stage.path / part)
        (stage.path / part).mkdir(mode=0o700, exist_ok=True)
    output, resumed = _pick_output(stage, plan, inputs, restart)
    attempt = stage.attempt(max(stage.attempts(), default=0) + 1)
    attempt.path.mkdir(mode=0o700)
    (attempt.path / "control").mkdir(mode=0o700)
    settings = plan.stages[name]
    interpreter = python or settings.python or sys.executable
    words = argv or [interpreter, "-u", "-m", f"pipeline.{name}", "--run", "{run}", "--attempt", "{attempt}"]
    places = {"{run}": str(stage.run.path), "{attempt}": str(attempt.path)}
    spec: dict[str, Any] = {
        "schema": 1,
        "run": stage.run.name,
        "stage": name,
        "attempt": attempt.number,
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
    """Raise RunError while another process holds the writer lock, or a remembered member of an attempt lives."""
    label = f"{stage.run.name}/{stage.stage}"
    remedy = f"`eagledeck kill {stage.run.name} {stage.stage}` ends what is left; then start it again"
    if locks.held(stage.writer_lock_path) and not locks.held_here(stage.writer_lock_path):
        raise RunError(f"A process of {label} still writes", remedy)
    living = {pid for number in stage.attempts() for pid in _left(stage.attempt(number))} - {os.getpid()}
    if living:
        pids = ", ".join(str(pid) for pid in sorted(living))
        raise RunError(f"Processes of {label} still live (pid {pids})", remedy)


def _left(attempt: Attempt) -> list[int]:
    """Remembered processes that live; not a supervisor that has said how it ended and is about to be gone itself."""
    living = attempt.living()
    if living and attempt.exit() is not None:
        supervisor = attempt.state().get("supervisor") or {}
        return [pid for pid in living if pid != supervisor.get("pid")]
    return living


def resume_refusal(stage: StageDir, plan: Plan | None = None) -> str:
    """Why the output that counts can't be continued under the plan, in words; "" when it can, or when there is none."""
    plan = plan or stage.run.plan()
    output = _to_continue(stage)
    if output is None or output.untouched:
        return ""
    allowed = lineage.targets(plan, stage.stage)
    changes = lineage.changed_params(plan, stage.stage, output)
    for name, (old, new) in changes.items():
        if name not in allowed:
            return f"output {output.number} was begun with {name} = {show(old)}, the plan says {show(new)}"
        if output.complete and stage.stage in _ONLY_MORE and new < old:
            return f"output {output.number} was made with {name} = {show(old)}, and less than that can't be made of it"
    files = lineage.changed_files(output)
    for name, how in files.items():
        if how == CHANGED or not lineage.may_grow(stage.stage):
            path = output.source()["files"][name].get("path")
            return f"the file of {stage.stage}.{name}, {path}, {how} since output {output.number} was begun"
    if output.complete and not changes and not files:
        return f"output {output.number} is complete"
    try:
        inputs = lineage.inputs_of(stage.run, stage.stage, plan)
    except RunError as error:
        return error.message
    records = output.source().get("inputs", {})
    for name, found in inputs.items():
        if records.get(name) != lineage.input_record(found):
            return f"output {output.number} was begun from another state of {name}"
    return ""


def _to_continue(stage: StageDir) -> Output | None:
    """The current output; before any attempt started, the newest."""
    outputs = stage.outputs()
    return stage.current() or (stage.output(outputs[-1]) if outputs else None)


def _pick_output(stage: StageDir, plan: Plan, inputs: dict[str, Output], restart: bool) -> tuple[Output, bool]:
    output = None if restart else _to_continue(stage)
    if output is not None and not output.untouched:
        refuse_newer(output.source(), output.path / "source.json")
        refusal = resume_refusal(stage, plan)
        if refusal:
            raise RunError(
                f"{stage.run.name}/{stage.stage} can't go on: {refusal}", restart_words(stage.run.name, stage.stage)
            )
        # source.json follows when the stage is under way: until then, a complete output is what it says
        return output, True
    output = output or _unused(stage) or _opened(stage)
    output.write_source(lineage.source_of(plan, stage.stage, inputs, stage.run.path))
    return output, False


def _unused(stage: StageDir) -> Output | None:
    """The newest output when nothing was written to it (its attempt never got going): taken instead of one more."""
    outputs = stage.outputs()
    newest = stage.output(outputs[-1]) if outputs else None
    return newest if newest is not None and newest.untouched else None


def _opened(stage: StageDir) -> Output:
    number = max(stage.outputs(), default=0) + 1
    path = numbered(stage.path / "out", number)
    path.mkdir(mode=0o700)
    fsync_folder(path.parent)
    return stage.output(number)
