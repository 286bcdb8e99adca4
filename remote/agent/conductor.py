"""One conductor per run: goes from stage to stage, with the services each needs, while nobody is connected.

Detached, under its own lock; it owns nothing that can't be told from the files, so it can be killed and started again
at any moment. Imports pipeline.rundir, pipeline.budget and modules beside it.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from pathlib import Path
from typing import Any

from pipeline.budget import explain
from pipeline.config import Plan
from pipeline.fate import KEPT, Intent, fates
from pipeline.forecast import check_run
from pipeline.geometry import GeometryError
from pipeline.rundir import (
    STAGES,
    JsonLines,
    Lock,
    RunDir,
    RunError,
    StageState,
    counting_output,
    held,
    incarnation,
    process_start,
    resume_refusal,
    run_status,
    status,
    write_json,
)
from pipeline.rundir.kept import forget, keep, keep_of
from remote.agent import keeper, services
from remote.agent.conducted import REQUESTS, drop_old_requests, mark_start
from remote.agent.detach import Ready, detach
from remote.agent.errand import Errand, errand_of
from remote.agent.holders import still_runs
from remote.agent.route import Step, next_step
from remote.agent.service_view import allowed_through, needed, view
from remote.agent.staleness import refusal
from remote.agent.starting import adopt, keep_recorded, start_stage
from remote.agent.trouble import told

TICK_S = 0.25
SERVICES_S = 5.0
_ENDED = {"finish": "done", "stop": "stopped"}


def conduct(path: Path, options: dict[str, str]) -> int:
    """Detaches and conducts the run. Prints {"ok", "pid"}; 1 and the reason when it doesn't begin."""
    try:
        run = RunDir.open(path)
        errand = errand_of(run, options)
        folder = run.path / "conductor"
        folder.mkdir(mode=0o700, exist_ok=True)
    except RunError as error:
        return Ready(1).refused(error.message, error.remedy)
    except OSError as error:
        return Ready(1).refused(*told(error, path))
    return detach(lambda ready: Conductor(run, errand, ready).run(), folder / "log")


class Stopped(Exception):
    """Somebody asked the conductor to stop."""


class Conductor:
    def __init__(self, run: RunDir, errand: Errand, ready: Ready) -> None:
        self.run_dir, self.errand, self.ready = run, errand, ready
        self.folder = run.path / "conductor"
        self.begun: set[str] = set()
        self.redone: set[str] = set()
        self.using: set[str] = set()
        self.told: dict[str, str] = {}
        self.silent: set[str] = set()
        self._fixed_through = errand.through != run.plan().through

    def run(self) -> int:
        """The whole life of the conductor; the exit status of the detached process."""
        control = self.folder / "control"
        try:
            control.mkdir(mode=0o700, exist_ok=True)
            mark_start(control)
            self.lock = Lock.acquire(self.folder / "lock")
            if self.lock is None:
                return self.ready.refused(
                    f"{self.run_dir.name} is being conducted already",
                    "watch it, or stop it first (`eagledeck stop RUN`)",
                )
            drop_old_requests(control)
        except OSError as error:
            return self.ready.refused(*told(error, self.folder))
        signal.signal(signal.SIGTERM, lambda *_: self._stop_by_signal())
        try:
            refused = self._refusal()
        except RunError as error:
            refused = error.message, error.remedy
        except OSError as error:
            refused = told(error, self.run_dir.path)
        if refused:
            return self.ready.refused(*refused)
        self.journal = JsonLines(self.folder / "events.jsonl")
        self._save("running", Step("watch"))
        self.ready.running()
        keep_recorded(self.run_dir.root)
        last = Step("halt", message="it ended unexpectedly", remedy=f"look into {self.folder / 'log'}")
        try:
            last = self._go()
        except Stopped:
            last = Step("stop", message="stopped on request", remedy="resume goes on from here")
        except RunError as error:
            last = Step("halt", message=error.message, remedy=error.remedy)
        except OSError as error:
            last = Step("halt", "", *told(error, self.run_dir.path))
        finally:
            self._release(())
            self._save(_ENDED.get(last.kind, "halted"), last)
            if last.cause == "ended":
                self._note("halted", "the run rests")
            else:
                self._note("finished" if last.kind == "finish" else "halted", last.message, stage=last.stage)
        return 0

    def _refusal(self) -> tuple[str, str] | None:
        """What would stop it right away is told to the person who pressed start, instead of after a night."""
        stale = refusal(run_status(self.run_dir), self.errand)
        if stale:
            return stale
        step = self._next()
        if step.kind == "halt":
            return step.message, step.remedy
        return self._over_budget()

    def _over_budget(self) -> tuple[str, str] | None:
        """The arithmetic, when this errand writes hidden states and they can't fit the volume."""
        errand = self.errand
        restart = errand.restart if errand.restart not in self.begun else ""
        stale = "follow" if errand.resume and errand.stale == "refuse" else errand.stale
        intent = Intent(errand.first, errand.through, restart, stale)
        if "extract" not in errand.stages():
            return None
        if fates(self.run_dir, self.run_dir.plan(), intent)["extract"].kind == KEPT:
            return None
        try:
            budget = check_run(self.run_dir, intent)
        except (GeometryError, RunError) as error:
            return f"the budget can't be worked out: {error.message}", error.remedy
        if budget.fits:
            return None
        lines = explain(budget)
        return "\n".join(["this run can't fit its volume", *lines[:-1]]), lines[-1]

    # ------------------------------------------------------------ the way

    def _go(self) -> Step:
        if self.errand.stale == "rerun" and not any(seen.undecided for seen in run_status(self.run_dir).values()):
            # whoever asks for it then means what is kept
            forget(self.run_dir)
        while True:
            self._check_stop()
            step = self._next()
            self._remember(step)
            if step.kind in ("finish", "halt"):
                return step
            if step.kind == "adopt":
                attempt = self.run_dir.stage(step.stage).latest()
                assert attempt is not None
                adopt(attempt, f"{self.run_dir.name}/{step.stage}")
                self._note("adopted", f"{step.stage} had lost its supervisor", stage=step.stage)
            elif step.kind != "watch":
                if status(self.run_dir.stage(step.stage)).state is StageState.DONE:
                    self.redone.add(step.stage)
                self._begin(step)
            self.begun.add(step.stage)
            self._watch(step.stage)

    def _next(self) -> Step:
        plan = self.run_dir.plan()
        if not self._fixed_through and STAGES.index(plan.through) >= STAGES.index(self.errand.first):
            self.errand = dataclasses.replace(self.errand, through=plan.through)
        states = run_status(self.run_dir, plan)
        stages = {name: self.run_dir.stage(name) for name in STAGES}
        lost = [name for name, seen in states.items() if seen.state is StageState.LOST and not seen.resumable]
        living = [name for name in lost if (latest := stages[name].latest()) is not None and still_runs(latest)]
        stale = [name for name, seen in states.items() if seen.stale and seen.state is StageState.DONE]
        continuable = [name for name in stale if not resume_refusal(stages[name], plan)]
        return next_step(states, self.errand, self.begun, continuable, living, self.redone)

    def _remember(self, step: Step) -> None:
        """Which stale stages a person keeps: those that the errand goes past, so that nobody is asked twice."""
        if self.errand.stale != "keep" or step.kind == "halt":
            return
        states, todo = run_status(self.run_dir), self.errand.stages()
        passed = todo[: todo.index(step.stage)] if step.stage else todo
        found = {}
        for name in passed:
            output = counting_output(self.run_dir, name)
            if output is not None and states[name].undecided:
                found[name] = keep_of(output, states[name].stale_reason)
        keep(self.run_dir, found)

    def _begin(self, step: Step) -> None:
        stage, plan = step.stage, self.run_dir.plan()
        if stage == "extract":
            over = self._over_budget()
            if over:
                raise RunError(*over)
        environment = self._provide(plan, stage)
        self._check_stop()
        attempt = start_stage(
            self.run_dir.stage(stage),
            restart=step.kind == "restart",
            environment=environment,
            allow=allowed_through(plan, stage),
            needs=needed(plan, stage),
            by="conductor",
        )
        did = {"start": "started", "resume": "resumed", "restart": "restarted"}.get(step.kind, step.kind)
        self._note(step.kind, f"{stage} {did}, attempt {attempt.number}", stage=stage, attempt=attempt.number)

    def _watch(self, stage: str) -> None:
        """Until nobody holds the stage's lock. Losing the supervisor is seen by the next step.

        A stage whose service can't come back where it was asked is stopped, so that it talks to nobody else. Raises
        RunError then.
        """
        self._save("running", Step("watch", stage))
        lock, next_check = self.run_dir.stage(stage).lock_path, 0.0
        gone: keeper.AddressTaken | None = None
        while held(lock):
            self._pass_on(stage)
            if gone is None and time.monotonic() >= next_check:
                next_check = time.monotonic() + SERVICES_S
                keep_recorded(self.run_dir.root)
                gone = self._keep_up(stage)
                latest = self.run_dir.stage(stage).latest() if gone else None
                if latest is not None:
                    latest.request("stop", "the conductor: its service is gone")
            time.sleep(TICK_S)
        if gone and status(self.run_dir.stage(stage)).state is not StageState.DONE:
            raise gone

    def _pass_on(self, stage: str) -> None:
        """A run that is stopped or killed takes the stage with it that was being started just then."""
        asked = next((name for name in REQUESTS if (self.folder / "control" / name).exists()), None)
        latest = self.run_dir.stage(stage).latest() if asked else None
        if asked and latest is not None and latest.state() and latest.requested(asked) is None:
            latest.request(asked, f"{asked} of the whole run")

    # ------------------------------------------------------------ services

    def _provide(self, plan: Plan, stage: str) -> dict[str, str]:
        """Stops the services that the stage doesn't need, then has those ready that it does: their URLs."""
        names = needed(plan, stage)
        self._release(names)
        urls: dict[str, str] = {}
        for name in names:
            self.using.add(name)
            self._save("waiting", Step("watch", stage, f"service {name}"))
            say = self._say(stage)
            urls[name] = services.ensure(self.run_dir, plan, name, stage, self._stop_asked, say)
        environment = {f"EAGLEDECK_SERVICE_URL_{_variable(name)}": url for name, url in urls.items()}
        if names:
            environment["EAGLEDECK_SERVICE_URL"] = urls[names[0]]
        return environment

    def _say(self, stage: str) -> Any:
        return lambda message: self._note("service", message, stage=stage)

    def _keep_up(self, stage: str) -> keeper.AddressTaken | None:
        """Tells what the keepers of the services did; the reason when the stage can't go on with one."""
        for name in sorted(self.using):
            try:
                did = keeper.news(self.run_dir.root, name)
            except keeper.AddressTaken as error:
                self._note("service", error.message, stage=stage)
                return error
            except RunError as error:
                did = f"service {name} isn't looked after: {error.message}"
            if did and self.told.get(name) != did:
                self._note("service", did, stage=stage)
            self.told[name] = did
            self._tell_silence(stage, name)
        return None

    def _tell_silence(self, stage: str, name: str) -> None:
        """Once when a service stops answering, and once when it, or what came in its place, answers again."""
        seen = view(self.run_dir.root, name)
        if seen.state == "SILENT" and name not in self.silent:
            self.silent.add(name)
            self._note("service", f"service {name} isn't answering: {seen.message}", stage=stage)
        elif seen.state == "READY" and name in self.silent:
            self.silent.discard(name)
            self._note("service", f"service {name} answers again", stage=stage)

    def _release(self, but: tuple[str, ...]) -> None:
        """Services that `but` doesn't name; those of an earlier conductor of this run too. Needs no readable plan."""
        for name in sorted({*self.using, *services.used_by(self.run_dir)} - {*but}):
            try:
                if services.release(self.run_dir, name, keep=services.kept_by(self.run_dir, name)):
                    self._note("service", f"service {name} is stopped: nobody needs it now")
                self.using.discard(name)
            except (RunError, OSError) as error:
                self._note("service", f"service {name} couldn't be stopped: {error}")

    # ------------------------------------------------------------ files

    def _stop_asked(self) -> bool:
        return (self.folder / "control" / "stop").exists()

    def _check_stop(self) -> None:
        if self._stop_asked():
            raise Stopped

    def _stop_by_signal(self) -> None:
        # The stages go on; a new conductor takes up from their files.
        os._exit(0)

    def _save(self, state: str, step: Step) -> None:
        record = {
            "schema": 1,
            "state": state,
            "stage": step.stage,
            "message": step.message,
            "remedy": step.remedy,
            "cause": step.cause,
            "through": self.errand.through,
            "settles": self.errand.settles(),
            "pid": os.getpid(),
            "start": process_start(os.getpid()),
            "incarnation": incarnation(),
            "wall": time.time(),
        }
        try:
            write_json(self.folder / "state.json", record)
        except OSError as error:
            self._note("alert", f"state.json can't be written: {error.strerror}")

    def _note(self, kind: str, message: str, **more: Any) -> None:
        try:
            self.journal.append({"t": time.time(), "kind": kind, "message": message, **more})
        except OSError:
            pass  # a full volume ends no run


def _variable(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name).upper()
