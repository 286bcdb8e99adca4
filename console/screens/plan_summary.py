"""What stands where the chart will be: what happens now, and what every stage has made, does or will do. Pure.

Reads the plan as the JSON it arrived as, since pipeline.config need not be imported before the first paint.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from console.format import full_count, percent, rate, short_count, si_bytes
from console.screens.intents import planned, under_way
from console.snapshot import Snapshot, StageView
from console.widgets.ink import Line, Span, pad
from console.widgets.looks import ACTIVE, CONDUCTING, active_stage, conductor_of, share_of, stage_look

_WORTH_TELLING = {
    "generate": (("max_samples", "{} samples"), ("max_tokens", "up to {} tokens")),
    "extract": (("backend", "by {}"), ("length", "up to {} tokens")),
    "vocab": (("size", "up to {} tokens"),),
    "train": (("epochs", "{} epochs"), ("lr", "learning rate {}"), ("ttt_steps", "TTT {}")),
    "deploy": (("k", "k = {}"), ("samples", "{} prompts"), ("engine", "engine {}")),
}
_DOES = {
    "generate": "the verifier answers the prompts",
    "extract": "hidden states are written to disk",
    "vocab": "the draft vocabulary is chosen",
    "train": "the drafter learns",
    "deploy": "the drafter is measured",
}
_SOON_S = 600.0
"""An end that is nearer than this needs no clock: the stages above say how long it takes."""
_DAY_S = 20 * 3600.0
"""An end that is farther away than this is told with its day."""


def what_follows(snapshot: Snapshot) -> tuple[Line, ...]:
    """A first line that says what happens now or what to do, then a line for each stage that the plan runs."""
    if not snapshot.stages:
        return ((("waiting for the host", "value"),),)
    row = planned(snapshot)
    rows = [line for stage in row if (line := _stage_line(snapshot, stage))]
    out: list[Line] = [_now(snapshot)]
    if rows:
        out += [(), *rows]
    if any(stage.name == "train" and stage.state != "DONE" for stage in row):
        out += [(), (("train draws its loss here", "faint"),)]
    return tuple(out)


def _now(snapshot: Snapshot) -> Line:
    active = active_stage(snapshot.stages)
    if active is not None:
        return _at_work(snapshot, active)
    if conductor_of(snapshot)[0] in CONDUCTING:
        return ((under_way(snapshot), "value"),)
    row = planned(snapshot)
    if all(stage.state == "DONE" for stage in row):
        return ((f"every stage up to {row[-1].name} is DONE", "value"),)
    rests = next((stage for stage in row if stage.state not in {"PENDING", "DONE"}), None)
    if rests is not None:
        return ((f"{rests.name} {rests.state}" + (": r resumes it" if rests.resumable else ""), "value"),)
    began = any(stage.state != "PENDING" for stage in row)
    return (("s goes on" if began else "s starts the run", "value"),)


def _at_work(snapshot: Snapshot, stage: StageView) -> Line:
    if stage.state == "STOPPING":
        return ((f"{stage.name} saves and ends", "value"),)
    spans: list[Span] = [(_DOES.get(stage.name, stage.name), "value")]
    if stage.eta_s is not None and stage.eta_s >= _SOON_S:
        spans += [(" · until ~", "label"), (_clock(snapshot.taken_wall, stage.eta_s), "value")]
    return tuple(spans)


def _clock(now: float, after_s: float) -> str:
    """`15:23`, `Tue 15:23`: local time."""
    return time.strftime("%H:%M" if after_s < _DAY_S else "%a %H:%M", time.localtime(now + after_s))


def _stage_line(snapshot: Snapshot, stage: StageView) -> Line:
    glyph, role = stage_look(stage)
    name: Span = (pad(stage.name, 10), "strong" if stage.state in ACTIVE else "label")
    told = _told(snapshot, stage)
    return ((f"{glyph} ", role), name, (told, "value" if stage.state in ACTIVE else "dim")) if told else ()


def _told(snapshot: Snapshot, stage: StageView) -> str:
    if stage.state == "PENDING":
        return _planned(snapshot, stage.name)
    if stage.state == "DONE":
        return _made(snapshot, stage)
    if stage.state not in ACTIVE:
        share = share_of(stage)
        return stage.state if share is None else f"{stage.state} at {percent(share, 1.0)}"
    count = full_count if (stage.total or 0) < 100_000 else short_count
    words = [f"{count(stage.done)} of {count(stage.total)} {stage.unit}"] if stage.total else []
    if stage.phase and stage.phase != "running":
        words.append(stage.phase)
    elif stage.rate:
        words.append(rate(stage.rate, "").replace(" /", "/"))
    return " · ".join(words) or "begins"


def _made(snapshot: Snapshot, stage: StageView) -> str:
    """What a stage that is done has made."""
    counts = stage.counts
    if stage.name == "generate" and snapshot.samples is not None:
        return f"{full_count(snapshot.samples)} samples, {full_count(snapshot.tokens)} tokens"
    if stage.name == "extract" and "bytes" in counts:
        shards = counts.get("shards")
        in_shards = "in 1 shard" if shards == 1 else f"in {full_count(shards)} shards"
        return f"{si_bytes(counts['bytes'])} of hidden states {in_shards}"
    if stage.name == "vocab" and "size" in counts:
        return f"{full_count(counts['size'])} tokens, {percent(counts.get('coverage'), 1.0)} of the text"
    return "DONE"


def _planned(snapshot: Snapshot, name: str) -> str:
    stages = snapshot.plan.get("stages") if snapshot.plan else None
    stage = stages.get(name) if isinstance(stages, Mapping) else None
    if not isinstance(stage, Mapping):
        return ""
    if stage.get("from_run"):
        return f"borrowed from {stage['from_run']}"
    params = stage.get("params")
    if not isinstance(params, Mapping):
        return ""
    return ", ".join(text.format(_value(params[key])) for key, text in _WORTH_TELLING[name] if params.get(key))


def _value(value: object) -> str:
    return full_count(value) if isinstance(value, int) else str(value)
