"""Which output a stage reads, which parameters shape what it makes, and whether what it made is still what the plan asks for.

Imports pipeline.config and rundir.layout. Nothing here reruns or deletes anything.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pipeline.config import STAGES, DeployParams, Plan
from pipeline.fields import HOW, TARGET, show
from pipeline.rundir.errors import RunError
from pipeline.rundir.layout import RunDir, StageDir
from pipeline.rundir.output import Output
from pipeline.rundir.paths import stay_inside, valid_name

INPUTS: Mapping[str, tuple[str, ...]] = {
    "generate": (),
    "extract": ("generate",),
    "vocab": ("generate",),
    "train": ("extract", "vocab"),
    "deploy": ("train",),
}
"""Lineage: the stages whose outputs a stage reads. deploy also reads generate's samples when it is given no prompts."""

_VERIFIED = ("generate", "extract", "deploy")
"""Stages that load the verifier themselves; vocab and train know it only through their inputs."""


def inputs_needed(plan: Plan, stage: str) -> tuple[str, ...]:
    """The stages whose outputs this one reads under a plan."""
    params = plan.params(stage)
    if isinstance(params, DeployParams) and not params.prompts:
        return (*INPUTS[stage], "generate")
    return INPUTS[stage]


def shaping_params(plan: Plan, stage: str) -> dict[str, Any]:
    """The parameters that shape a stage's output, without those that only say how it is made (threads, concurrency, …)."""
    params = plan.params(stage)
    shaping = {
        item.name: getattr(params, item.name) for item in dataclasses.fields(params) if item.metadata["role"] != HOW
    }
    if stage in _VERIFIED:
        shaping["verifier.path"] = plan.verifier.path
    return shaping


def targets(stage_params: Any) -> frozenset[str]:
    """Names of the parameters that say how much; an output may be continued with other values of them."""
    return frozenset(item.name for item in dataclasses.fields(stage_params) if item.metadata["role"] == TARGET)


def fingerprint(obj: Any) -> str:
    """sha256 (hex) of JSON values, independent of the order of keys."""
    return hashlib.sha256(json.dumps(obj, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def fingerprint_params(plan: Plan, stage: str) -> str:
    """Fingerprint of the parameters that shape a stage's output."""
    return fingerprint(shaping_params(plan, stage))


def lender(run: RunDir, stage: str, plan: Plan) -> StageDir | None:
    """The other run's stage that `from_run` borrows from; None without one. Raises RunError when it isn't there."""
    wanted = plan.stages[stage].from_run
    if not wanted:
        return None
    other, _, name = wanted.partition("/")
    if not valid_name(other) or name != stage:
        raise RunError(f"{stage}.from_run = {show(wanted)} names no output", f"It takes RUN/{stage}")
    if other == run.name:
        raise RunError(f"{run.name} can't borrow {stage} from itself", f"Set {stage}.from_run to another run, or empty")
    path = run.root / other
    stay_inside(run.root, path)
    try:
        return RunDir.open(path).stage(stage)
    except RunError as error:
        raise RunError(f"{stage}.from_run = {show(wanted)}: {error.message}", "Name a run of this root") from None


def counting_output(run: RunDir, stage: str, plan: Plan | None = None) -> Output | None:
    """The output of a stage that counts, borrowed ones included (a lender may borrow too). None when there is none yet."""
    seen: list[str] = []
    holder, plan = run, plan or run.plan()
    while True:
        if holder.name in seen:
            raise RunError(f"{stage} is borrowed in a circle: {' → '.join([*seen, holder.name])}", "Clear one from_run")
        seen.append(holder.name)
        source = lender(holder, stage, plan)
        if source is None:
            return holder.stage(stage).current()
        holder = source.run
        plan = holder.plan()


def inputs_of(run: RunDir, stage: str, plan: Plan | None = None) -> dict[str, Output]:
    """The complete outputs a stage reads, by stage. Raises RunError naming what is missing and what to do."""
    plan = plan or run.plan()
    found = {}
    for name in inputs_needed(plan, stage):
        output = counting_output(run, name, plan)
        if output is None:
            raise RunError(f"{stage} needs the output of {name}, and there is none yet", _how_to_get(stage, name))
        if not output.complete:
            raise RunError(f"{stage} needs {output.name()}, which isn't complete", _how_to_get(stage, name))
        found[name] = output
    return found


def input_record(output: Output) -> dict[str, Any]:
    """How source.json remembers an input: run, output number and the fingerprint of the data."""
    return {"run": output.stage.run.name, "output": output.number, "fingerprint": output.fingerprint}


def recorded_inputs(run: RunDir, output: Output) -> dict[str, Output]:
    """The very outputs an output was begun with, fingerprints checked. Raises RunError when one is gone or has changed."""
    found = {}
    for name, record in output.source().get("inputs", {}).items():
        path = run.root / str(record["run"])
        stay_inside(run.root, path)
        source = RunDir.open(path).stage(name).output(int(record["output"]))
        if source.fingerprint != record["fingerprint"]:
            raise RunError(
                f"{source.name()} has changed since {output.name()} was begun from it",
                f"Restart {output.stage.stage}: it opens a new output",
            )
        found[name] = source
    return found


def changed_params(plan: Plan, stage: str, output: Output) -> dict[str, tuple[Any, Any]]:
    """Shaping parameters whose value in the plan isn't the output's: name -> (the output's, the plan's)."""
    then, now = output.params(), json.loads(json.dumps(shaping_params(plan, stage)))
    return {name: (then[name], now[name]) for name in now if name in then and then[name] != now[name]}


def stale(run: RunDir, stage: str, plan: Plan | None = None) -> str:
    """Why the counting output of a stage is STALE, in words; "" when it isn't, or when there is none."""
    plan = plan or run.plan()
    output = counting_output(run, stage, plan)
    if output is None:
        return ""
    if output.stage.run.path != run.path:
        return stale(output.stage.run, stage)
    changes = changed_params(plan, stage, output)
    if changes:
        words = [f"{_key(stage, name)} is {show(new)} now, was {show(old)}" for name, (old, new) in changes.items()]
        return "; ".join(words)
    for name, record in output.source().get("inputs", {}).items():
        reason = _input_moved(run, plan, name, record) if name in STAGES else ""
        if reason:
            return reason
    return ""


def _input_moved(run: RunDir, plan: Plan, name: str, record: Mapping[str, Any]) -> str:
    try:
        now = counting_output(run, name, plan)
    except RunError as error:
        return f"its input {name} can't be found: {error.message}"
    if now is None:
        # reclaimed: what was made from it still stands
        return ""
    if now.stage.run.name != record["run"]:
        return f"its input {name} comes from {now.stage.run.name} now, was {record['run']}"
    if now.number != record["output"]:
        return f"its input {name} is output {now.number} now, was output {record['output']}"
    if now.fingerprint is None:
        return f"its input {name} is being continued"
    if now.fingerprint != record["fingerprint"]:
        return f"its input {name} has changed since (output {now.number} was continued)"
    reason = stale(run, name, plan)
    return f"its input {name} is stale: {reason}" if reason else ""


def _key(stage: str, name: str) -> str:
    return name if "." in name else f"{stage}.{name}"


def _how_to_get(stage: str, name: str) -> str:
    return f'Run {name} first, or borrow it with {name}.from_run = "RUN/{name}"'
