"""The verbs that act on a run: start, stop, resume, restart, kill. The host does the work; none has to stay."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

from console import format as shown
from console.command.astyped import as_typed
from console.command.confirming import confirm
from console.command.session import ask_host, connected, find_run, run_async, run_section
from console.command.set import change_lines, change_plan
from console.snapshot import StageView
from console.views import stage_views


def start(args: argparse.Namespace) -> int:
    target = find_run(args)
    asked: dict[str, Any] = {"stale": args.stale}
    asked |= {key: value for key, value in (("from", args.first), ("through", args.through)) if value}

    async def work() -> str:
        async with connected(target.state, target.host, args.accept_host_key) as link:
            if args.verifier:
                changes = {"verifier.path": args.verifier}
                changed = await change_plan(link, target.run, changes, "start --verifier")
                print(as_typed("\n".join(change_lines(target, args.run, changes, changed)), args), flush=True)
            section = await run_section(link, target.run)
            through = args.through or str(section.get("through"))
            if _finished(stage_views(section), args.first, through, args.stale):
                what = f"every stage {f'from {args.first} ' if args.first else ''}up to {through}"
                again = f"`eagledeck restart {args.run} STAGE` makes a stage's output anew, and what follows from it."
                return f"Nothing to start: {what} of {target.run} on {target.host.name} is DONE. {again}"
            reply = await link.request("start", run=target.run, **asked)
            if isinstance(reply, dict) and reply.get("already") is True:
                return f"{target.run} on {target.host.name} is running already."
            looks_in = f"`eagledeck open {args.run}` looks in."
            return f"Started {target.run} on {target.host.name}; nothing here has to stay. {looks_in}"

    print(as_typed(run_async(work()), args))
    return 0


def _finished(stages: Sequence[StageView], first: str | None, through: str, stale: str) -> bool:
    """Whether a start would find nothing to do: all it goes over is DONE, and is what the plan asks for or kept."""
    names = [stage.name for stage in stages]
    if through not in names or (first or through) not in names:
        return False
    over = stages[names.index(first) if first else 0 : names.index(through) + 1]
    # a rerun also takes back what was kept
    unsettled = [stage for stage in over if stage.undecided or (stage.stale and stale == "rerun")]
    return bool(over) and not unsettled and all(stage.state == "DONE" for stage in over)


def stop(args: argparse.Namespace) -> int:
    target = find_run(args)
    asked = {"stage": args.stage} if args.stage else {}

    async def work() -> tuple[list[StageView], float]:
        async with connected(target.state, target.host, args.accept_host_key) as link:
            stages = stage_views(await run_section(link, target.run))
            at_work = [one for one in stages if args.stage in (None, one.name) and one.state in ("RUNNING", "STOPPING")]
            await link.request("stop", run=target.run, **asked)
            return at_work, time.time() + (link.state.skew_s or 0.0)

    at_work, now = run_async(work())
    if at_work and all(stage.state == "STOPPING" for stage in at_work):
        for stage in at_work:
            print(as_typed(_stopping(stage, target.host.name, args.run, now), args))
    else:
        print(f"{args.stage or target.run} on {target.host.name} was asked to save and stop.")
    return 0


def _stopping(stage: StageView, host: str, run: str, now: float) -> str:
    """A stage that was asked before; `now` is the host's wall clock in seconds."""
    since = f": it was asked {shown.age(now - stage.stop_since)}" if stage.stop_since else ""
    grace = f", and is ended by force {shown.duration(stage.stop_grace_s)} after that" if stage.stop_grace_s else ""
    kill = f"`eagledeck kill {run}` ends it at once; what it has not saved is lost."
    return f"{stage.name} on {host} is stopping already{since}{grace if since else ''}. {kill}"


def resume(args: argparse.Namespace) -> int:
    return _act(args, "resume", "goes on", stale=args.stale)


def restart(args: argparse.Namespace) -> int:
    target = find_run(args)
    if not args.yes:
        loss = f"Restarting {args.stage} takes its output out of count; it stays on disk."
        confirm(args.stage, loss, f"`eagledeck resume {args.run} {args.stage}` goes on with it.", "restarted")
    ask_host(target, args.accept_host_key, "restart", run=target.run, stage=args.stage, stale=args.stale)
    print(f"{args.stage} on {target.host.name} begins a new output; what comes after it follows.")
    return 0


def kill(args: argparse.Namespace) -> int:
    if not args.yes:
        what = args.stage or args.run
        confirm(
            what, f"Killing {what} loses what it has not saved.", f"`eagledeck stop {args.run}` saves first.", "killed"
        )
    return _act(args, "kill", "is being killed")


def _act(args: argparse.Namespace, op: str, done: str, **more: str) -> int:
    target = find_run(args)
    stage = {"stage": args.stage} if args.stage else {}
    ask_host(target, args.accept_host_key, op, run=target.run, **stage, **more)
    print(f"{args.stage or target.run} on {target.host.name} {done}.")
    return 0
