"""What every stage process uses: its run, parameters, inputs and output; progress, metrics and events; stop and resume.

`run_stage` is the main of `python -m pipeline.STAGE --run DIR [--attempt PATH] [--restart]`. With --attempt a supervisor
opened the attempt, holds the lock and writes exit.json; without it the stage does all of that itself ("alone").
Imports pipeline.config, pipeline.rundir and small neighbours; never torch.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pipeline.config import LIVE, STAGES, ConfigError, Plan, StageParams, size_text
from pipeline.failure import StageError, explain, mount_of
from pipeline.rate import Rate, eta_s
from pipeline.rundir import Attempt, JsonLines, Lock, Output, RunDir, RunError, StageDir, recorded_inputs, stale
from pipeline.rundir.identity import process_start
from pipeline.rundir.lineage import shaping_params

__all__ = ["WRITER_FD", "StageError", "StageRun", "Stopped", "run_stage"]

WRITER_FD = "EAGLEDECK_WRITER_FD"
"""Environment variable that carries the number of the inherited descriptor of writer.lock."""

_PROGRESS_EVERY_S, _POLL_EVERY_S, _LIVE_EVERY_S = 0.5, 0.1, 1.0
_SPARE_BYTES = 64 << 10


class Stopped(Exception):
    """A stage raises it once everything is saved, because `stopping()` was true."""


class StageRun:
    """A running attempt as its stage sees it. Under torchrun only rank 0 writes; the other ranks' calls do nothing."""

    def __init__(self, attempt: Attempt, log: Callable[[str], None]) -> None:
        spec = attempt.spec()
        self.attempt = attempt
        self.run: RunDir = attempt.stage.run
        self.stage: str = attempt.stage.stage
        self.plan: Plan = self.run.plan(spec.get("plan_revision"))
        self.params: StageParams = self.plan.params(self.stage)
        self.rank = int(os.environ.get("RANK", "0"))
        counting = attempt.output()
        self.output: Path = counting.path
        self.inputs: dict[str, Output] = recorded_inputs(self.run, counting)
        self.resumed: bool = bool(spec.get("resumed"))
        self.finished = False
        self.stop_signal = ""
        self._log = log
        self._stop = False
        self._polled_at = self._live_at = self._progress_at = -1e9
        self._phase = ""
        self._rate = Rate()
        self._pending: dict[str, Any] | None = None
        self._metrics: JsonLines | None = None
        self._events: JsonLines | None = None

    @property
    def main(self) -> bool:
        """Whether this process is the one that writes (rank 0)."""
        return self.rank == 0

    def log(self, line: str) -> None:
        """One line into the stage's log."""
        self._log(line)

    def stopping(self) -> bool:
        """Whether a stop was asked for (control/stop, SIGINT, SIGTERM). Cheap: ask at every step, then save and raise Stopped."""
        if self._stop:
            return True
        now = time.monotonic()
        if self.stop_signal:
            self._stop = True
            if self.main:
                self.attempt.request("stop", by=self.stop_signal)
        elif now - self._polled_at >= _POLL_EVERY_S:
            self._polled_at = now
            self._stop = self.attempt.stop_requested()
        return self._stop

    def checkpoint_requested(self) -> bool:
        """Whether somebody asks for a checkpoint now; true once for each request."""
        if not self.main or self.attempt.requested("checkpoint") is None:
            return False
        self.attempt.answer("checkpoint")
        return True

    def progress(
        self,
        done: int,
        total: int | None,
        unit: str,
        *,
        counts: Mapping[str, float] | None = None,
        bytes: int = 0,
        phase: str = "running",
        force: bool = False,
    ) -> None:
        """Say where the stage is: `done` of `total` (None: unknown) in samples, tokens, steps or prompts; `bytes` written.

        Written to progress.json at most twice a second, at once when the phase changes. Never fails the stage.
        """
        if not self.main:
            return
        now = time.monotonic()
        if phase != self._phase:
            self._rate.restart()
            self._phase, force = phase, True
        if not force and now - self._progress_at < _PROGRESS_EVERY_S:
            self._pending = {
                "done": done,
                "total": total,
                "unit": unit,
                "counts": counts,
                "bytes": bytes,
                "phase": phase,
            }
            return
        self._progress_at, self._pending = now, None
        rate = self._rate.add(now, done)
        record = {
            "done": done,
            "total": total,
            "unit": unit,
            "rate": rate,
            "eta_s": eta_s(done, total, rate),
            "counts": dict(counts or {}),
            "bytes": bytes,
            "phase": phase,
            "t": time.time(),
        }
        try:
            self.attempt.write_progress(record)
        except OSError:
            # a full volume is reported by the stage's own writes; a number on a screen isn't worth a run
            pass

    def metric(
        self, step: int, epoch: float | None = None, values: Mapping[str, float | None] | None = None, **named: float
    ) -> None:
        """Add numbers of a step to metrics.jsonl; names with a slash (`train/loss`) go into `values`. NaN is kept as null."""
        row: dict[str, Any] = {"t": time.time(), "step": step}
        if epoch is not None:
            row["epoch"] = epoch
        self._metric_row({**row, **(values or {}), **named})

    def resumed_at(self, step: int) -> None:
        """Say before the first metric that this attempt goes on after `step` (0: anew); curves are cut there."""
        self._metric_row({"resume_step": step, "t": time.time()})

    def event(self, kind: str, message: str, **fields: Any) -> None:
        """Add an event (checkpoint, warning, reject, info, saved) to events.jsonl; warnings are logged too."""
        if not self.main:
            return
        if self._events is None:
            self._events = JsonLines(self.attempt.path / "events.jsonl")
        self._events.append({"t": time.time(), "kind": kind, "message": message, **fields})
        if kind == "warning":
            self.log(f"warning: {message}")

    def live_params(self) -> StageParams:
        """The parameters with the newest plan's values of config.LIVE; the plan is read at most once a second."""
        now = time.monotonic()
        if now - self._live_at >= _LIVE_EVERY_S:
            self._live_at = now
            try:
                newest = self.run.plan().params(self.stage)
            except (RunError, OSError):
                return self.params
            names = (key.partition(".")[2] for key in LIVE if key.startswith(self.stage + "."))
            changes = {name: getattr(newest, name) for name in names}
            changes = {name: value for name, value in changes.items() if value != getattr(self.params, name)}
            if changes:
                words = ", ".join(f"{self.stage}.{name} = {value}" for name, value in changes.items())
                self.event("info", f"taken up from the plan: {words}")
                self.log(f"taken up from the plan: {words}")
                self.params = dataclasses.replace(self.params, **changes)
                stages = {**self.plan.stages}
                stages[self.stage] = dataclasses.replace(stages[self.stage], params=self.params)
                self.plan = dataclasses.replace(self.plan, stages=stages)
        return self.params

    def free_bytes(self) -> int:
        """Bytes that may still be written: free on the volume (and within the plan's capacity), less the reserve."""
        info = os.statvfs(self.output)
        free = info.f_bavail * info.f_frsize
        if self.plan.volume.capacity_bytes:
            used = (info.f_blocks - info.f_bfree) * info.f_frsize
            free = min(free, self.plan.volume.capacity_bytes - used)
        return max(0, free - self.plan.volume.reserve_bytes)

    def check_space(self, next_bytes: int) -> None:
        """Raise StageError when the next write of that size would touch the reserve; save first, the stage stays resumable."""
        free = self.free_bytes()
        if free < next_bytes:
            raise StageError(
                f"The volume {mount_of(self.output)} has room for {size_text(free)} more before its reserve of "
                f"{size_text(self.plan.volume.reserve_bytes)}, and {self.stage} is about to write {size_text(next_bytes)}",
                "Free space (`eagledeck gc` lists what can be reclaimed) or lower volume.reserve_bytes, then resume",
            )

    def finish(self, counts: Mapping[str, float], fingerprint: str, **report: Any) -> None:
        """Write report.json: the output is complete. `fingerprint` identifies the data; it mustn't be empty."""
        if not fingerprint:
            raise ValueError("an output needs a fingerprint")
        if self.main:
            record = {
                **report,
                "schema": 1,
                "stage": self.stage,
                "fingerprint": fingerprint,
                "counts": dict(counts),
                "params": shaping_params(self.plan, self.stage),
                "plan_revision": self.plan.revision,
                "attempt": self.attempt.number,
                "ended": time.time(),
            }
            self.attempt.output().write_report(record)
        self.finished = True

    def close(self) -> None:
        """Write the last progress that was held back, and close the files."""
        if self._pending is not None:
            self.progress(**self._pending, force=True)
        for file in (self._metrics, self._events):
            if file is not None:
                file.close()

    def _metric_row(self, row: Mapping[str, Any]) -> None:
        if not self.main:
            return
        if self._metrics is None:
            self._metrics = JsonLines(self.attempt.path / "metrics.jsonl")
        self._metrics.append(row)


def run_stage(name: str, body: Callable[[StageRun], object], argv: list[str] | None = None) -> int:
    """Run `body` as the stage `name`; the exit status: 0 done or stopped, 1 failed.

    `body` saves and raises Stopped (or returns "stopped") when `stopping()`, raises StageError when it can't go on, and calls
    `finish` when the output is complete. Whatever else it raises ends the attempt as failed: a sentence for people, the
    traceback in stage.log.
    """
    assert name in STAGES
    parser = argparse.ArgumentParser(prog=f"python -m pipeline.{name}", description=f"Run the stage {name} of a run.")
    parser.add_argument("--run", required=True, metavar="DIR", help="the run directory")
    parser.add_argument("--attempt", metavar="PATH", help="an attempt that a supervisor opened")
    parser.add_argument(
        "--restart", action="store_true", help="open a new output instead of going on with the last one"
    )
    options = parser.parse_args(argv)
    try:
        stage = RunDir.open(options.run).stage(name)
        if options.attempt:
            return _supervised(stage, Path(options.attempt), body)
        return _alone(stage, options.restart, body)
    except (RunError, ConfigError) as error:
        print(f"{name}: {error}", file=sys.stderr, flush=True)
    except OSError as error:
        failure = explain(error, name, Path(options.run))
        print(f"{name}: {failure.message}. {failure.remedy}", file=sys.stderr, flush=True)
    return 1


def _supervised(stage: StageDir, path: Path, body: Callable[[StageRun], object]) -> int:
    attempt = stage.attempt(int(path.name))
    if path.resolve() != attempt.path.resolve() or not attempt.spec():
        raise RunError(
            f"{path} is no attempt of {stage.run.name}/{stage.stage}", "Start the stage through its supervisor"
        )
    descriptor = os.environ.pop(WRITER_FD, "")
    with ExitStack() as stack:
        if descriptor:
            stack.enter_context(Lock.inherited(stage.writer_lock_path, int(descriptor)))
        code, _ = _run_body(attempt, body, lambda line: print(line, flush=True), traceback.print_exc)
    return code


def _alone(stage: StageDir, restart: bool, body: Callable[[StageRun], object]) -> int:
    label = f"{stage.run.name}/{stage.stage}"
    lock = Lock.acquire(stage.make().lock_path)
    if lock is None:
        raise RunError(f"{label} is running already", "Stop it first, or look at it with `eagledeck status`")
    with lock:
        current = stage.current()
        if current is not None and current.complete and not restart and not stale(stage.run, stage.stage):
            print(f"{label} is done already (output {current.number}); --restart opens a new output", flush=True)
            return 0
        attempt = stage.new_attempt(restart=restart, argv=sys.orig_argv, by="alone")
        writer = Lock.acquire(stage.writer_lock_path)
        if writer is None:
            raise RunError(f"A process of {label} still writes", "Stop or kill the stage, then start it again")
        with writer, (attempt.path / "stage.log").open("a", encoding="utf-8", buffering=1) as log:
            me = {"pid": os.getpid(), "start": process_start(os.getpid())}
            attempt.write_state(phase="running", supervisor=me, main=me, members=[])

            def say(line: str) -> None:
                print(line, flush=True)
                log.write(line + "\n")

            code, ended = _run_body(attempt, body, say, lambda: traceback.print_exc(file=log))
            attempt.write_state(phase="ended")
            attempt.write_exit(code=code, signal=None, **ended)
    return code


def _run_body(
    attempt: Attempt, body: Callable[[StageRun], object], say: Callable[[str], None], trace: Callable[[], None]
) -> tuple[int, dict[str, Any]]:
    """Run the body, write outcome.json last; returns the exit status and {"reason","message","remedy","resumable"}."""
    name, spare = attempt.stage.stage, attempt.path / "spare"
    run: StageRun | None = None
    result, message, remedy, resumable = "failed", "", "", True
    _set_aside(spare)
    try:
        run = StageRun(attempt, say)
        with _stop_signals(run, say):
            say(f"{name}: attempt {attempt.number}, output {run.output.name}{', resumed' if run.resumed else ''}")
            try:
                answer = body(run)
                if run.finished:
                    result, resumable = "done", False
                elif answer == "stopped" or run.stopping():
                    result = "stopped"
                else:
                    message, remedy = f"{name} ended without completing its output", "Look at its log, then resume it"
            except (Stopped, KeyboardInterrupt):
                result = "stopped"
            run.close()
    except BaseException as error:
        if isinstance(error, SystemExit) and run is not None and run.finished:
            result, resumable = "done", False
        else:
            failure = explain(error, name, attempt.path)
            result, message, remedy, resumable = "failed", failure.message, failure.remedy, failure.resumable
            if not failure.expected:
                trace()
    if result == "stopped" and not message:
        message = f"stopped by {_who(attempt)}; resume goes on from what was saved"
    spare.unlink(missing_ok=True)
    _say_safely(say, f"{name}: {result}" + (f": {message}" if message else "") + (f". {remedy}" if remedy else ""))
    if run is None or run.main:
        attempt.write_outcome(result, message, remedy, resumable)
    ended = {"reason": result, "message": message, "remedy": remedy, "resumable": resumable}
    return (1 if result == "failed" else 0), ended


@contextmanager
def _stop_signals(run: StageRun, say: Callable[[str], None]) -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP ask the stage to stop, once; again they change nothing, so that no save is cut short."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(number: int, frame: object) -> None:
        again = bool(run.stop_signal)
        run.stop_signal = run.stop_signal or signal.Signals(number).name
        note = "still saving; SIGKILL would lose what isn't saved" if again else "stopping: saving first"
        try:
            os.write(1, f"{run.stage}: {note}\n".encode())
        except OSError:
            pass

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
            continue
        before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _who(attempt: Attempt) -> str:
    request = attempt.requested("stop")
    return str(request["by"]) if request and request.get("by") else "a request"


def _set_aside(path: Path) -> None:
    """Blocks kept for outcome.json, so that a full volume can't keep a stage from saying that it is full."""
    try:
        with path.open("wb") as file:
            file.write(bytes(_SPARE_BYTES))
    except OSError:
        path.unlink(missing_ok=True)


def _say_safely(say: Callable[[str], None], line: str) -> None:
    try:
        say(line)
    except OSError:
        pass
