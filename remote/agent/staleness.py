"""What stale stages mean for an errand: said before it begins, instead of after a night. Pure.

Imports pipeline.rundir for its types, and remote.agent.errand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pipeline.rundir import INPUTS, STAGES, StageState, StageStatus, made_from
from remote.agent.errand import KEEP, RERUN, Errand

Told = tuple[str, str]
"""What is wrong, and what to do."""
States = Mapping[str, StageStatus]


def refusal(states: States, errand: Errand) -> Told | None:
    """Why the errand can't come to its end because of what is stale, or would become so; None when it can."""
    if errand.restart and states[errand.restart].borrowed:
        return not_here(errand.restart, states[errand.restart])
    if errand.stale == "keep":
        return _nothing_to_keep(states, errand)
    return _borrowed(states, errand) or (_out_of_reach if errand.stale == "rerun" else _in_the_way)(states, errand)


def unfinished_stale(stage: str, seen: StageStatus, errand: Errand) -> Told:
    """A stage that was ended before it was done, and can't go on under the plan as it is now."""
    return (
        f"{stage} isn't finished and can't go on: {seen.stale_reason}",
        f"{errand.command(RERUN)} begins a new output; or take the change back",
    )


def stale_remedy(errand: Errand) -> str:
    return f"{errand.command(RERUN)} brings it up to date, {errand.command(KEEP)} uses it as it is"


def borrowed_stale(stage: str, seen: StageStatus, errand: Errand) -> Told:
    """A borrowed output that is stale: only its own run can make it anew."""
    lender = seen.borrowed.partition("/")[0]
    return (
        f"{stage} is borrowed from {seen.borrowed} and stale: {seen.stale_reason}",
        f"Rerun it in {lender} (`eagledeck start {lender} --rerun-stale`), or {errand.command(KEEP)} uses it as it is",
    )


def not_here(stage: str, seen: StageStatus) -> Told:
    lender = seen.borrowed.partition("/")[0]
    return (
        f"{stage} is borrowed from {seen.borrowed} and doesn't run here",
        f"`eagledeck restart {lender} {stage}` makes it anew there; or clear {stage}.from_run to run it here",
    )


def _unfinished(seen: StageStatus) -> bool:
    """Whether it is stale, not done, and can't go on as it is."""
    idle = seen.state not in (StageState.DONE, StageState.PENDING, StageState.RUNNING, StageState.STOPPING)
    return seen.stale and not seen.resumable and idle and not _lives(seen)


def _lives(seen: StageStatus) -> bool:
    return seen.state is StageState.LOST and seen.ended is None


def _stale(states: States, stages: Iterable[str]) -> list[str]:
    """Stages that somebody has to decide about: made anew or kept; what isn't finished can only be made anew."""
    return [
        name
        for name in stages
        if (states[name].state is StageState.DONE and states[name].undecided) or _unfinished(states[name])
    ]


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


def _borrowed(states: States, errand: Errand) -> Told | None:
    # before the errand's first stage only a rerun minds: what is made anew from it would be stale at once
    before = _read_by(errand.stages()) if errand.stale == "rerun" else set()
    for name in _stale(states, STAGES):
        if states[name].borrowed and (name in errand.stages() or name in before):
            return borrowed_stale(name, states[name], errand)
    return None


def _nothing_to_keep(states: States, errand: Errand) -> Told | None:
    first = next(
        (
            name
            for name in errand.stages()
            if _unfinished(states[name]) and name != errand.restart and not errand.reruns(name)
        ),
        None,
    )
    return unfinished_stale(first, states[first], errand) if first else None


def _in_the_way(states: States, errand: Errand) -> Told | None:
    stale = [name for name in _stale(states, errand.stages()) if name != errand.restart and not errand.reruns(name)]
    if stale:
        if all(_unfinished(states[name]) for name in stale):
            return unfinished_stale(stale[0], states[stale[0]], errand)
        if any(_unfinished(states[name]) for name in stale):
            return _by_root(states, stale), f"{errand.command(RERUN)} begins new outputs; or take the change back"
        return _by_root(states, stale), stale_remedy(errand)
    if not errand.restart:
        return None
    after = made_from(errand.restart)
    later = [
        name
        for name in errand.stages()
        if name in after and states[name].state is StageState.DONE and not states[name].borrowed
    ]
    if not later:
        return None
    return (
        f"{' and '.join(later)} {'is' if len(later) == 1 else 'are'} done and made from the output of {errand.restart} "
        f"that a restart replaces: the run would halt there as stale",
        f"{errand.command(RERUN)} makes {'it' if len(later) == 1 else 'them'} anew too, "
        f"{errand.command(KEEP)} leaves {'it' if len(later) == 1 else 'them'} as before",
    )


def _by_root(states: States, stale: Iterable[str]) -> str:
    """`vocab is stale: its size is 16000 now, was 32000, and so are train and deploy`: each cause once."""
    roots: dict[str, list[str]] = {}
    for name in stale:
        roots.setdefault(states[name].stale_root or name, []).append(name)
    parts = []
    for root, names in roots.items():
        first = root if root in names else names[0]
        others = [name for name in names if name != first]
        tail = f", and so {'is' if len(others) == 1 else 'are'} {' and '.join(others)}" if others else ""
        parts.append(f"{first} is stale: {states[first].stale_reason}{tail}")
    return "; ".join(parts)


def _out_of_reach(states: States, errand: Errand) -> Told | None:
    """A stale stage before the first one: all that is made anew from its output would be stale again."""
    before = _read_by(errand.stages()) - set(errand.stages())
    stale = _stale(states, [name for name in STAGES if name in before])
    if not stale:
        return None
    reasons = _by_root(states, stale)
    return (
        f"{reasons}; what is made from it anew, beginning with {errand.first}, would stay stale",
        f"`eagledeck start {errand.run} --from {stale[0]} --rerun-stale` begins there, "
        f"`eagledeck start {errand.run} --from {errand.first} --keep-stale` uses what is there",
    )
