"""Whether a borrowed output is one that the borrower's own plan would ask for: the same verifier, the same extraction.

Imports pipeline.config, pipeline.hostpath and the other modules of this folder.
"""

from __future__ import annotations

import os
from pathlib import Path

from pipeline.config import ExtractParams, Plan
from pipeline.fields import show
from pipeline.hostpath import host_path
from pipeline.rundir.contents import record_of
from pipeline.rundir.errors import RunError
from pipeline.rundir.layout import RunDir
from pipeline.rundir.output import Output
from pipeline.rundir.paths import valid_name

_EXTRACTION = ("length", "dtype")
"""What training takes over from the extract it reads."""


def verifier_config(plan: Plan, run: Path) -> str:
    """sha256 of the verifier's config.json; "" without one. `run`: the plan's run, where a relative path lies.

    Raises OSError when it can't be read."""
    if not plan.verifier.path:
        return ""
    record = record_of(str(host_path(plan.verifier.path, run) / "config.json"))
    return str(record["sha256"]) if record else ""


def unlike(run: RunDir, plan: Plan, output: Output) -> str:
    """In what a borrowed output isn't what the borrower's plan says, in words; "" when it is. Raises OSError."""
    reasons = []
    verified = _verified(output)
    source = verified.source() if verified else {}
    path = (source.get("params") or {}).get("verifier.path")
    name, mine = output.name(), plan.verifier.path
    theirs = verified.stage.run.path if verified else run.path
    if mine and path and _place(path, theirs) != _place(mine, run.path):
        reasons.append(f"verifier.path is {show(plan.verifier.path)} here, and {name} was made with {show(path)}")
    elif path:
        then, now = source.get("verifier_config"), verifier_config(plan, run.path)
        if then and now and then != now:
            reasons.append(f"the config.json of the verifier {path} isn't the one that {name} was made with")
    params = plan.params(output.stage.stage)
    if isinstance(params, ExtractParams):
        then_params = output.params()
        for key in _EXTRACTION:
            now_value = getattr(params, key)
            if key in then_params and then_params[key] != now_value:
                was = show(then_params[key])
                reasons.append(f"extract.{key} is {show(now_value)} here, and {name} was made with {was}")
    return "; ".join(reasons)


def _place(path: str, run: Path) -> str:
    return os.path.normpath(host_path(path, run))


def _verified(output: Output, depth: int = 4) -> Output | None:
    """The nearest output, this one or one it is made from, that the verifier was loaded for."""
    source = output.source()
    params = source.get("params")
    if isinstance(params, dict) and "verifier.path" in params:
        return output
    inputs = source.get("inputs")
    for name, record in (inputs if isinstance(inputs, dict) and depth else {}).items():
        try:
            made_from = _recorded(output.stage.run, str(name), record)
        except (RunError, ValueError):
            continue  # reclaimed, or its run is gone
        found = _verified(made_from, depth - 1) if made_from else None
        if found is not None:
            return found
    return None


def _recorded(run: RunDir, stage: str, record: object) -> Output | None:
    if not isinstance(record, dict) or not valid_name(str(record.get("run"))):
        return None
    return RunDir.open(run.root / str(record["run"])).stage(stage).output(int(record.get("output") or 0))
