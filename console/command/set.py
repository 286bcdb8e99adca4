"""`eagledeck set`: a new revision of a run's plan, and what it does to what the run has made."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

from console.command.refusal import Refusal
from console.command.session import connected, find_run, run_async, run_section
from console.screens.plan_rows import Effect, budget_words, effect_of
from console.snapshot import BudgetView
from console.views import budget_view, stage_views
from pipeline.config import Plan
from remote.errors import RemoteError


def set_plan(args: argparse.Namespace) -> int:
    target = find_run(args)
    changes: dict[str, object] = dict(_change(text) for text in args.changes)
    note = args.note or f"eagledeck set {' '.join(args.changes)}"

    async def work() -> tuple[dict[str, Any], Effect, BudgetView | None]:
        async with connected(target.state, target.host, args.accept_host_key) as link:
            stages = stage_views(await run_section(link, target.run))
            before = Plan.from_json(await link.request("plan", run=target.run))
            effect = effect_of(before, changes, stages)
            plan = await link.request("set", run=target.run, changes=changes, note=note)
            try:
                budget = budget_view({"budget": await link.request("budget", run=target.run)})
            except RemoteError as error:  # the plan is changed, whatever else can't be said
                budget = BudgetView(None, None, None, error.message)
            return plan, effect, budget

    plan, effect, budget = run_async(work())
    if args.json:
        does = {"stale": effect.stale, "live": effect.live, "budget": dataclasses.asdict(budget) if budget else None}
        print(json.dumps({**plan, "effect": does}, indent=2))
        return 0
    said = ", ".join(f"{key} = {value}" for key, value in changes.items())
    print(f"{target.run} on {target.host.name}: {said} (plan {plan.get('revision', '—')}).")
    print("\n".join(effect_lines(args.run, effect, budget)))
    return 0


def _change(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise Refusal(f"{text} is no change.", "Write KEY=VALUE, such as `generate.max_samples=10000`", 2)
    return key.strip(), value.strip()


def effect_lines(run: str, effect: Effect, budget: BudgetView | None) -> list[str]:
    """What a change does, as the plan editor says it; `run` as it was named on the command line."""
    lines = []
    if effect.live:
        lines.append(f"Taken up at once by the running stage: {', '.join(effect.live)}.")
    if effect.stale:
        lines.append(f"Becomes STALE: {', '.join(effect.stale)}.")
        lines.append(f"`eagledeck start {run} --rerun-stale` makes it anew; --keep-stale uses it as it is.")
    else:
        lines.append("No output becomes STALE.")
    if budget is not None and budget.need_bytes is not None:
        words = budget_words(budget.need_bytes, budget.available_bytes)
        verdict = {True: " It fits.", False: f" It DOES NOT FIT: `eagledeck budget {run}` says what helps.", None: ""}
        lines.append(f"Budget: {words}.{verdict[budget.fits]}")
    elif budget is not None and budget.text:
        lines.append(f"Budget: unknown ({budget.text.rstrip('.')}).")
    return lines
