"""Which output a stage reads, what shapes the output it makes, and whether that is still what the plan asks for.

Imports pipeline.config, pipeline.hostpath and rundir.layout. Nothing here reruns or deletes anything.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config import STAGES, DeployParams, Plan
from pipeline.fields import HOW, TARGET, show
from pipeline.hostpath import host_path
from pipeline.rundir.borrowed import unlike, verifier_config
from pipeline.rundir.contents import change, record_of
from pipeline.rundir.errors import RunError, refuse_newer, restart_words
from pipeline.rundir.kept import keep_of, kept
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

_FILES = ("prompts",)
"""Parameters that name a file whose content shapes the output."""


@dataclasses.dataclass(frozen=True)
class Stale:
    """Whether an output is still what the plan asks for. `reason`: in words why not, "" when it is.

    `root`: the stage with the first cause, this one or one that it is made from. `kept`: a person has said to use it
    all the same; what is made from it isn't stale for that.
    """

    reason: str = ""
    root: str = ""
    kept: bool = False


Known = dict[tuple[str, str], Stale]
"""(run, stage): what one look at several stages has found out already."""


def inputs_needed(plan: Plan, stage: str) -> tuple[str, ...]:
    """The stages whose outputs this one reads under a plan."""
    params = plan.params(stage)
    if isinstance(params, DeployParams) and not params.prompts:
        return (*INPUTS[stage], "generate")
    return INPUTS[stage]


def made_from(stage: str) -> set[str]:
    """The stages that read its output, however far on (without what a plan adds)."""
    found = {stage}
    for name in STAGES:
        if found.intersection(INPUTS[name]):
            found.add(name)
    return found - {stage}


def shaping_params(plan: Plan, stage: str) -> dict[str, Any]:
    """The parameters that shape a stage's output, without those that only say how it is made (threads, …)."""
    params = plan.params(stage)
    shaping = {
        item.name: getattr(params, item.name) for item in dataclasses.fields(params) if item.metadata["role"] != HOW
    }
    if stage in _VERIFIED:
        shaping["verifier.path"] = plan.verifier.path
    return shaping


def targets(plan: Plan, stage: str) -> frozenset[str]:
    """Names of the parameters that say how much; an output may be continued with other values of them."""
    fields = dataclasses.fields(plan.params(stage))
    return frozenset(item.name for item in fields if item.metadata["role"] == TARGET)


def fingerprint(obj: Any) -> str:
    """sha256 (hex) of JSON values, independent of the order of keys."""
    return hashlib.sha256(json.dumps(obj, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def fingerprint_params(plan: Plan, stage: str) -> str:
    """Fingerprint of the parameters that shape a stage's output."""
    return fingerprint(shaping_params(plan, stage))


def files_of(plan: Plan, stage: str, run: Path) -> dict[str, dict[str, Any]]:
    """The files that shape a stage's output, by parameter: path, bytes, mtime_ns, sha256; missing ones are left out.

    `run` is the folder of the run, where a relative path lies.
    """
    found = {}
    for name in _FILES:
        named = getattr(plan.params(stage), name, "")
        record = record_of(str(host_path(named, run))) if named else None
        if record is not None:
            found[name] = record
    return found


def changed_files(output: Output) -> dict[str, str]:
    """What became of the files that shape an output since: parameter -> "has grown" or "has changed"."""
    records = output.source().get("files")
    found = {name: change(record) for name, record in records.items()} if isinstance(records, dict) else {}
    return {name: how for name, how in found.items() if how}


def may_grow(stage: str) -> bool:
    """Whether an output may be continued when its file got more lines: generate goes on to the new ones."""
    return stage == "generate"


def shaped_by(plan: Plan, stage: str) -> dict[str, Any]:
    """The part of source.json that follows from a plan: plan_revision, params, fingerprint."""
    params = shaping_params(plan, stage)
    return {"plan_revision": plan.revision, "params": params, "fingerprint": fingerprint(params)}


def source_of(plan: Plan, stage: str, inputs: Mapping[str, Output], run: Path) -> dict[str, Any]:
    """source.json of an output that is opened now. `run` is the folder of the run."""
    source = {
        "schema": 1,
        **shaped_by(plan, stage),
        "files": files_of(plan, stage, run),
        "inputs": {name: input_record(found) for name, found in inputs.items()},
        "borrowed": {name: plan.stages[name].from_run for name in inputs if plan.stages[name].from_run},
        "created": time.time(),
    }
    config = verifier_config(plan, run) if stage in _VERIFIED else ""
    return {**source, "verifier_config": config} if config else source


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
    stay_inside(run.root, run.root / other)
    try:
        return RunDir.open(run.root / other).stage(stage)
    except RunError as error:
        raise RunError(f"{stage}.from_run = {show(wanted)}: {error.message}", "Name a run of the same root") from None


def counting_output(run: RunDir, stage: str, plan: Plan | None = None) -> Output | None:
    """The output of a stage that counts, borrowed ones included (a lender may borrow too); None when there is none yet.

    Raises RunError when the lender isn't there, or runs borrow in a circle.
    """
    return holder_of(run, stage, plan)[0].current()


def holder_of(run: RunDir, stage: str, plan: Plan | None = None) -> tuple[StageDir, Plan]:
    """The stage whose output counts, its own or the last lender's, and the plan that it follows.

    Raises RunError when the lender isn't there, or runs borrow in a circle.
    """
    seen: list[str] = []
    holder, plan = run, plan or run.plan()
    while True:
        if holder.name in seen:
            raise RunError(f"{stage} is borrowed in a circle: {' → '.join([*seen, holder.name])}", "Clear one from_run")
        seen.append(holder.name)
        source = lender(holder, stage, plan)
        if source is None:
            return holder.stage(stage), plan
        holder = source.run
        plan = holder.plan()


def inputs_of(run: RunDir, stage: str, plan: Plan | None = None) -> dict[str, Output]:
    """The complete outputs a stage reads, by stage. Raises RunError naming what is missing and what to do."""
    plan = plan or run.plan()
    found = {}
    for name in inputs_needed(plan, stage):
        output = counting_output(run, name, plan)
        if output is None or not output.complete:
            what = (
                f"an output of {name}, and there is none yet" if output is None else f"{output.name()} to be complete"
            )
            remedy = f'Run {name} first, or borrow it with {name}.from_run = "RUN/{name}"'
            if stage == "deploy" and name == "generate":
                remedy += ", or give deploy.prompts"
            raise RunError(f"{stage} needs {what}", remedy)
        found[name] = output
    return found


def input_record(output: Output) -> dict[str, Any]:
    """How source.json remembers an input: run, output number and the fingerprint of the data."""
    return {"run": output.stage.run.name, "output": output.number, "fingerprint": output.fingerprint}


def recorded_inputs(run: RunDir, output: Output) -> dict[str, Output]:
    """The outputs an output is made from, fingerprints checked. Raises RunError when one is gone or has changed."""
    found = {}
    source, again = output.source(), restart_words(run.name, output.stage.stage)
    refuse_newer(source, output.path / "source.json")
    for name, record in _inputs(source).items():
        lent_by = str(record.get("run"))
        if not valid_name(lent_by):
            raise RunError(f"{output.path}/source.json names the run {lent_by!r}", again)
        lent = RunDir.open(run.root / lent_by).stage(name).output(int(record.get("output", 0)))
        if lent.fingerprint != record.get("fingerprint"):
            raise RunError(
                f"{lent.name()} has changed since {output.name()} was begun from it",
                again,
            )
        found[name] = lent
    return found


def changed_params(plan: Plan, stage: str, output: Output) -> dict[str, tuple[Any, Any]]:
    """Shaping parameters whose value in the plan isn't the output's: name -> (the output's, the plan's)."""
    then, now = output.params(), json.loads(json.dumps(shaping_params(plan, stage)))
    return {name: (then[name], now[name]) for name in now if name in then and then[name] != now[name]}


def stale(run: RunDir, stage: str, plan: Plan | None = None, known: Known | None = None) -> Stale:
    """Whether the counting output of a stage is STALE; not when there is none.

    Raises RunError when the output can't be found out (a lender is gone).
    """
    known = {} if known is None else known
    key = (run.name, stage)
    if key not in known:
        known[key] = _stale(run, stage, plan or run.plan(), known)
    return known[key]


def _stale(run: RunDir, stage: str, plan: Plan, known: Known) -> Stale:
    output = counting_output(run, stage, plan)
    if output is None:
        return Stale()
    if output.stage.run.path != run.path:
        found = Stale(unlike(run, plan, output) or stale(output.stage.run, stage, None, known).reason, stage)
    else:
        found = _own(run, stage, plan, output, known)
    if not found.reason:
        return Stale()
    return dataclasses.replace(found, kept=kept(run).get(stage) == keep_of(output, found.reason))


def _own(run: RunDir, stage: str, plan: Plan, output: Output, known: Known) -> Stale:
    inputs = _inputs(output.source())
    # made anew with them, whatever its own reason is
    before = {name: _input_stale(run, plan, name, known) for name in inputs}
    root = next((found.root for found in before.values() if found.reason and not found.kept), stage)
    reason = _changed(run, stage, plan, output)
    for name, record in inputs.items():
        reason = reason or _input_moved(run, plan, name, record)
        if before[name].reason and not before[name].kept:
            reason = reason or f"its input {name} is stale: {before[name].reason}"
    return Stale(reason, root)


def _changed(run: RunDir, stage: str, plan: Plan, output: Output) -> str:
    """Which of its own parameters and files aren't what they were, nor the verifier in its place."""
    changes = changed_params(plan, stage, output)
    if changes:
        return "; ".join(
            f"{_key(stage, name)} is {show(new)} now, was {show(old)}" for name, (old, new) in changes.items()
        )
    source = output.source()
    files: Mapping[str, Any] = source.get("files") or {}
    for name, how in changed_files(output).items():
        return f"the file of {stage}.{name}, {files[name].get('path')}, {how} since"
    then = source.get("verifier_config")
    now = verifier_config(plan, run.path) if then else ""
    if now and then != now:
        return f"the config.json of the verifier {plan.verifier.path} isn't the one that it was made with"
    return ""


def _inputs(source: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    records = source.get("inputs")
    found = records.items() if isinstance(records, dict) else ()
    return {name: record for name, record in found if name in STAGES and isinstance(record, dict)}


def _input_moved(run: RunDir, plan: Plan, name: str, record: Mapping[str, Any]) -> str:
    try:
        now = counting_output(run, name, plan)
    except RunError as error:
        return f"its input {name} can't be found: {error.message}"
    if now is None:
        # reclaimed: what was made from it still stands
        return ""
    if now.stage.run.name != record.get("run"):
        return f"its input {name} comes from {now.stage.run.name} now, was {record.get('run')}"
    if now.number != record.get("output"):
        return f"its input {name} is output {now.number} now, was output {record.get('output')}"
    data = now.fingerprint
    if data is None:
        return f"its input {name} is being continued"
    if data != record.get("fingerprint"):
        return f"its input {name} was continued since (output {now.number})"
    return ""


def _input_stale(run: RunDir, plan: Plan, name: str, known: Known) -> Stale:
    try:
        return stale(run, name, plan, known)
    except RunError as error:
        return Stale(error.message, name)


def _key(stage: str, name: str) -> str:
    return name if "." in name else f"{stage}.{name}"
