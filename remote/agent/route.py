"""What a conductor does next, from the states of the stages. Pure.

Imports pipeline.rundir for their types, remote.agent.errand and staleness.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from pipeline.rundir import StageState, StageStatus
from remote.agent.errand import Errand
from remote.agent.staleness import borrowed_stale, not_here, stale_remedy, unfinished_stale

ENDED = (StageState.STOPPED, StageState.FAILED, StageState.KILLED, StageState.INTERRUPTED, StageState.LOST)


@dataclass(frozen=True)
class Step:
    """kind: start, resume, restart, watch (it runs), adopt (it runs, its supervisor is gone), halt, stop, finish.

    ``cause`` of a halt: "stale", "ended" (the stage itself has said how), or "".
    """

    kind: str
    stage: str = ""
    message: str = ""
    remedy: str = ""
    cause: str = ""


def next_step(
    states: Mapping[str, StageStatus],
    errand: Errand,
    begun: Collection[str] = (),
    continuable: Collection[str] = (),
    living: Collection[str] = (),
    redone: Collection[str] = (),
) -> Step:
    """The step for the first stage that isn't settled.

    ``begun``: stages this conductor has started or watched. ``continuable``: finished stages whose output can be
    continued under the plan as it is now (only the amount has changed). ``living``: stages that are LOST and still run.
    ``redone``: stages this conductor has begun again although they were finished; none is a second time.
    """
    if errand.restart in begun:
        # done: what is told from now on is about going on, and no remedy may repeat it
        errand = replace(errand, restart="")
    for stage in errand.stages():
        step = _step(stage, states[stage], errand, begun, continuable, living, redone)
        if step is not None:
            return step
    return Step("finish", message=f"finished through {errand.through}")


def _step(
    stage: str,
    seen: StageStatus,
    errand: Errand,
    begun: Collection[str],
    continuable: Collection[str],
    living: Collection[str],
    redone: Collection[str],
) -> Step | None:
    state = seen.state
    if state in (StageState.RUNNING, StageState.STOPPING):
        return Step("watch", stage)
    if stage in living:
        return Step("adopt", stage)
    if stage in begun and state in ENDED:
        why = f"{stage} {_WORDS[state]}" + (f": {seen.message}" if seen.message else "")
        return Step("halt", stage, why, seen.remedy or ("resume continues it" if seen.resumable else ""), "ended")
    if stage == errand.restart:
        return _halt(stage, not_here(stage, seen)) if seen.borrowed else Step("restart", stage)
    if state is StageState.DONE:
        if not seen.undecided or errand.stale == "keep":
            return None
        if seen.borrowed:
            return _halt(stage, borrowed_stale(stage, seen, errand), cause="stale")
        if stage in redone:
            why = f"{stage} was made anew and is stale all the same: {seen.stale_reason}"
            return Step("halt", stage, why, stale_remedy(errand), cause="stale")
        if errand.reruns(stage):
            return Step("resume" if stage in continuable else "restart", stage)
        return Step("halt", stage, f"{stage} is stale: {seen.stale_reason}", stale_remedy(errand), cause="stale")
    if seen.borrowed:
        return Step("halt", stage, f"{stage}: {seen.message}", seen.remedy)
    if state is StageState.PENDING:
        return Step("start", stage)
    if seen.resumable:
        return Step("resume", stage)
    if seen.stale:
        # an unfinished output under another plan: there is nothing to keep
        if errand.reruns(stage):
            return Step("restart", stage)
        return _halt(stage, unfinished_stale(stage, seen, errand), cause="stale")
    return Step("halt", stage, f"{stage} {_WORDS[state]} and can't be resumed: {seen.message}", seen.remedy)


def _halt(stage: str, told: tuple[str, str], cause: str = "") -> Step:
    return Step("halt", stage, *told, cause)


_WORDS = {
    StageState.STOPPED: "was stopped",
    StageState.FAILED: "failed",
    StageState.KILLED: "was killed",
    StageState.INTERRUPTED: "was interrupted",
    StageState.LOST: "was lost",
}
