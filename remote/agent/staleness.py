"""What stale stages mean for an errand: said before it begins, instead of after a night. Pure.

Imports pipeline.rundir for its types, and remote.agent.errand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pipeline.rundir import INPUTS, STAGES, StageState, StageStatus
from remote.agent.errand import Errand

Told = tuple[str, str]
"""What is wrong, and what to do."""
States = Mapping[str, StageStatus]


def refusal(states: States, errand: Errand) -> Told | None:
    """Why the errand can't come to its end because of what is stale, or would become so; None when it can."""
    if errand.restart and states[errand.restart].borrowed:
        return not_here(errand.restart, states[errand.restart])
    if errand.stale == "keep":
        return None
    return _borrowed(states, errand) or (_in_the_way if errand.stale == "refuse" else _out_of_reach)(states, errand)


def for_resume(states: States, stage: str) -> str:
    """What a resume of `stage` does with finished stages that are stale: rerun when all of them are made from it.

    Whoever goes on with a stage wants what follows it to be made of the whole; what is stale for another reason is
    asked about.
    """
    stale = set(_stale(states, STAGES))
    return "rerun" if stale and stale <= _made_from(states, stage) else "refuse"


def stale_remedy(errand: Errand) -> str:
    return f"{errand.command('--rerun-stale')} brings it up to date, {errand.command('--keep-stale')} uses it as it is"


def borrowed_stale(stage: str, seen: StageStatus, errand: Errand) -> Told:
    """A borrowed output that is stale: only its own run can make it anew."""
    lender = seen.borrowed.partition("/")[0]
    return (
        f"{stage} is borrowed from {seen.borrowed} and stale: {seen.stale_reason}",
        f"Rerun it in {lender} (`eagledeck start {lender} --rerun-stale`), or {errand.command('--keep-stale')} uses it "
        "as it is",
    )


def not_here(stage: str, seen: StageStatus) -> Told:
    lender = seen.borrowed.partition("/")[0]
    return (
        f"{stage} is borrowed from {seen.borrowed} and doesn't run here",
        f"`eagledeck restart {lender} {stage}` makes it anew there; or clear {stage}.from_run to run it here",
    )


def _stale(states: States, stages: Iterable[str]) -> list[str]:
    return [name for name in stages if states[name].state is StageState.DONE and states[name].stale]


def _read_by(stages: Iterable[str]) -> set[str]:
    """The stages whose outputs these are made from, however far back."""
    found: set[str] = set()
    queue = list(stages)
    while queue:
        for name in INPUTS[queue.pop()]:
            if name not in found:
                found.add(name)
                queue.append(name)
    return found


def _made_from(states: States, stage: str) -> set[str]:
    """The stages of this run that read its output, however far on; what is borrowed is another run's."""
    found = {stage}
    for name in STAGES:
        if not states[name].borrowed and found.intersection(INPUTS[name]):
            found.add(name)
    return found - {stage}


def _borrowed(states: States, errand: Errand) -> Told | None:
    # before the errand's first stage only a rerun minds: what is made anew from it would be stale at once
    before = _read_by(errand.stages()) if errand.stale == "rerun" else set()
    for name in _stale(states, STAGES):
        if states[name].borrowed and (name in errand.stages() or name in before):
            return borrowed_stale(name, states[name], errand)
    return None


def _in_the_way(states: States, errand: Errand) -> Told | None:
    stale = [name for name in _stale(states, errand.stages()) if name != errand.restart]
    if stale:
        return "; ".join(f"{name} is stale: {states[name].stale_reason}" for name in stale), stale_remedy(errand)
    if not errand.restart:
        return None
    after = _made_from(states, errand.restart)
    later = [name for name in errand.stages() if name in after and states[name].state is StageState.DONE]
    if not later:
        return None
    return (
        f"{' and '.join(later)} {'is' if len(later) == 1 else 'are'} done and made from the output of {errand.restart} "
        f"that a restart replaces: the run would halt there as stale",
        f"{errand.command('--rerun-stale')} makes {'it' if len(later) == 1 else 'them'} anew too, "
        f"{errand.command('--keep-stale')} leaves {'it' if len(later) == 1 else 'them'} as before",
    )


def _out_of_reach(states: States, errand: Errand) -> Told | None:
    """A stale stage before the first one: all that is made anew from its output would be stale again."""
    before = _read_by(errand.stages()) - set(errand.stages())
    stale = _stale(states, [name for name in STAGES if name in before])
    if not stale:
        return None
    reasons = "; ".join(f"{name} is stale: {states[name].stale_reason}" for name in stale)
    return (
        f"{reasons}; what is made from it anew, beginning with {errand.first}, would stay stale",
        f"`eagledeck start {errand.run} --from {stale[0]} --rerun-stale` begins there, "
        f"`eagledeck start {errand.run} --from {errand.first} --keep-stale` uses what is there",
    )
