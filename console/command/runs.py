"""The verbs that act on a run: start, stop, resume, restart, kill, set. The host does the work; none has to stay."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from console.command.refusal import Refusal
from console.command.session import Target, ask_host, connected, find_run, run_async
from remote.errors import RemoteError


def start(args: argparse.Namespace) -> int:
    target = find_run(args)
    asked: dict[str, Any] = {"stale": args.stale}
    asked |= {key: value for key, value in (("from", args.first), ("through", args.through)) if value}

    async def work() -> bool:
        async with connected(target.state, target.host, args.accept_host_key) as link:
            if args.verifier:
                changes = {"verifier.path": args.verifier}
                await link.request("set", run=target.run, changes=changes, note="start --verifier")
            reply = await link.request("start", run=target.run, **asked)
            return isinstance(reply, dict) and reply.get("already") is True

    if run_async(work()):
        print(f"{target.run} on {target.host.name} is running already.")
        return 0
    print(f"Started {target.run} on {target.host.name}; nothing here has to stay. `eagledeck {args.run}` looks in.")
    return 0


def stop(args: argparse.Namespace) -> int:
    if args.service is not None:
        return _stop_service(args)
    return _act(args, "stop", "was asked to save and stop")


def _stop_service(args: argparse.Namespace) -> int:
    """Stops a service; asked first where stages use it."""
    if args.stage:
        raise Refusal("A stage or a service can be stopped, not both at once.", "Leave one of them out.", 2)
    target, name = find_run(args), args.service
    try:
        ask_host(target, args.accept_host_key, "stop_service", name=name, yes=args.yes)
    except RemoteError as error:
        if error.code != "in-use" or not sys.stdin.isatty():
            raise
        _confirm(name, f"{error.message}.", "`eagledeck stop` stops the run first.", "stopped")
        ask_host(target, args.accept_host_key, "stop_service", name=name, yes=True)
    print(f"Service {name} on {target.host.name} was asked to end.")
    return 0


def resume(args: argparse.Namespace) -> int:
    return _act(args, "resume", "goes on", stale=args.stale)


def restart(args: argparse.Namespace) -> int:
    target = find_run(args)
    if not args.yes:
        loss = f"Restarting {args.stage} takes its output out of count; it stays on disk."
        _confirm(args.stage, loss, "`eagledeck resume` goes on with it.", "restarted")
    ask_host(target, args.accept_host_key, "restart", run=target.run, stage=args.stage, stale=args.stale)
    print(f"{args.stage} on {target.host.name} begins a new output; what comes after it follows.")
    return 0


def kill(args: argparse.Namespace) -> int:
    if not args.yes:
        what = args.stage or args.run
        _confirm(what, f"Killing {what} loses what it has not saved.", "`eagledeck stop` saves first.", "killed")
    return _act(args, "kill", "is being killed")


def _confirm(what: str, loss: str, milder: str, done: str) -> None:
    """Has `what` typed on a terminal. Raises Refusal when it isn't, or where nobody can type."""
    if not sys.stdin.isatty():
        raise Refusal(loss, f"Repeat with --yes; {milder}")
    print(f"{loss} Type {what} to go on: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != what:
        raise Refusal(f"Nothing was {done}.")


def _act(args: argparse.Namespace, op: str, done: str, **more: str) -> int:
    target = find_run(args)
    stage = {"stage": args.stage} if args.stage else {}
    ask_host(target, args.accept_host_key, op, run=target.run, **stage, **more)
    print(f"{args.stage or target.run} on {target.host.name} {done}.")
    return 0


def set_plan(args: argparse.Namespace) -> int:
    target = find_run(args)
    changes = dict(_change(text) for text in args.changes)
    note = args.note or f"eagledeck set {' '.join(args.changes)}"
    plan = ask_host(target, args.accept_host_key, "set", run=target.run, changes=changes, note=note)
    _print_plan(target, plan, changes, args.json)
    return 0


def _change(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise Refusal(f"{text} is no change.", "Write KEY=VALUE, such as `generate.max_samples=10000`", 2)
    return key.strip(), value.strip()


def _print_plan(target: Target, plan: dict[str, Any], changes: dict[str, str], as_json: bool) -> None:
    if as_json:
        print(json.dumps(plan, indent=2))
        return
    said = ", ".join(f"{key} = {value}" for key, value in changes.items())
    print(f"{target.run} on {target.host.name}: {said} (plan {plan.get('revision', '—')}).")
