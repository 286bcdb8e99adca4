"""What the console may ask of a host, one method an operation; each answers JSON values or raises a refusal.

Reads are safe to repeat at any time. What starts, stops or changes something is idempotent: asked twice, it happens
once. Imports pipeline.rundir, pipeline.config, pipeline.budget and modules beside it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.budget import explain
from pipeline.config import STAGES, ConfigError, Plan
from pipeline.forecast import check_run
from pipeline.geometry import GeometryError
from pipeline.rundir import (
    Attempt,
    RunDir,
    RunError,
    StageDir,
    StageState,
    counting_output,
    held,
    on_disk,
    run_status,
    runs,
    status,
)
from remote.agent import recorder, services, starting
from remote.agent.alone import kill_alone, runs_alone
from remote.agent.attempts import ServiceDir
from remote.agent.conducted import conductor_view, out_of_the_way, request_stop
from remote.agent.curves import Curves
from remote.agent.files import events, listing, tail
from remote.agent.holders import still_runs
from remote.agent.members import send
from remote.agent.paths import PathRefused, inside, run_path, service_path, stage_name
from remote.agent.rest import at_rest, ways_on
from remote.agent.trouble import told
from remote.agent.turns import Turns
from remote.protocol import DEADLINE_S, ProtocolError

ALIVE = (StageState.RUNNING, StageState.STOPPING)
LAST_WORDS_S = 5.0
"""A conductor that was asked to stop is there this long after its stage has ended: it stops services, and notes why."""
CHANGING = frozenset(
    {"create", "set", "start", "resume", "stop", "kill", "restart", "adopt", "service_start", "service_stop"}
)
ENDING = frozenset({"stop", "kill"})
"""What must get through whatever hangs."""
ENDING_PATIENCE_S = 2.0
"""A start that is under way is given this long to be there to be stopped."""


class Refused(Exception):
    """An answer with an error: code, message, remedy."""

    def __init__(self, code: str, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.remedy = code, message, remedy


def refusal(error: Exception) -> Refused:
    """Any exception of an operation as the answer it becomes."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, ProtocolError):
        return Refused(error.code, error.message)
    if isinstance(error, (RunError, ConfigError, GeometryError, PathRefused)):
        return Refused("refused", error.message, error.remedy)
    if isinstance(error, OSError):
        return Refused("refused", *told(error, Path("the host")))
    return Refused("internal", f"{type(error).__name__}: {error}", "please report this")


@dataclass(frozen=True)
class _WhatIf(RunDir):
    """A run as it would be with another plan."""

    given: Plan

    def plan(self, revision: int | None = None) -> Plan:
        return self.given


class Operations:
    def __init__(self, root: Path) -> None:
        self.root = root
        self._curves = Curves()
        self._reading_curves = threading.Lock()
        self._turns = Turns()

    def call(self, op: str, args: dict[str, Any], deadline_s: float = DEADLINE_S) -> Any:
        """The result of an operation whose arguments have been checked. Raises what `refusal` understands.

        A change waits for one of the same run or service for up to half of ``deadline_s``, and then isn't begun.
        """
        method: Callable[..., Any] = getattr(self, "op_" + op)
        words = {"from_" if name == "from" else name: value for name, value in args.items() if value is not None}
        if op not in CHANGING:
            return method(**words)
        subject = f"service {args['service']}" if "service" in args else str(args.get("run") or args.get("name"))
        if op in ENDING:
            with self._turns.of(subject, op, min(ENDING_PATIENCE_S, deadline_s / 2)) as before:
                return self._end(method, words, before)
        with self._turns.of(subject, op, deadline_s / 2) as before:
            if before:
                why = f"{subject}: an earlier {before.replace('_', ' ')} is still under way, so this was not done"
                raise Refused("refused", why, "ask again once it has ended; stop and kill go through meanwhile")
            return method(**words)

    def _end(self, method: Callable[..., Any], words: dict[str, Any], before: str) -> Any:
        try:
            return method(**words)
        except Refused as error:
            if not before:
                raise
            why = f"{error.message}, but an earlier {before} is still under way"
            raise Refused(error.code, why, "ask again in a moment") from None

    def _run(self, name: str) -> RunDir:
        path = run_path(self.root, name)
        if not (path / "run.json").exists():
            known = ", ".join(runs(self.root)[:8]) or "none yet"
            remedy = f"`eagledeck init {name}` makes it; runs there: {known}"
            raise Refused("not-found", f"there is no run {name} in {self.root}", remedy)
        return RunDir.open(path)

    def _stage(self, run: str, stage: str) -> StageDir:
        return self._run(run).stage(stage_name(stage))

    # ------------------------------------------------------------ reading

    def op_runs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for name in runs(self.root):
            try:
                run = RunDir.open(self.root / name)
                seen = run_status(run)
                states = {name: one.state.value for name, one in seen.items()}
            except RunError as error:
                found.append({"name": name, "state": "UNREADABLE", "message": str(error), "stages": {}})
                continue
            through = run.plan().through
            planned = STAGES[: STAGES.index(through) + 1]
            unsettled = [one for name, one in states.items() if one != "DONE" and (one != "PENDING" or name in planned)]
            conductor = conductor_view(run)
            busy = conductor["state"] in ("running", "waiting")
            stale = [name for name, one in seen.items() if one.undecided]
            halted = conductor["state"] == "halted" and conductor["cause"] != "stale"
            if busy:
                state = "RUNNING"
            elif halted:
                state = next((one for one in unsettled if one not in ("PENDING", "STOPPED")), "HALTED")
            else:
                state = next(iter(unsettled), "DONE")
            found.append(
                {
                    "name": name,
                    "state": state,
                    "message": conductor["message"],
                    "stages": states,
                    "through": through,
                    "stale": stale,
                    "created": run.identity().get("created"),
                }
            )
        return found

    def op_plan(self, run: str) -> dict[str, Any]:
        return self._run(run).plan().to_json()

    def op_metrics(
        self,
        run: str,
        stage: str,
        output: int | None = None,
        names: list[Any] | None = None,
        points: int = 600,
        since_step: float | None = None,
        until_step: float | None = None,
    ) -> dict[str, Any]:
        holder = self._stage(run, stage)
        if output is None:
            counting = counting_output(holder.run, stage)
            if counting is None:
                return {"columns": {}, "output": None, "last_step": None, "generation": ""}
            holder, output = counting.stage, counting.number
        wanted = None if names is None else [str(name) for name in names]
        with self._reading_curves:
            found = self._curves.read(holder, output, wanted, max(3, min(points, 5000)), since_step, until_step)
        return {**found, "output": output}

    def op_events(self, run: str, since: dict[str, Any] | None = None, max: int = 200) -> dict[str, Any]:
        return events(self._run(run), since, min(2000, max) if max > 0 else 200)

    def op_tail(
        self,
        run: str = "",
        stage: str = "",
        service: str = "",
        attempt: int | None = None,
        generation: str | None = None,
        offset: int = -16384,
        max: int = 49152,
    ) -> dict[str, Any]:
        if service:
            service_path(self.root, service)
        holder: StageDir = ServiceDir.of(self.root, service) if service else self._stage(run, stage)
        found = holder.latest() if attempt is None else holder.attempt(attempt)
        if found is None or not found.path.is_dir():
            start = f"`eagledeck {f'service start {run} {service}' if service else f'start {run}'}` starts it"
            raise Refused("not-found", f"{service or stage} has no log yet", start if run else "")
        return tail(found, offset, max, generation)

    def op_telemetry(self, since: float = 0.0, points: int = 600) -> dict[str, Any]:
        return {"columns": recorder.history(self.root, since, max(3, min(points, 5000)))}

    def op_budget(self, run: str, plan: dict[str, Any] | None = None) -> dict[str, Any]:
        holder = self._run(run)
        budget = check_run(_WhatIf(holder.path, Plan.from_json(plan)) if plan is not None else holder)
        return {**budget.to_json(), "lines": explain(budget)}

    def op_services(self, run: str) -> dict[str, Any]:
        holder = self._run(run)
        return {"services": {name: services.told_of(self.root, name) for name in holder.plan().services}}

    def op_stat(self, path: str) -> dict[str, Any]:
        return listing(inside(self.root, path))

    def op_doctor(self, run: str = "") -> dict[str, Any]:
        from remote.agent import doctor  # what it needs is needed once

        return doctor.examine(self.root, self._run(run) if run else None)

    # ------------------------------------------------------------ changing

    def op_create(self, name: str, plan: dict[str, Any]) -> dict[str, Any]:
        run_path(self.root, name)
        return RunDir.create(self.root, name, Plan.from_json(plan)).plan().to_json()

    def op_set(self, run: str, changes: dict[str, Any], note: str = "") -> dict[str, Any]:
        return self._run(run).change_plan(changes, note[:500]).to_json()

    def op_start(
        self,
        run: str,
        from_: str = "",
        through: str = "",
        stale: str = "refuse",
        restart: str = "",
        resume: str = "",
    ) -> dict[str, Any]:
        holder = self._run(run)
        if not out_of_the_way(holder, LAST_WORDS_S):
            raise Refused("refused", f"{run} is being stopped", "start it again once the stage has ended")
        seen = conductor_view(holder)
        if seen["pid"]:
            if restart:
                raise Refused(
                    "refused",
                    f"{run} is running ({seen['stage']})",
                    f"`eagledeck stop {run}` ends it; then restart {restart}",
                )
            return {"pid": seen["pid"], "already": True}
        options = {"from": from_, "through": through, "stale": stale, "restart": restart, "resume": resume}
        try:
            word = starting.start_conductor(holder.path, {name: value for name, value in options.items() if value})
        except RunError:
            again = conductor_view(holder)
            if again["pid"] and not restart:  # another console was faster
                return {"pid": again["pid"], "already": True}
            raise
        return {"pid": word["pid"], "already": False}

    def op_resume(self, run: str, stage: str = "", stale: str = "refuse") -> dict[str, Any]:
        if stage:
            seen = status(self._stage(run, stage))
            if not seen.resumable and seen.state not in (*ALIVE, StageState.LOST):
                why = f"{stage} is {seen.state.value}" + (f": {seen.message}" if seen.message else "")
                raise Refused("refused", why, seen.remedy or ways_on(self._run(run), stage))
        states = run_status(self._run(run))
        going_on = stage or next((name for name, seen in states.items() if seen.resumable), "")
        if not going_on and all(seen.state is StageState.DONE for seen in states.values()):
            raise Refused("refused", f"every stage of {run} is DONE", ways_on(self._run(run)))
        return self.op_start(run, resume=going_on, stale=stale)

    def op_restart(self, run: str, stage: str, stale: str = "refuse") -> dict[str, Any]:
        folder = self._stage(run, stage)
        seen, latest = status(folder), folder.latest()
        if seen.state in ALIVE:
            raise Refused("refused", f"{stage} is {seen.state.value}", f"`eagledeck stop {run} {stage}` ends it first")
        if latest is not None and seen.state is StageState.LOST and still_runs(latest):
            raise Refused("refused", f"{stage} is {seen.state.value}: {seen.message}", seen.remedy)
        return self.op_start(run, restart=stage, stale=stale)

    def op_stop(self, run: str, stage: str = "") -> dict[str, Any]:
        holder = self._run(run)
        conductor = False if stage else request_stop(holder)
        stopped = []
        for name, attempt in self._alive(holder, stage):
            attempt.request("stop", "a person")
            _wake(attempt)
            stopped.append(name)
        left, busy = ([], []) if stage or stopped or conductor else self._left_behind(holder)
        if busy and not left:
            why = f"nothing of {run} runs, and service {_names(busy)} is being started or stopped"
            raise Refused("refused", why, "try again in a minute")
        if not (stopped or conductor or left):
            raise Refused("refused", *at_rest(holder, stage))
        return {"stages": stopped, "conductor": conductor, "services": left}

    def _left_behind(self, run: RunDir) -> tuple[list[str], list[str]]:
        """Services that a killed conductor left: those stopped now, and those that somebody else decides about."""
        left, busy = [], []
        for name in services.used_by(run):
            if held(ServiceDir.of(self.root, name).path / "use.lock"):
                busy.append(name)
            elif services.release(run, name, keep=services.kept_by(run, name), wait=False):
                left.append(name)
        return left, busy

    def op_kill(self, run: str, stage: str = "") -> dict[str, Any]:
        holder = self._run(run)
        conductor = False if stage else request_stop(holder, kill=True)
        killed = []
        for name, attempt in self._alive(holder, stage):
            attempt.request("kill", "a person")
            _wake(attempt)
            if runs_alone(attempt):  # run by hand: nobody else would do it
                kill_alone(attempt)
            killed.append(name)
        if not killed and not conductor:
            raise Refused("refused", *at_rest(holder, stage))
        return {"stages": killed, "conductor": conductor}

    def op_service_start(self, run: str, service: str) -> dict[str, Any]:
        holder = self._run(run)
        already = services.start_alone(holder, self._planned(holder, service), by="a person")
        return {**services.told_of(self.root, service), "already": already}

    def op_service_stop(self, run: str, service: str, despite: list[Any] | None = None) -> dict[str, Any]:
        self._planned(self._run(run), service)
        before = services.stop(self.root, service, tuple(str(use) for use in despite or ()))
        return {"before": before}

    def _planned(self, run: RunDir, service: str) -> str:
        """``service`` when the run's plan has it."""
        service_path(self.root, service)
        planned = run.plan().services
        if service not in planned:
            raise Refused("not-found", f"{run.name} has no service {service}", f"its services: {_names(planned)}")
        return service

    def op_adopt(self, run: str, stage: str) -> dict[str, Any]:
        folder = self._stage(run, stage)
        seen, latest = status(folder), folder.latest()
        if seen.state in ALIVE:
            return {"pid": None, "already": True}
        if latest is None or seen.state is not StageState.LOST:
            raise Refused("refused", f"{stage} is {seen.state.value}; only a LOST stage is adopted", seen.remedy)
        return {"pid": starting.adopt(latest, f"{run}/{stage}")["pid"], "already": False}

    def _alive(self, run: RunDir, stage: str) -> list[tuple[str, Attempt]]:
        """Running stages with their attempts; a LOST one that still runs is supervised again, so that it obeys."""
        found = []
        for name in [stage_name(stage)] if stage else STAGES:
            folder = run.stage(name)
            seen, latest = on_disk(folder), folder.latest()
            if latest is None:
                continue
            if seen.state is StageState.LOST and still_runs(latest):
                starting.adopt(latest, f"{run.name}/{name}")
                found.append((name, latest))
            elif seen.state in ALIVE:
                found.append((name, latest))
        return found


def _names(found: Iterable[str]) -> str:
    return ", ".join(found) or "none"


def _wake(attempt: Attempt) -> None:
    """Has the supervisor look for requests now instead of within a second."""
    supervisor = attempt.state().get("supervisor") or {}
    if supervisor.get("pid") and not runs_alone(attempt):
        send((int(supervisor["pid"]), int(supervisor.get("start") or 0)), signal.SIGHUP)
