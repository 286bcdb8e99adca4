"""The plan as a list of editable parameters, and what a change of them does. Pure functions over pipeline.config.

pipeline.rundir.lineage decides what shapes an output; nothing of it is repeated here.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from console.format import full_count, known
from console.snapshot import StageView
from console.widgets.looks import ACTIVE
from pipeline.config import LIVE, STAGES, Plan, set_values, unused_services
from pipeline.fields import expected, size_text
from pipeline.rundir.lineage import fingerprint_params, inputs_needed, shaping_params, targets

FIRST = "generate.max_samples"
"""Where the list stands at first: the parameter that is changed most."""


@dataclass(frozen=True)
class PlanRow:
    """One parameter. `raw` is the value as a person would type it, `shown` as it is read."""

    key: str
    raw: str
    shown: str
    doc: str
    takes: str


def plan_rows(plan: Plan) -> list[PlanRow]:
    """All parameters: through, then each stage's own and its settings, the verifier and the volume."""
    doc = "the last stage that is run"
    rows = [PlanRow("through", plan.through, plan.through, doc, "one of " + ", ".join(STAGES))]
    for name in STAGES:
        stage = plan.stages[name]
        rows += _rows(name, stage.params)
        rows += _rows(name, stage)
    rows += _rows("verifier", plan.verifier)
    rows += _rows("volume", plan.volume)
    for name, service in plan.services.items():
        rows += _rows(f"services.{name}", service)
    return rows


def _rows(where: str, section: Any) -> list[PlanRow]:
    rows = []
    for field in dataclasses.fields(section):
        meta = field.metadata
        if not meta or meta["kind"] == "env":
            continue
        value = getattr(section, field.name)
        raw, shown = _raw(value), _shown(meta["kind"], value)
        rows.append(PlanRow(f"{where}.{field.name}", raw, shown, meta["doc"], expected(meta)))
    return rows


def _raw(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, list | tuple):
        return " ".join(str(item) for item in value)
    return str(value)


def _shown(kind: str, value: object) -> str:
    if kind == "size" and isinstance(value, int):
        return size_text(value) if value else "0"
    if kind == "int" and isinstance(value, int):
        return full_count(value)
    if value is None:
        return "found out"
    return _raw(value) or "—"


@dataclass(frozen=True)
class Effect:
    """What a change does: the new plan, stages whose outputs become STALE, keys that a running stage takes up.

    `follows` are other keys that change with it (`train.length = 512`), `unused` services that no stage names any more.
    """

    plan: Mapping[str, object]
    stale: tuple[str, ...]
    live: tuple[str, ...]
    follows: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()

    def asides(self) -> list[str]:
        """What a change does beside what was asked for, a line each."""
        lines = [f"With it goes {', '.join(self.follows)}."] if self.follows else []
        for name in self.unused:
            stays = f"No stage uses service {name} any more. It stays in the plan, and is not started"
            lines.append(f"{stays}; an empty services.{name}.command takes it out.")
        return lines


def _goes_on(plan: Plan, new: Plan, view: StageView | None) -> bool:
    """Whether an unfinished output is continued under the new plan: only how much it is to hold has changed."""
    if view is None or not view.resumable:
        return False
    old, now = shaping_params(plan, view.name), shaping_params(new, view.name)
    return all(old[name] == now[name] for name in now.keys() - targets(new, view.name))


def effect_of(plan: Plan, changes: Mapping[str, object], stages: Sequence[StageView]) -> Effect:
    """Raises pipeline.fields.ConfigError when a key or a value is refused."""
    new = set_values(plan, changes)
    views = {stage.name: stage for stage in stages}
    running = {stage.name for stage in stages if stage.state in ACTIVE}
    at_work = {stage.name for stage in stages if stage.state == "RUNNING"}
    live = tuple(key for key in changes if key in LIVE and key.partition(".")[0] in at_work)
    moved: set[str] = set()
    for name in STAGES:
        own = fingerprint_params(plan, name) != fingerprint_params(new, name)
        if own and name in running and _only_live(name, changes):
            own = False
        if own and _goes_on(plan, new, views.get(name)):
            own = False
        lender = plan.stages[name].from_run != new.stages[name].from_run
        if own or lender or any(source in moved for source in inputs_needed(new, name)):
            moved.add(name)
    has_output = {name for name, view in views.items() if view.output is not None}
    old = {row.key: row.raw for row in plan_rows(plan)}
    follows = (row for row in plan_rows(new) if row.key not in changes and old.get(row.key, row.raw) != row.raw)
    before = unused_services(plan)
    return Effect(
        new.to_json(),
        tuple(name for name in STAGES if name in moved & has_output),
        live,
        tuple(f"{row.key} = {row.raw}" for row in follows),
        tuple(name for name in unused_services(new) if name in plan.services and name not in before),
    )


def _only_live(stage: str, changes: Mapping[str, object]) -> bool:
    """Whether every change to the stage is one that it takes up while it runs."""
    return all(key in LIVE for key in changes if key.startswith(f"{stage}."))


def moved_words(before: Sequence[PlanRow], after: Sequence[PlanRow]) -> str:
    """What another revision says otherwise: `train.lr is 0.0003`; the first three of them, and how many more."""
    old = {row.key: row.shown for row in before}
    moved = [f"{row.key} is {row.shown}" for row in after if old.get(row.key) != row.shown]
    return ", ".join(moved[:3]) + (f" and {len(moved) - 3} more" if len(moved) > 3 else "")


def shown_value(plan: Plan, key: str) -> str:
    """The value of a key as the list shows it."""
    return next((row.shown for row in plan_rows(plan) if row.key == key), "—")


def budget_words(need: float | None, available: float | None) -> str:
    """`2.29 TB of 3.00 TB`."""
    if need is None or not known(need):
        return ""
    return f"{size_text(need)} needed" + (f", {size_text(available)} available" if available is not None else "")
