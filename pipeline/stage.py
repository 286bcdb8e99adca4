"""The main of every stage process: `python -m pipeline.STAGE --run DIR [--attempt PATH] [--restart]`.

With --attempt a supervisor opened the attempt, holds the lock and writes exit.json. Without it the stage does all of
that itself ("alone"). Imports pipeline.rundir and small neighbours; never torch.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from pipeline.config import STAGES, ConfigError
from pipeline.failure import StageError, explain
from pipeline.rundir import Attempt, Lock, RunDir, RunError, StageDir, process_start, resume_refusal, stale
from pipeline.rundir.paths import number_of
from pipeline.stagerun import StageRun, Stopped

__all__ = ["WRITER_FD", "Body", "StageError", "StageRun", "Stopped", "run_stage"]

WRITER_FD = "EAGLEDECK_WRITER_FD"
"""Environment variable with the number of the inherited descriptor of writer.lock."""

_SPARE_BYTES = 64 << 10

_DESCRIPTORS = 1 << 16
"""Open files a stage asks for, where its hard limit allows them. More would only slow down what walks through all."""

OLDEST = (3, 11)
"""The oldest Python that the stages' work runs on; this module itself runs on 3.9."""

Body = Callable[[StageRun], object]


@dataclass(frozen=True)
class _Ending:
    result: str
    message: str = ""
    remedy: str = ""
    resumable: bool = True

    @property
    def code(self) -> int:
        return 1 if self.result == "failed" else 0

    def line(self) -> str:
        words = f"{self.result}: {self.message}" if self.message else self.result
        return " ".join(f"{words}. {self.remedy}".split() if self.remedy else words.split())


def run_stage(name: str, body: Body, argv: list[str] | None = None) -> int:
    """Run `body` as the stage `name`; returns the exit status: 0 done or stopped, 1 failed or refused.

    `body` saves and raises Stopped (or returns "stopped") when `stopping()`, raises StageError when it can't go on, and
    calls `finish` when the output is complete. Whatever else it raises ends the attempt as failed: a sentence for
    people, the traceback in stage.log.
    """
    assert name in STAGES
    parser = argparse.ArgumentParser(prog=f"python -m pipeline.{name}", description=f"Run the stage {name} of a run.")
    parser.add_argument("--run", required=True, metavar="DIR", help="the run directory")
    parser.add_argument("--attempt", metavar="PATH", help="an attempt that a supervisor opened")
    parser.add_argument(
        "--restart", action="store_true", help="open a new output instead of going on with the last one"
    )
    options = parser.parse_args(argv)
    if sys.version_info < OLDEST:
        own, needed = (".".join(map(str, version)) for version in (sys.version_info[:3], OLDEST))
        said = f"{sys.executable} is Python {own}, and the stages need {needed}"
        body = _refused(said, f"Set {name}.python to a newer one; then resume")
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


def _refused(message: str, remedy: str) -> Body:
    def body(stage: StageRun) -> object:
        raise StageError(message, remedy)

    return body


def _supervised(stage: StageDir, path: Path, body: Body) -> int:
    attempt = stage.attempt(number_of(path.name) or 0)
    if path.resolve() != attempt.path.resolve() or not attempt.spec():
        raise RunError(
            f"{path} is no attempt of {stage.run.name}/{stage.stage}", "Start the stage with `eagledeck start`"
        )
    descriptor = os.environ.pop(WRITER_FD, "")
    with ExitStack() as stack:
        # torchrun keeps the lock, and its workers come with no descriptor of it
        if descriptor and "TORCHELASTIC_RUN_ID" not in os.environ:
            stack.enter_context(Lock.inherited(stage.writer_lock_path, int(descriptor)))
        return _run_body(attempt, body, _Log(), sys.stderr).code


def _alone(stage: StageDir, restart: bool, body: Body) -> int:
    label = f"{stage.run.name}/{stage.stage}"
    lock = Lock.acquire(stage.make().lock_path)
    if lock is None:
        raise RunError(f"{label} is running already", "Stop it first, or look at it with `eagledeck status`")
    with ExitStack() as stack:
        stack.enter_context(lock)
        current = stage.current()
        if current is not None and current.complete and not restart:
            reason = stale(stage.run, stage.stage).reason
            if not reason:
                print(f"{label} is done already (output {current.number}); --restart opens a new output", flush=True)
                return 0
            if resume_refusal(stage):
                raise RunError(f"{label} is done and stale: {reason}", "--restart opens a new output")
        attempt = stage.new_attempt(restart=restart, argv=getattr(sys, "orig_argv", sys.argv), by="alone")
        writer = Lock.acquire(stage.writer_lock_path)
        if writer is None:
            raise RunError(f"A process of {label} still writes", "Stop or kill the stage, then start it again")
        stack.enter_context(writer)
        log = stack.enter_context((attempt.path / "stage.log").open("a", encoding="utf-8", buffering=1))
        me = {"pid": os.getpid(), "start": process_start(os.getpid())}
        attempt.write_state(phase="running", supervisor=me, main=me, members=[])
        ending = _run_body(attempt, body, _Log(log), log)
        attempt.write_state(phase="ended")
        attempt.write_exit(
            reason=ending.result,
            code=ending.code,
            resumable=ending.resumable,
            message=ending.message,
            remedy=ending.remedy,
        )
    return ending.code


def _run_body(attempt: Attempt, body: Body, log: _Log, details: TextIO) -> _Ending:
    """Run the body, write outcome.json as the last thing. Sentences go to `log`, tracebacks to `details`."""
    name, spare, run = attempt.stage.stage, attempt.path / "spare", None
    _raise_descriptors()
    if _writes():
        _set_aside(spare)
    try:
        run = StageRun(attempt, log.line)
        with _stop_signals(run):
            going_on = ", resumed" if run.resumed else ""
            run.log(f"{name}: attempt {attempt.number}, output {run.output.name}{going_on}")
            answer = body(run)
            if not run.finished and answer != "stopped" and not run.stopping():
                raise StageError(f"{name} ended without completing its output", "Look at its log, then resume it")
        ending = _Ending("done", resumable=False) if run.finished else _stopped(attempt, "")
    except (Stopped, KeyboardInterrupt) as error:
        ending = _stopped(attempt, str(error))
    except BaseException as error:
        if run is not None and run.finished and isinstance(error, SystemExit):
            ending = _Ending("done", resumable=False)
        else:
            failure = explain(error, name, attempt.path)
            ending = _Ending("failed", failure.message, failure.remedy, failure.resumable)
            if not failure.expected:
                with contextlib.suppress(OSError):
                    traceback.print_exc(file=details)
    with contextlib.suppress(OSError):
        if run is not None:
            run.close()
    log.line(f"{name}: {ending.line()}")
    _write_outcome(attempt, ending, spare)
    return ending


def _write_outcome(attempt: Attempt, ending: _Ending, spare: Path) -> None:
    if _writes():
        spare.unlink(missing_ok=True)
        if ending.result == "stopped" and (attempt.outcome() or {}).get("result") == "failed":
            # another rank failed, which is why this one was told to stop
            return
    elif ending.result != "failed":
        return
    attempt.write_outcome(ending.result, ending.message, ending.remedy, ending.resumable)


def _writes() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _stopped(attempt: Attempt, reason: str) -> _Ending:
    asked = attempt.requested("stop") or {}
    by = f"stopped by {asked['by']}" if asked.get("by") else "stopped"
    return _Ending("stopped", reason or f"{by}; resume goes on from what was saved")


@contextmanager
def _stop_signals(run: StageRun) -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP ask the stage to stop. Again they change nothing, so that no save is cut short."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(number: int, frame: object) -> None:
        note = "still saving" if run.stop_signal else "stopping: saving first"
        run.stop_signal = run.stop_signal or signal.Signals(number).name
        with contextlib.suppress(OSError):
            # not print: the signal may have come in the middle of one
            os.write(sys.__stdout__.fileno() if sys.__stdout__ else 1, f"{run.stage}: {note}\n".encode())

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN or number != signal.SIGHUP:
            before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


class _Log:
    """The stage's log: standard output, and stage.log too when nobody has joined the two. It never fails the stage."""

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file

    def line(self, text: str) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                print(text, file=self._file, flush=True)
        try:
            print(text, flush=True)
        except OSError as error:
            if error.errno in (errno.EPIPE, errno.EIO):
                # the terminal or pipe is gone, the work isn't; what is left in the buffer goes nowhere
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, sys.stdout.fileno())
                os.close(nowhere)


def _raise_descriptors() -> None:
    """Lifts the soft limit of open files, 1,024 on many hosts, towards the hard one. Never fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _set_aside(path: Path) -> None:
    """Keep blocks for outcome.json, so that a full volume can't keep a stage from saying that it is full."""
    try:
        path.write_bytes(bytes(_SPARE_BYTES))
    except OSError:
        path.unlink(missing_ok=True)
