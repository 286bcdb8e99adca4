"""`eagledeck RUN`: the console on a run. The link connects while the first frame is already on screen."""

from __future__ import annotations

import argparse
import gc
import sys
from contextlib import AsyncExitStack

from console.command.refusal import Refusal
from console.command.session import Target, find_run, make_link, read_config, run_async


def open_run(args: argparse.Namespace) -> int:
    target = find_run(args)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Refusal("The console needs a terminal.", f"`eagledeck status {args.run}` works without one.")
    return run_async(_console(target, args.accept_host_key))


def open_only_run(args: argparse.Namespace) -> int:
    """`eagledeck` alone opens the only run there is."""
    runs = list(read_config(args).runs)
    if len(runs) != 1:
        raise Refusal(
            "Which run?", f"Name one of: {', '.join(runs)}." if runs else "Describe one in the configuration.", status=2
        )
    args.run, args.accept_host_key = runs[0], None
    return open_run(args)


async def _console(target: Target, accept_host_key: str | None) -> int:
    # The imports make hundreds of thousands of objects that stay: collecting among them only delays the first frame.
    gc.set_threshold(50_000, 20, 20)
    from console.collector import Collector
    from console.command.opening import Opening
    from console.demo.server import at_hand

    async with AsyncExitStack() as stack:
        host, up = at_hand(target.state, target.host)
        link = make_link(target.state, host, accept_host_key)
        collector = await stack.enter_async_context(Collector(link, target.run))

        async def connect(_: Opening) -> None:
            await stack.enter_async_context(up)
            link.viewer = True
            await stack.enter_async_context(link)

        await Opening(collector, connect).show()
    return 0
