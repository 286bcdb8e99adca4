"""What a service is and what state it is in: its definition from a plan, and a view of its files and locks.

Imports pipeline.rundir, pipeline.config and remote.agent.attempts. Takes no lock, starts nothing.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.config import DeployParams, GenerateParams, Plan, ServicePlan
from pipeline.hostpath import host_path
from pipeline.rundir import RunDir, RunError, fingerprint, held, incarnation, read_json, valid_name
from remote.agent.attempts import NOT_READY, ServiceDir
from remote.agent.health import HOST


@dataclass(frozen=True)
class Definition:
    """A service with everything filled in but a free port (port 0 in the plan)."""

    name: str
    plan: ServicePlan
    words: dict[str, str]
    """Placeholder -> text, without {port}."""

    @property
    def fingerprint(self) -> str:
        """Two runs whose definitions have the same one share the process."""
        return fingerprint(
            [self.command("{port}"), self.plan.port, self.plan.health, self.plan.gpus, dict(self.plan.env)]
        )

    def command(self, port: str) -> list[str]:
        """argv, without what belongs to drafting: deploy starts its engine itself, with a drafter and without."""
        filled: list[str] = []
        for word in self.plan.words(drafted=False):
            for name, text in {**self.words, "{port}": port}.items():
                word = word.replace(name, text)
            filled.append(word)
        return filled


def define(run: RunDir, plan: Plan, name: str) -> Definition:
    """The definition of a service of a plan. Raises RunError when the plan has none of that name."""
    service = plan.services.get(name)
    if service is None:
        raise RunError(f"the plan of {run.name} has no service {name}", "describe it under [services] in the plan")
    words = {
        "{host}": HOST,
        "{verifier}": str(host_path(plan.verifier.path, run.path)),
        "{python}": service.python or sys.executable,
    }
    return Definition(name, service, words)


def needed(plan: Plan, stage: str) -> tuple[str, ...]:
    """The services a stage needs, the one it talks to first. What deploy measures with it starts itself."""
    settings = plan.stages[stage]
    answers = settings.params.service if isinstance(settings.params, GenerateParams) else ""
    return tuple(dict.fromkeys([*filter(None, [answers]), *settings.services]))


def allowed_through(plan: Plan, stage: str) -> tuple[str, ...]:
    """Names of the environment that a stage is given for the engine it starts from a service's description."""
    params = plan.params(stage)
    if isinstance(params, DeployParams) and params.engine in plan.services:
        return plan.services[params.engine].env_allow
    return ()


@dataclass(frozen=True)
class ServiceView:
    """state: IDLE, STARTING, READY, SILENT (it was ready and doesn't answer now, ``since`` in wall seconds), STOPPING,
    STOPPED, FAILED or LOST (its supervisor is gone, it lives)."""

    state: str
    url: str = ""
    pid: int | None = None
    message: str = ""
    attempt: int | None = None
    fingerprint: str = ""
    since: float | None = None

    @property
    def up(self) -> bool:
        return self.state in ("STARTING", "READY", "SILENT", "LOST")


def view(root: Path, name: str) -> ServiceView:
    """What a service's files and locks say."""
    service = ServiceDir.of(root, name)
    attempt = service.latest()
    if attempt is None:
        return ServiceView("IDLE")
    spec, state = attempt.spec(), attempt.state()
    pid = (state.get("main") or {}).get("pid")
    base = ServiceView("FAILED", str(spec.get("url") or ""), attempt=attempt.number)
    base = replace(base, fingerprint=str(spec.get("fingerprint") or ""))
    ended = attempt.exit()
    if ended is None and held(service.lock_path):
        if attempt.stop_requested() or attempt.hung:
            return replace(base, state="STOPPING", pid=pid)
        silence = attempt.silence if attempt.ready else None
        if silence is not None:
            said, since = str(silence.get("message") or ""), silence.get("since")
            return replace(base, state="SILENT", pid=pid, message=said, since=since)
        return replace(base, state="READY" if attempt.ready else "STARTING", pid=pid)
    if ended is not None:
        if attempt.hung and not attempt.stop_requested():
            why = (attempt.silence or {}).get("message") or "its health path goes unanswered"
            return replace(base, message=f"it had stopped answering: {why}")
        if (attempt.requested("stop") or {}).get("by") == NOT_READY:
            return replace(base, message=f"it was not ready within {spec.get('ready_timeout_s'):.0f} s")
        kind = "STOPPED" if ended.get("reason") in ("stopped", "killed") else "FAILED"
        return replace(base, state=kind, message=str(ended.get("message") or ""))
    if state.get("incarnation") == incarnation() and attempt.living():
        return replace(base, state="LOST", pid=pid, message="its supervisor is gone, it still runs")
    return replace(base, state="FAILED", message="it ended without a record")


def uses(root: Path, name: str) -> list[str]:
    """RUN/STAGE of what uses a service now: it said so, and the stage, or the conductor that starts it, is alive."""
    found = []
    for path in sorted((root / "services" / name / "users").glob("*.json")):
        run, stage = path.stem, str((read_json(path) or {}).get("stage") or "")
        if not valid_name(run):
            continue
        if held(root / run / "conductor" / "lock") or (stage and held(root / run / stage / "lock")):
            found.append(f"{run}/{stage}")
    return found


def users(root: Path, name: str, but: str = "") -> list[str]:
    """The runs of those."""
    return [run for run in (use.partition("/")[0] for use in uses(root, name)) if run != but]


def describe(seen: ServiceView) -> dict[str, Any]:
    """A service's section of a run push."""
    told = ("state", "url", "pid", "message", "attempt", "since")
    return {name: getattr(seen, name) for name in told}
