"""What becomes of each stage's output when a run goes on: kept as it is, continued, or opened anew beside the old one.

Standard library only (Python >= 3.9). Imports pipeline.config and pipeline.rundir.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.config import STAGES, Plan
from pipeline.rundir import RunDir, StageState, StageStatus, resume_refusal, run_status
from pipeline.rundir.lineage import inputs_needed

KEPT, CONTINUED, ANEW = "kept", "continued", "anew"
ALIVE = (StageState.RUNNING, StageState.STOPPING)


@dataclass(frozen=True)
class Intent:
    """What a start is going to do: where it begins and how far it goes ("": as far as the plan), which stage it
    restarts, and what it does with finished stages that are stale and that nobody keeps (rerun, keep, refuse; follow:
    rerun what is made from a stage that is resumed).
    """

    first: str = STAGES[0]
    through: str = ""
    restart: str = ""
    stale: str = "follow"


AS_PLANNED = Intent()


@dataclass(frozen=True)
class Fate:
    """`output` is the number of the output that is continued, None otherwise."""

    kind: str
    output: int | None = None


def fates(run: RunDir, plan: Plan, intent: Intent = AS_PLANNED) -> dict[str, Fate]:
    """The fate of every stage's output. Raises RunError when there is no readable plan.

    Stages before the intent's first write nothing, nor do borrowed ones and those beyond both the plan's `through` and
    the intent's.
    """
    states, first = run_status(run, plan), STAGES.index(intent.first)
    last = max(STAGES.index(plan.through), STAGES.index(intent.through or STAGES[0]))
    at_work = max((number for number, name in enumerate(STAGES) if states[name].state in ALIVE), default=-1)
    found: dict[str, Fate] = {}
    for number, name in enumerate(STAGES):
        if number > last or plan.stages[name].from_run:
            found[name] = Fate(KEPT)
        elif name == intent.restart:
            found[name] = Fate(ANEW)
        elif number < first and states[name].state not in ALIVE:
            found[name] = Fate(KEPT)
        else:
            moved = any(found.get(needed, Fate(KEPT)).kind != KEPT for needed in inputs_needed(plan, name))
            found[name] = _fate(run, plan, name, states[name], intent, moved, number < at_work)
    return found


def _fate(run: RunDir, plan: Plan, name: str, seen: StageStatus, intent: Intent, moved: bool, passed: bool) -> Fate:
    """`moved`: an output it reads is going to be another one; `passed`: a later stage is at work on what there is."""
    if seen.state in ALIVE or (seen.state is StageState.LOST and not seen.resumable):
        return Fate(CONTINUED, seen.output)
    if seen.state is StageState.DONE:
        if passed or intent.stale not in ("rerun", "follow") or not (seen.undecided or moved):
            return Fate(KEPT)
        if not moved and not resume_refusal(run.stage(name), plan):
            return Fate(CONTINUED, seen.output)
        return Fate(ANEW)
    return Fate(CONTINUED, seen.output) if seen.resumable and not moved else Fate(ANEW)
