"""What a conductor does next, from the states of the stages. Pure; imports pipeline.rundir for their types."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pipeline.rundir import STAGES, StageState, StageStatus

STALE = ("refuse", "rerun", "keep")
ENDED = (StageState.STOPPED, StageState.FAILED, StageState.KILLED, StageState.INTERRUPTED, StageState.LOST)


@dataclass(frozen=True)
class Errand:
    """What the person who pressed start asked for. ``stale``: what becomes of a finished stage whose input changed."""

    through: str = "deploy"
    first: str = "generate"
    restart: str = ""
    stale: str = "refuse"

    def stages(self) -> tuple[str, ...]:
        return STAGES[STAGES.index(self.first) : STAGES.index(self.through) + 1]


@dataclass(frozen=True)
class Step:
    """kind: start, resume, restart, watch (it runs), adopt (it runs, its supervisor is gone), halt, finish."""

    kind: str
    stage: str = ""
    message: str = ""
    remedy: str = ""


def next_step(
    states: Mapping[str, StageStatus],
    errand: Errand,
    begun: Collection[str] = (),
    continuable: Collection[str] = (),
    living: Collection[str] = (),
) -> Step:
    """The step for the first stage that isn't settled.

    ``begun``: stages this conductor has started or watched. ``continuable``: finished stages whose output can be
    continued under the plan as it is now (only the amount has changed). ``living``: stages that are LOST and still run.
    """
    for stage in errand.stages():
        step = _step(stage, states[stage], errand, begun, continuable, living)
        if step is not None:
            return step
    return Step("finish", message=f"finished through {errand.through}")


def stale_stages(states: Mapping[str, StageStatus], errand: Errand) -> list[str]:
    """Finished stages of the errand that are stale and stand in its way."""
    if errand.stale != "refuse":
        return []
    return [
        stage
        for stage in errand.stages()
        if states[stage].state is StageState.DONE and states[stage].stale and stage != errand.restart
    ]


def _step(
    stage: str,
    seen: StageStatus,
    errand: Errand,
    begun: Collection[str],
    continuable: Collection[str],
    living: Collection[str],
) -> Step | None:
    state = seen.state
    if state in (StageState.RUNNING, StageState.STOPPING):
        return Step("watch", stage)
    if stage in living:
        return Step("adopt", stage)
    if stage in begun and state in ENDED:
        why = f"{stage} {_WORDS[state]}" + (f": {seen.message}" if seen.message else "")
        return Step("halt", stage, why, seen.remedy or ("resume continues it" if seen.resumable else ""))
    if stage == errand.restart and stage not in begun:
        return Step("restart", stage)
    if state is StageState.DONE:
        if not seen.stale or errand.stale == "keep":
            return None
        if errand.stale == "rerun":
            return Step("resume" if stage in continuable else "restart", stage)
        return Step("halt", stage, f"{stage} is stale: {seen.stale_reason}", STALE_REMEDY)
    if seen.borrowed:
        return Step("halt", stage, f"{stage}: {seen.message}", seen.remedy)
    if state is StageState.PENDING:
        return Step("start", stage)
    if seen.resumable:
        return Step("resume", stage)
    return Step("halt", stage, f"{stage} {_WORDS[state]} and can't be resumed: {seen.message}", seen.remedy)


STALE_REMEDY = "start again with stale = rerun to bring it up to date, or stale = keep to use it as it is"
_WORDS = {
    StageState.STOPPED: "was stopped",
    StageState.FAILED: "failed",
    StageState.KILLED: "was killed",
    StageState.INTERRUPTED: "was interrupted",
    StageState.LOST: "was lost",
}
