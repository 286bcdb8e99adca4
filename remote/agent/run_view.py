"""A run's section of a push: what its files and locks say, gathered once a second and sent when it has changed.

Imports pipeline.rundir, pipeline.forecast, pipeline.counts and modules beside it.
"""

from __future__ import annotations

import json
import time
from typing import Any

from pipeline.config import Plan
from pipeline.counts import counted, saved_step, worked_s
from pipeline.forecast import check_run
from pipeline.geometry import GeometryError
from pipeline.rundir import (
    STAGES,
    Attempt,
    RunDir,
    RunError,
    StageDir,
    StageState,
    StageStatus,
    counting_output,
    status,
)
from remote.agent.conducted import conductor_view
from remote.agent.service_view import describe, view

BUDGET_S = 30.0
SETTLED_S = 5.0
"""A stage that doesn't run is looked at this often: its locks and files are asked for nothing most of the time."""
REPORT_BYTES = 4096


class RunView:
    """``read()`` gives the section, or {"run", "error": {"message", "remedy"}} when the run can't be read."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self.plan: Plan | None = None
        self._stages: dict[str, tuple[float, dict[str, Any]]] = {}
        self._conducted: tuple[str, str] = ("", "")
        self._services: tuple[float, dict[str, Any]] = (0.0, {})
        self._budget: tuple[float, dict[str, Any] | None] = (0.0, None)

    def read(self) -> dict[str, Any]:
        try:
            return self._read()
        except RunError as error:
            return {"run": self.run.name, "error": {"message": error.message, "remedy": error.remedy}}

    def _read(self) -> dict[str, Any]:
        plan = self._current_plan()
        conductor = conductor_view(self.run)
        if (conductor["stage"], conductor["state"]) != self._conducted:
            # It has gone on: the stage before may have come and gone since it was looked at, others may be kept now.
            self._conducted = conductor["stage"], conductor["state"]
            self._stages.clear()
        stages = {name: self._stage(name, plan, conductor) for name in STAGES}
        counts: dict[str, Any] = {}
        for name in ("samples", "tokens"):
            counts[name] = stages["generate"]["counts"].get(name)
        counts["bytes"] = sum(stage["bytes"] or 0 for stage in stages.values())
        return {
            "run": self.run.name,
            "plan_revision": plan.revision,
            "through": plan.through,
            "verifier": plan.verifier.name or plan.verifier.path.rstrip("/").rsplit("/", 1)[-1],
            "conductor": conductor,
            "stages": stages,
            "services": self._service_views(plan),
            "counts": counts,
            "budget": self._budget_now(),
        }

    def _current_plan(self) -> Plan:
        revisions = self.run.plans()
        if self.plan is None or not revisions or self.plan.revision != revisions[-1]:
            self.plan = self.run.plan()
            self.look_again()
        return self.plan

    def look_again(self) -> None:
        """Something was just done to the run: nothing that is held counts any longer."""
        self._stages.clear()
        self._services = (0.0, {})
        self._budget = (0.0, None)

    def _stage(self, name: str, plan: Plan, conductor: dict[str, Any]) -> dict[str, Any]:
        now = time.monotonic()
        at, known = self._stages.get(name, (0.0, {}))
        live = known.get("state") in ("RUNNING", "STOPPING") or conductor["stage"] == name
        if known and not live and now - at < SETTLED_S:
            return known
        fresh = stage_view(self.run, name, plan)
        if known and known["state"] != fresh["state"]:
            self._stages.clear()  # what one stage becomes may make others stale, or not
        self._stages[name] = now, fresh
        return fresh

    def _service_views(self, plan: Plan) -> dict[str, Any]:
        if time.monotonic() - self._services[0] >= 2.0 or not self._services[1]:
            found = {name: describe(view(self.run.root, name)) for name in plan.services}
            self._services = time.monotonic(), found
        return self._services[1]

    def _budget_now(self) -> dict[str, Any] | None:
        if not self._budget[0] or time.monotonic() - self._budget[0] >= BUDGET_S:
            self._budget = time.monotonic(), _budget(self.run)
        return self._budget[1]


def _budget(run: RunDir) -> dict[str, Any]:
    try:
        full = check_run(run).to_json()
    except (GeometryError, RunError) as error:
        return {"need_bytes": None, "available_bytes": None, "fits": None, "text": error.message}
    except OSError as error:
        return {"need_bytes": None, "available_bytes": None, "fits": None, "text": str(error.strerror)}
    keep = ("need_bytes", "available_bytes", "capacity_bytes", "fits", "largest_samples", "basis", "text")
    # Rounded, so that a budget which moves by a few bytes is no news.
    return {name: round(full[name], -6) if name == "available_bytes" else full[name] for name in keep}


def stage_view(run: RunDir, name: str, plan: Plan) -> dict[str, Any]:
    """One stage: its status, and what its attempts and its output say about it. None: unknown."""
    folder = run.stage(name)
    seen = status(folder, plan)
    attempt = folder.attempt(seen.attempt) if seen.attempt is not None else None
    progress = (attempt.progress() if attempt else None) or {}
    # an attempt that is loading has counted nothing yet, and its output holds what the one before has
    known = progress if progress.get("counts") else counted(folder, seen.output if attempt else None)
    report = _report(run, name, plan, seen)
    stop = attempt.requested("stop") if attempt and seen.state is StageState.STOPPING else None
    now = time.time()
    return {
        "state": seen.state.value,
        "attempt": seen.attempt,
        "output": seen.output,
        "resumable": seen.resumable,
        "stale": seen.stale,
        "stale_reason": seen.stale_reason,
        "stale_root": seen.stale_root,
        "kept": seen.kept,
        "message": seen.message,
        "remedy": seen.remedy,
        "started": seen.started,
        "ended": seen.ended,
        "elapsed_s": _elapsed(folder, seen, now),
        "saved": saved_step(folder, seen.output) if seen.resumable else None,
        "progress": {key: value for key, value in progress.items() if key not in ("counts", "bytes")},
        "counts": report.get("counts") or known.get("counts") or {},
        "bytes": progress.get("bytes") or known.get("bytes"),
        "report": report,
        "borrowed": seen.borrowed,
        "stop_grace_s": _grace(attempt, plan.stages[name].grace_s) if stop and attempt else None,
        "stop_since": stop.get("t") if stop else None,
    }


def _grace(attempt: Attempt, planned: float) -> float:
    """Seconds that its supervisor gives a stopping stage; what is planned until it has said so."""
    given = attempt.state().get("grace_s")
    return float(given) if isinstance(given, (int, float)) else planned


def _elapsed(stage: StageDir, seen: StageStatus, now: float) -> float | None:
    """Seconds of work on the output: this attempt and the ones before it, without the pauses between them."""
    if seen.started is None or seen.attempt is None:
        return None
    return round(max(0.0, (seen.ended or now) - seen.started) + worked_s(stage, seen.output, seen.attempt), 1)


def _report(run: RunDir, name: str, plan: Plan, seen: StageStatus) -> dict[str, Any]:
    """The report of a complete output, without what is too large for a push."""
    if seen.state is not StageState.DONE:
        return {}
    try:
        output = counting_output(run, name, plan)
    except RunError:
        return {}
    report = (output.report() if output else None) or {}
    small = {key: value for key, value in report.items() if key not in ("params", "inputs")}
    for key in sorted(small, key=lambda key: -len(json.dumps(small[key]))):
        if len(json.dumps(small)) <= REPORT_BYTES:
            break
        del small[key]
    return small


def same(before: dict[str, Any] | None, now: dict[str, Any]) -> bool:
    """Whether a section says nothing new: the clocks alone don't count."""
    return before is not None and _still(before) == _still(now)


def _still(section: dict[str, Any]) -> dict[str, Any]:
    stages = section.get("stages") or {}
    return {**section, "stages": {name: {**stage, "elapsed_s": None} for name, stage in stages.items()}}
