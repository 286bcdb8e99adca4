"""What stands where the chart will be: what the run is going to do, in one line a stage. Pure functions.

Reads the plan as the JSON it arrived as, since pipeline.config need not be imported before the first paint.
"""

from __future__ import annotations

from collections.abc import Mapping

from console.format import full_count
from console.screens.intents import under_way
from console.snapshot import Snapshot
from console.widgets.looks import CONDUCTING, conductor_of

_WORTH_TELLING = {
    "generate": (
        ("max_samples", "{} samples"),
        ("max_tokens", "up to {} tokens each"),
        ("temperature", "temperature {}"),
    ),
    "extract": (("length", "up to {} tokens of each"), ("backend", "by {}")),
    "vocab": (("size", "up to {} tokens"),),
    "train": (("epochs", "{} epochs"), ("lr", "learning rate {}"), ("ttt_steps", "TTT {}")),
    "deploy": (("k", "k = {}"), ("samples", "{} prompts"), ("engine", "engine {}")),
}


def what_follows(snapshot: Snapshot) -> tuple[str, ...]:
    """A first line that says what to do, and the planned stages before the run has begun."""
    if not snapshot.stages:
        return ("waiting for the host",)
    if any(stage.state != "PENDING" for stage in snapshot.stages):
        return ("train draws its loss here",)
    planned = _planned(snapshot)
    state, _ = conductor_of(snapshot)
    first = under_way(snapshot) if state in CONDUCTING else "s starts the run"
    return (first, "", *planned) if planned else (first,)


def _planned(snapshot: Snapshot) -> list[str]:
    stages = snapshot.plan.get("stages") if snapshot.plan else None
    if not isinstance(stages, Mapping):
        return []
    lines = []
    for name, told in _WORTH_TELLING.items():
        stage = stages.get(name)
        params = stage.get("params") if isinstance(stage, Mapping) else None
        if isinstance(stage, Mapping) and stage.get("from_run"):
            lines.append(f"{name:<9} borrowed from {stage['from_run']}")
        elif isinstance(params, Mapping):
            words = [text.format(_value(params[key])) for key, text in told if params.get(key)]
            lines.append(f"{name:<9} {', '.join(words)}".rstrip())
        if name == snapshot.through:
            break
    return lines


def _value(value: object) -> str:
    return full_count(value) if isinstance(value, int) else str(value)
