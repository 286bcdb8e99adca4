"""`eagledeck set`: a new revision of a run's plan, and what it does to what the run has made."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from console.command.astyped import as_typed
from console.command.refusal import Refusal
from console.command.session import Target, connected, find_run, run_async, run_section
from console.screens.plan_rows import Effect, budget_words, effect_of
from console.snapshot import BudgetView
from console.views import budget_view, conductor_view, stage_views
from console.widgets.looks import ACTIVE, active_stage
from pipeline.config import Plan
from remote.errors import RemoteError

if TYPE_CHECKING:
    from remote.link import Link


PLAN_KEYS = {
    "verifier": "verifier.path",
    "verifier_name": "verifier.name",
    "reasoning": "verifier.reasoning",
    "capacity": "volume.capacity_bytes",
    "volume.capacity": "volume.capacity_bytes",
    "reserve": "volume.reserve_bytes",
    "volume.reserve": "volume.reserve_bytes",
}
"""What eagledeck.toml calls otherwise than the plan."""


@dataclass(frozen=True)
class Change:
    """A new revision of a plan and what came of it: stages whose outputs became STALE or are no longer, what else the
    change itself does, the stage at work ("" while none is), whether the run reruns or keeps by itself what is STALE,
    and the budget, None where the host said nothing about it.
    """

    plan: Mapping[str, Any]
    stale: tuple[str, ...]
    cleared: tuple[str, ...]
    effect: Effect
    active: str
    settled: bool
    budget: BudgetView | None


def set_plan(args: argparse.Namespace) -> int:
    target = find_run(args)
    changes = dict(_change(text) for text in args.changes)
    note = args.note or f"eagledeck set {' '.join(args.changes)}"

    async def work() -> Change:
        async with connected(target.state, target.host, args.accept_host_key) as link:
            return await change_plan(link, target.run, changes, note)

    done = run_async(work())
    if args.json:
        budget = dataclasses.asdict(done.budget) if done.budget else None
        does = {"stale": done.stale, "no_longer_stale": done.cleared, "live": done.effect.live, "budget": budget}
        print(json.dumps({**done.plan, "effect": does}, indent=2))
    else:
        print(as_typed("\n".join(change_lines(target, args.run, changes, done)), args))
    return 0


async def change_plan(link: Link, run: str, changes: Mapping[str, str], note: str) -> Change:
    """Raises ConfigError or RemoteError when a key or a value is refused; then nothing has changed."""
    stages = stage_views(await run_section(link, run))
    old = Plan.from_json(await link.request("plan", run=run))
    effect = effect_of(old, changes, stages)
    plan = await link.request("set", run=run, changes=dict(changes), note=note)
    try:
        budget = budget_view({"budget": await link.request("budget", run=run)})
    except RemoteError as error:  # the plan is changed, whatever else can't be said
        budget = BudgetView(None, None, None, error.message)
    before = {stage.name for stage in stages if stage.undecided}
    section = await run_section(link, run)
    after = {stage.name for stage in stage_views(section) if stage.undecided}
    # The host knows what each output was made with, but not yet what the stage at work will take up.
    at_work = {stage.name for stage in stages if stage.state in ACTIVE}
    stale = {name for name in after - before if name not in at_work or name in effect.stale}
    cleared = before - after
    names = [stage.name for stage in stages]
    active = active_stage(stages)
    return Change(
        plan,
        tuple(name for name in names if name in stale),
        tuple(name for name in names if name in cleared),
        effect,
        active.name if active is not None else "",
        bool(stale) and stale.issubset(conductor_view(section).settles),
        budget,
    )


def _change(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise Refusal(f"{text} is no change.", "Write KEY=VALUE, such as `generate.max_samples=10000`", 2)
    return PLAN_KEYS.get(key.strip(), key.strip()), value.strip()


def change_lines(target: Target, run: str, changes: Mapping[str, str], done: Change) -> list[str]:
    """What was changed and what that does, as the plan editor says it; `run` as it was named on the command line."""
    said = ", ".join(f"{key} = {value}" for key, value in changes.items())
    lines = [f"{target.run} on {target.host.name}: {said} (plan {done.plan.get('revision', '—')})."]
    budget = done.budget
    if done.effect.live:
        lines.append(f"Taken up at once by the running stage: {', '.join(done.effect.live)}.")
    lines += done.effect.asides()
    if done.cleared:
        lines.append(f"No longer STALE: {', '.join(done.cleared)}.")
    if done.stale:
        lines.append(f"Becomes STALE: {', '.join(done.stale)}.")
        goes_on = f"{done.active} goes on as it was begun. " if done.active else ""
        rests = "Once the run rests, " if done.active else ""
        again = f"`eagledeck start {run} --rerun-stale` brings it up to date; --keep-stale uses what is DONE as it is."
        lines.append(goes_on + ("The run sees to them, as it was started to." if done.settled else rests + again))
    elif not done.cleared:
        lines.append("No output becomes STALE.")
    if budget is not None and budget.need_bytes is not None:
        words = budget_words(budget.need_bytes, budget.available_bytes)
        verdict = {True: " It fits.", False: f" It DOES NOT FIT: `eagledeck budget {run}` says what helps.", None: ""}
        lines.append(f"Budget: {words}.{verdict[budget.fits]}")
    elif budget is not None and budget.text:
        lines.append(f"Budget: unknown ({budget.text.rstrip('.')}).")
    return lines
