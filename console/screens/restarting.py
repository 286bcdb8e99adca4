"""What a restart is about to do, told before it is done: which stage, and what becomes of the rest. Pure functions."""

from __future__ import annotations

from console.screens.intents import Answer, Intent, Refusal, offline, planned, under_way
from console.snapshot import Snapshot, StageView
from console.widgets.looks import CONDUCTING, active_stage, conductor_of


def choose(snapshot: Snapshot | None) -> Intent | Refusal:
    """`n`, first: which stage. With one to choose it is asked about at once."""
    if refused := offline(snapshot):
        return refused
    assert snapshot is not None
    active = active_stage(snapshot.stages)
    if active is not None:
        return Refusal(f"{active.name} is {active.state}", "x stops it")
    if conductor_of(snapshot)[0] in CONDUCTING:
        return Refusal(under_way(snapshot), "x stops it")
    found = _restartable(snapshot)
    if not found:
        return Refusal("No stage has an output yet", "s starts the run")
    if len(found) == 1:
        return confirm(snapshot, found[0].name)
    facts = (
        "A restart begins a new output. The one there is now no longer counts; it stays on disk.",
        "Which stage?",
    )
    answers = (Answer(stage.name, stage.name, effect=f"{stage.state}, output {stage.output}") for stage in found)
    return Intent("Restart a stage", facts, tuple(answers))


def confirm(snapshot: Snapshot, name: str) -> Intent | Refusal:
    """`n`, then: what follows. Where other stages are or become STALE the answers are rerun and keep."""
    stage = next((stage for stage in _restartable(snapshot) if stage.name == name), None)
    if stage is None:
        return Refusal(f"{name} has no output to replace", "s starts the run")
    row = planned(snapshot)
    later = [other.name for other in row[row.index(stage) + 1 :] if other.state == "DONE"]
    stale = [other.name for other in row if other.stale and other.name != name]
    facts = [
        f"{name} ({stage.state}) begins a new output on {snapshot.host}, from nothing.",
        f"Output {stage.output} no longer counts. It stays on disk and takes its room there.",
    ]
    title = f"Restart {name}"
    if not later and not stale:
        return Intent(title, tuple(facts), (Answer("refuse", title, True),), name, danger=True)
    if later:
        facts.append(f"May become STALE: {', '.join(later)}.")
    if stale:
        facts.append(f"STALE already: {', '.join(stale)}.")
    answers = (
        Answer("keep", "Keep the rest", True, "what is STALE then stays as it is, and counts"),
        Answer("rerun", "Rerun the rest", True, "new outputs for what is STALE then; the old ones stay on disk"),
    )
    return Intent(title, tuple(facts), answers, name, danger=True)


def _restartable(snapshot: Snapshot) -> list[StageView]:
    return [stage for stage in planned(snapshot) if stage.output is not None and stage.state != "LOST"]
