"""What state a stage is in: a pure function of its files, its locks and the incarnation of the host.

Imports the other modules of this folder. Takes no lock, writes nothing.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pipeline.config import STAGES, Plan
from pipeline.rundir import lineage, locks
from pipeline.rundir.attempt import Attempt
from pipeline.rundir.errors import RunError, restart_words
from pipeline.rundir.identity import incarnation
from pipeline.rundir.layout import RunDir, StageDir
from pipeline.rundir.start import resume_refusal


class StageState(str, enum.Enum):
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"
    DONE = "DONE"
    FAILED = "FAILED"
    KILLED = "KILLED"
    INTERRUPTED = "INTERRUPTED"
    LOST = "LOST"

    def __str__(self) -> str:
        return self.value


STARTING = "starting"

STATES = tuple(state.value for state in StageState)

_BY_REASON: Mapping[str, StageState] = {
    "done": StageState.DONE,
    "stopped": StageState.STOPPED,
    "failed": StageState.FAILED,
    "killed": StageState.KILLED,
    "lost": StageState.LOST,
}


@dataclass(frozen=True)
class StageStatus:
    """`started` and `ended` are wall seconds, None when unknown; `borrowed` is `RUN/STAGE` or "".

    `stale_root` is the stage with the first cause; `kept`: a person has said to use the output although it is stale.
    """

    state: StageState
    attempt: int | None = None
    output: int | None = None
    resumable: bool = False
    stale: bool = False
    stale_reason: str = ""
    stale_root: str = ""
    kept: bool = False
    message: str = ""
    remedy: str = ""
    started: float | None = None
    ended: float | None = None
    borrowed: str = ""

    @property
    def undecided(self) -> bool:
        """Whether it is stale and nobody has said what becomes of it."""
        return self.stale and not self.kept


def status(stage: StageDir, plan: Plan | None = None, known: lineage.Known | None = None) -> StageStatus:
    """The state of a stage under the newest plan (or the one given). Raises RunError when there is no readable plan."""
    plan = plan or stage.run.plan()
    found = on_disk(stage)
    if found.state is StageState.RUNNING and found.message == STARTING:
        return found
    if plan.stages[stage.stage].from_run and not locks.held(stage.lock_path):
        return _borrowed(stage, plan, known)
    if found.attempt is None:
        return _unstarted(stage, plan)
    if found.resumable:
        found = _checked_resumable(stage, plan, found)
    return _with_staleness(found, stage, plan, known)


def on_disk(stage: StageDir) -> StageStatus:
    """What the stage's own attempts and locks say. It needs no plan: what can't be read can still be ended."""
    running = locks.held(stage.lock_path)
    attempt, latest = newest_started(stage), stage.latest()
    if running and latest is not None and (attempt is None or latest.number > attempt.number):
        return StageStatus(StageState.RUNNING, attempt=latest.number, output=_output_number(latest), message=STARTING)
    if attempt is None:
        return StageStatus(StageState.RUNNING, message=STARTING) if running else StageStatus(StageState.PENDING)
    return replace(_of_attempt(stage, attempt, running), output=_output_number(attempt))


def run_status(run: RunDir, plan: Plan | None = None) -> dict[str, StageStatus]:
    """The status of every stage, in order."""
    plan = plan or run.plan()
    known: lineage.Known = {}
    return {name: status(run.stage(name), plan, known) for name in STAGES}


def newest_started(stage: StageDir) -> Attempt | None:
    """The newest attempt that got going; one that was opened and never started says nothing about the stage."""
    for number in reversed(stage.attempts()):
        attempt = stage.attempt(number)
        if attempt.started() and not _cut_off(stage, attempt):
            return attempt
    return None


def _cut_off(stage: StageDir, attempt: Attempt) -> bool:
    """Whether its start ended with its first file: nothing ran, and the output that counted does still, as it was."""
    if attempt.state().get("main") or attempt.outcome() is not None or attempt.exit() is not None:
        return False
    try:
        output, current = attempt.output(), stage.current()
        report = output.report()
    except RunError:
        return False
    if current is None or current.number != output.number:
        return True
    written_by = (report or {}).get("attempt") or 0
    return output.complete and isinstance(written_by, int) and written_by < attempt.number


def _unstarted(stage: StageDir, plan: Plan) -> StageStatus:
    try:
        lineage.inputs_of(stage.run, stage.stage, plan)
    except RunError as error:
        return StageStatus(StageState.PENDING, message=error.message, remedy=error.remedy)
    return StageStatus(StageState.PENDING)


def _of_attempt(stage: StageDir, attempt: Attempt, running: bool) -> StageStatus:
    state, run = attempt.state(), stage.run.name
    base = StageStatus(StageState.LOST, attempt=attempt.number, started=_number(state.get("started")))
    ended = attempt.exit()
    if ended is not None:
        return _ended(base, _BY_REASON.get(str(ended.get("reason")), StageState.FAILED), ended)
    writing = locks.held(stage.writer_lock_path)
    outcome = attempt.outcome()
    if outcome is not None and not running and not writing:
        return _ended(base, _BY_REASON.get(str(outcome.get("result")), StageState.FAILED), outcome)
    if running:
        stopping = attempt.stop_requested() or attempt.requested("kill") is not None
        base = replace(base, state=StageState.STOPPING if stopping else StageState.RUNNING)
        return _still_there(base, state)
    report = _completed(attempt)
    if report is not None and not writing and not attempt.living():
        return _ended(base, StageState.DONE, report)
    base = replace(base, ended=_last_sign(attempt))
    then, now = state.get("incarnation"), incarnation()
    if isinstance(then, dict) and then and then != now and not writing:
        return replace(
            base,
            state=StageState.INTERRUPTED,
            resumable=True,
            message=_what_restarted(then, now),
            remedy="Resume the stage",
        )
    living = attempt.living()
    if writing or living:
        pids = f" (pid {', '.join(map(str, living))})" if living else ""
        return replace(
            base,
            ended=None,
            message=f"The supervisor is gone, the stage still runs{pids}",
            remedy=f"`eagledeck start {run}` watches it again, `eagledeck kill {run} {stage.stage}` ends it",
        )
    return replace(
        base,
        resumable=True,
        message="The supervisor and the stage are gone without a record of how they ended",
        remedy="Look at the stage's log, then resume it",
    )


def _still_there(base: StageStatus, state: Mapping[str, Any]) -> StageStatus:
    """What keeps a stage that is to end: processes that can't be killed, or GPU memory that isn't free yet."""
    if state.get("phase") == "unkillable":
        named = state.get("unkillable")
        stuck = [entry for entry in (named if isinstance(named, list) else []) if isinstance(entry, dict)]
        names = ", ".join(f"{entry.get('name')} (pid {entry.get('pid')}, {entry.get('state')})" for entry in stuck[:4])
        message = f"UNKILLABLE: {names}"
        remedy = "They hang in the kernel: mend what they wait for (a mount, a GPU), or restart the host"
        return replace(base, message=message, remedy=remedy)
    if state.get("phase") == "releasing":
        return replace(base, message="Its processes are gone, their GPU memory isn't free yet")
    return base


def _completed(attempt: Attempt) -> dict[str, Any] | None:
    """The report with which this attempt completed its output, when it was cut off between that and its end."""
    try:
        report = attempt.output().report()
    except RunError:
        return None
    return report if report and report.get("fingerprint") and report.get("attempt") == attempt.number else None


def _ended(base: StageStatus, state: StageState, record: Mapping[str, Any]) -> StageStatus:
    return replace(
        base,
        state=state,
        resumable=state is not StageState.DONE and bool(record.get("resumable", True)),
        message=str(record.get("message") or ""),
        remedy=str(record.get("remedy") or ""),
        ended=_number(record.get("ended")),
    )


def _checked_resumable(stage: StageDir, plan: Plan, found: StageStatus) -> StageStatus:
    refusal = resume_refusal(stage, plan)
    if not refusal:
        return found
    message = f"{found.message}; {refusal}" if found.message else refusal
    return replace(found, resumable=False, message=message, remedy=restart_words(stage.run.name, stage.stage))


def _borrowed(stage: StageDir, plan: Plan, known: lineage.Known | None) -> StageStatus:
    name = plan.stages[stage.stage].from_run
    try:
        output = lineage.counting_output(stage.run, stage.stage, plan)
    except RunError as error:
        return StageStatus(StageState.PENDING, message=error.message, remedy=error.remedy, borrowed=name)
    if output is None or not output.complete:
        what = "has no output yet" if output is None else f"isn't complete (output {output.number})"
        remedy = f"Let {name.partition('/')[0]} finish {stage.stage}"
        return StageStatus(StageState.PENDING, message=f"{name} {what}", remedy=remedy, borrowed=name)
    found = StageStatus(StageState.DONE, output=output.number, borrowed=name, message=f"borrowed from {output.name()}")
    return _with_staleness(found, stage, plan, known)


def _with_staleness(found: StageStatus, stage: StageDir, plan: Plan, known: lineage.Known | None) -> StageStatus:
    if found.resumable:
        # going on brings it to what the plan asks for now
        return found
    try:
        stale = lineage.stale(stage.run, stage.stage, plan, known)
    except RunError as error:
        stale = lineage.Stale(error.message, stage.stage)
    return replace(found, stale=bool(stale.reason), stale_reason=stale.reason, stale_root=stale.root, kept=stale.kept)


def _output_number(attempt: Attempt) -> int | None:
    number = attempt.spec().get("output")
    return number if isinstance(number, int) else None


def _what_restarted(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    if then.get("boot_id") != now.get("boot_id"):
        return "The host was restarted while the stage ran"
    return "The container was restarted while the stage ran"


def _last_sign(attempt: Attempt) -> float | None:
    """When an attempt without a record of its end last wrote anything, wall seconds."""
    times = []
    for name in ("state.json", "progress.json", "metrics.jsonl", "stage.log"):
        try:
            times.append(os.stat(attempt.path / name).st_mtime)
        except FileNotFoundError:
            continue
    return max(times, default=None)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
