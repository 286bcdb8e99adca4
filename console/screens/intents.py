"""What a key is about to do, told before it is done: from a snapshot to a question with its answers. Pure functions.

The host decides; these texts say what it will be asked and what follows. Nothing here acts.
"""

from __future__ import annotations

from dataclasses import dataclass

from console.causes import causes
from console.format import UNKNOWN, duration, full_count, percent, si_bytes
from console.snapshot import Snapshot, StageView
from console.widgets.looks import ACTIVE, CONDUCTING, ENDED_BADLY, active_stage, conductor_of, share_of, stop_clock

STARTABLE = frozenset({"PENDING", "STOPPED"}) | ENDED_BADLY


@dataclass(frozen=True)
class Answer:
    """One way to go on. `key` is handed back; `danger` colours the button; `effect` is said next to it."""

    key: str
    label: str
    danger: bool = False
    effect: str = ""


@dataclass(frozen=True)
class Intent:
    """A question. Cancel is always there and always the default; `typed` must be typed before an answer counts."""

    title: str
    facts: tuple[str, ...]
    answers: tuple[Answer, ...]
    stage: str = ""
    typed: str = ""
    danger: bool = False


@dataclass(frozen=True)
class Refusal:
    """Why there is nothing to ask."""

    message: str
    remedy: str = ""


def offline(snapshot: Snapshot | None) -> Refusal | None:
    """Why nothing can be asked of the host now."""
    if snapshot is None:
        return Refusal("No data from the host yet", "wait for the first one")
    if snapshot.link.state not in {"LIVE", "STALE"}:
        host = snapshot.host or snapshot.link.host
        return Refusal(f"Not connected to {host} ({snapshot.link.state})", "R connects now")
    if not snapshot.stages:
        return Refusal(f"The host has said nothing about {snapshot.run} yet", "wait for its first answer")
    return None


def start(snapshot: Snapshot | None) -> Intent | Refusal:
    """`s`. With STALE stages the answers are rerun and keep."""
    if refused := offline(snapshot):
        return refused
    assert snapshot is not None
    active = active_stage(snapshot.stages)
    conductor, _ = conductor_of(snapshot)
    if active is not None and conductor == "lost":
        fact = f"{active.name} is {active.state} without a conductor. A new one takes over and goes on from here."
        return Intent(f"Start {snapshot.run}", (fact,), (Answer("refuse", "Start"),))
    if active is not None:
        return Refusal(f"{active.name} is already {active.state}", "x stops it")
    if conductor in CONDUCTING:
        return Refusal(under_way(snapshot), "x stops it")
    row = planned(snapshot)
    stale = [stage for stage in row if stage.undecided and (stage.state == "DONE" or unfinished(stage))]
    begun = [stage.name for stage in stale if stage.state != "DONE"]
    # with nothing to keep, all that is stale is made anew
    todo = [stage for stage in row if stage.state in STARTABLE or (begun and stage in stale)]
    if not todo and not stale:
        return Refusal(f"Every stage up to {row[-1].name} is DONE", "n restarts one, e edits the plan")
    facts = [_going(snapshot, todo)] if todo else []
    done = [stage.name for stage in row if stage.state == "DONE" and not stage.undecided]
    if done:
        facts.append(f"Left alone: {', '.join(done)}.")
    if snapshot.budget is not None and snapshot.budget.fits is False:
        text = snapshot.budget.text or f"it needs {si_bytes(snapshot.budget.need_bytes)}"
        # the host refuses what can't hold its hidden states; later stages stop before the reserve by themselves
        writes = any(stage.name == "extract" for stage in todo)
        words = "The host will refuse it, because it does not" if writes else "It may not"
        facts.append(f"{words} fit the volume: {text}")
    facts.append(f"{snapshot.host} does the work: this console may be closed at any time.")
    title = f"Start {snapshot.run}"
    if not stale:
        return Intent(title, tuple(facts), (Answer("refuse", "Start"),))
    made = "new outputs for what is STALE and what depends on it; the old ones stay on disk"
    rerun = Answer("rerun", "Rerun", effect=made)
    if begun:
        fact = f"{' and '.join(begun)} can't go on under the plan as it is now; nothing of it can be kept."
        return Intent(title, (*_stale_facts(stale), fact, *facts), (rerun,))
    keep = Answer("keep", "Keep", effect="goes on with the outputs as they are, and remembers that")
    return Intent(title, (*_stale_facts(stale), *facts), (keep, rerun))


def unfinished(stage: StageView) -> bool:
    """Whether it has begun, isn't done, and can't go on as it is."""
    return stage.state in STARTABLE and stage.state != "PENDING" and not stage.resumable


def _stale_facts(stale: list[StageView]) -> list[str]:
    return [f"{cause.text()}." for cause in causes(stale)]


def under_way(snapshot: Snapshot) -> str:
    """What a run does while no stage is at work: `demo is waiting for service vllm`, `demo goes on after generate`."""
    state, message = conductor_of(snapshot)
    if state == "waiting" and message:
        return f"{snapshot.run} is waiting for {message}"
    row = planned(snapshot)
    done = [stage.name for stage in row if stage.state == "DONE"]
    if not done:
        return f"{snapshot.run} is starting its first stage"
    return f"{snapshot.run} {'has ended' if len(done) == len(row) else 'goes on after'} {done[-1]}"


def planned(snapshot: Snapshot) -> list[StageView]:
    """The stages up to the last one that the plan runs."""
    names = [stage.name for stage in snapshot.stages]
    last = names.index(snapshot.through) if snapshot.through in names else len(names) - 1
    return list(snapshot.stages[: last + 1])


def _going(snapshot: Snapshot, todo: list[StageView]) -> str:
    parts = []
    for stage in todo:
        target = snapshot.samples_target
        if stage.name == "generate" and stage.state == "PENDING" and target:
            parts.append(f"generate ({full_count(target)} samples)")
        elif stage.state != "PENDING" and stage.resumable:
            parts.append(f"{stage.name} ({_from_where(stage)})")
        else:
            parts.append(stage.name)
    return f"In this order: {', then '.join(parts)}."


def _from_where(stage: StageView) -> str:
    """What is saved is where it goes on, which may be before where it was."""
    if stage.saved is not None and stage.total:
        lost = f"; it was at {full_count(stage.done)}" if (stage.done or 0) > stage.saved else ""
        return f"goes on at {full_count(stage.saved)} of {full_count(stage.total)} {stage.unit}{lost}".rstrip()
    share = share_of(stage)
    if stage.state != "STOPPED" or share is None:
        return "goes on from what it has saved"
    return f"goes on at {percent(share, 1.0)}"


def stop(snapshot: Snapshot | None, now_host: float | None = None) -> Intent | Refusal:
    """`x`. One request; then the stage has its grace."""
    if refused := offline(snapshot):
        return refused
    assert snapshot is not None
    active = active_stage(snapshot.stages)
    if active is None and conductor_of(snapshot)[0] in CONDUCTING:
        facts = (f"{under_way(snapshot)}. It stops going on, and stops the services that it has started.", "s goes on.")
        return Intent(f"Stop {snapshot.run}", facts, (Answer("stop", f"Stop {snapshot.run}"),))
    if active is None:
        return Refusal("No stage is at work", "s starts the run")
    if active.state == "STOPPING":
        return Refusal(f"{active.name} is already STOPPING {stop_clock(active, now_host)}".rstrip(), "K kills it")
    grace = active.stop_grace_s
    after = f" If it has not ended after {duration(grace)}, its processes get SIGTERM, then SIGKILL." if grace else ""
    facts = (
        f"{active.name} on {snapshot.host} is asked to stop: it finishes its step, saves, and ends.{after}",
        "The run then rests, and r resumes it. Nothing that was saved is lost.",
    )
    return Intent(f"Stop {active.name}", facts, (Answer("stop", f"Stop {active.name}"),), active.name)


def resume(snapshot: Snapshot | None) -> Intent | Refusal:
    """`r`."""
    if refused := offline(snapshot):
        return refused
    assert snapshot is not None
    active = active_stage(snapshot.stages)
    if active is not None:
        return Refusal(f"{active.name} is already {active.state}", "x stops it")
    stage = next((stage for stage in snapshot.stages if stage.resumable and stage.state != "DONE"), None)
    if stage is None:
        failed = next((stage for stage in snapshot.stages if stage.state in ENDED_BADLY), None)
        if failed is not None:
            return Refusal(
                f"{failed.name} {failed.state} and can't be resumed", failed.remedy or "n begins a new output"
            )
        return Refusal("There is nothing to resume", "s starts the run")
    facts = [f"{stage.name} ({stage.state}) {_from_where(stage)}{_output(stage)}."]
    if stage.message:
        facts.append(f"It had ended with: {stage.message}")
    row = planned(snapshot)
    place = next((index for index, one in enumerate(row) if one.name == stage.name), len(row))
    later = [other for other in row[place + 1 :] if other.state != "DONE" or other.undecided]
    if later:
        names = [f"{other.name} with a new output" if other.undecided else other.name for other in later]
        facts.append(f"After it: {', '.join(names)}.")
    label = f"Resume {stage.name}"
    others = _not_made_from(stage, [other for other in row if other.undecided and other.state == "DONE"])
    if not others:
        return Intent(label, tuple(facts), (Answer("refuse", label),), stage.name)
    which = ", ".join(other.name for other in others)
    effect = f"goes on with {which} as before, and remembers that"
    rerun = f"To rerun {which} first, press s instead."
    keep = Answer("keep", label, effect=effect)
    return Intent(label, (*_stale_facts(others), rerun, *facts), (keep,), stage.name)


def _not_made_from(stage: StageView, others: list[StageView]) -> list[StageView]:
    if not others:
        return []
    from pipeline.rundir import made_from  # nothing the first paint needs

    follow = made_from(stage.name)
    return [other for other in others if other.name not in follow]


def _output(stage: StageView) -> str:
    if stage.attempt is None or stage.output is None:
        return ""
    return f" (attempt {stage.attempt + 1} on output {stage.output})"


def kill(snapshot: Snapshot | None) -> Intent | Refusal:
    """`K`. Its name has to be typed."""
    if refused := offline(snapshot):
        return refused
    assert snapshot is not None
    living = ACTIVE | {"LOST"}
    stage = next((stage for stage in reversed(snapshot.stages) if stage.state in living), None)
    if stage is None:
        return Refusal("No stage is at work", "there is nothing to kill")
    facts = (
        f"Every process of {stage.name} on {snapshot.host} gets SIGKILL, now.",
        "What it has not saved since its last checkpoint is lost. x asks it to save and end instead.",
    )
    label = f"Kill {stage.name}"
    return Intent(label, facts, (Answer("kill", label, True),), stage.name, typed=stage.name, danger=True)


def leaving(snapshot: Snapshot | None) -> str:
    """What is said on the terminal after `q`."""
    if snapshot is None:
        return "Detached."
    active = active_stage(snapshot.stages)
    where = snapshot.host or snapshot.link.host or UNKNOWN
    if snapshot.link.state != "LIVE":
        last = f"; {active.name} was {active.state} when it was last heard of" if active is not None else ""
        return f"Detached while {snapshot.link.state}. Whatever runs on {where} keeps going{last}."
    if active is not None:
        return f"Detached. {snapshot.run} keeps going on {where}: {active.name} is {active.state}."
    if conductor_of(snapshot)[0] in CONDUCTING:
        return f"Detached. {under_way(snapshot)}, and keeps going on {where}."
    return f"Detached. No stage of {snapshot.run} is at work on {where}."
