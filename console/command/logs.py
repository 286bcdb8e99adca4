"""`eagledeck logs`: the end of a stage's or service's log; with -f what follows, through attempts and reconnects."""

from __future__ import annotations

import argparse
import asyncio
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from console.command.refusal import Refusal
from console.command.session import connected, find_run, run_async
from console.log_tail import LogTail
from console.run_data import log_stage
from console.views import number, stage_views, table
from remote.errors import ConnectionLost, DeadlineExceeded, NotConnected

if TYPE_CHECKING:
    from remote.link import Link

POLL_S = 0.5
STATE_S = 15.0
BYTES_A_LINE = 400


def logs(args: argparse.Namespace) -> int:
    target = find_run(args)

    async def work() -> int:
        async with connected(target.state, target.host, args.accept_host_key) as link:
            return await _Logs(link, target.run, args).show()

    return run_async(work())


class _Logs:
    """One log after another: `source` is what is being read, as arguments of `tail`; None before there is one."""

    def __init__(self, link: Link, run: str, args: argparse.Namespace) -> None:
        self.link = link
        self.run = run
        self.args = args
        self.source: dict[str, Any] | None = None
        self.tail = LogTail(args.lines, max(16_384, args.lines * BYTES_A_LINE))
        self.push: Mapping[str, Any] = {}
        self.pushed = asyncio.Event()
        self.known: set[tuple[str, int]] = set()
        """Attempts that have been read, or had been there before."""

    async def show(self) -> int:
        args = self.args
        if args.service:
            await self._known_service()
            self.source = {"service": args.service}
        else:
            await self._first_source()
        if self.source is None and not args.follow:
            raise Refusal(f"No stage of {self.run} has run yet.", f"`eagledeck start {self.run}` starts it.")
        if self.source is not None:
            while await self._read() or self.tail.behind:
                pass
            _print(list(self.tail.lines) if args.follow else list(self.tail.shown()[-args.lines :]))
        while args.follow:
            await self._go_on()
        return 0

    async def _known_service(self) -> None:
        services = table(table(await self.link.request("plan", run=self.run)).get("services"))
        if self.args.service not in services:
            there = f"Its services: {', '.join(services) or 'none'}."
            raise Refusal(f"{self.run} has no service {self.args.service}.", there)

    async def _first_source(self) -> None:
        self.link.subscribe(self._on_push)
        await self.link.watch(self.run)
        async with asyncio.timeout(STATE_S):
            await self.pushed.wait()
        stages = stage_views(self.push)
        named = next((stage for stage in stages if stage.name == self.args.stage), None)
        stage = named or log_stage(stages, self.push)
        self.known = {(one.name, one.attempt) for one in stages if one.attempt is not None}
        if named is not None and named.attempt is None:
            raise Refusal(f"{named.name} of {self.run} has no log yet.", f"`eagledeck start {self.run}` starts it.")
        if stage is not None:
            if self.args.attempt and stage.attempt and self.args.attempt > stage.attempt:
                raise Refusal(
                    f"{stage.name} of {self.run} has no attempt {self.args.attempt}.",
                    f"Its newest is {stage.attempt}; --stage names another stage.",
                )
            self.source = {"stage": stage.name, "attempt": self.args.attempt or stage.attempt}

    def _on_push(self, name: str, data: Mapping[str, Any]) -> None:
        if name == "run" and data.get("run") == self.run and "stages" in data:
            self.push = data
            self.pushed.set()

    def _next(self) -> tuple[str, int] | None:
        """The earliest attempt that was not there before: of the named stage, or of any."""
        found = []
        for stage in stage_views(self.push):
            wanted = self.args.stage in (None, stage.name)
            if wanted and stage.attempt is not None and (stage.name, stage.attempt) not in self.known:
                started = number(table(table(self.push.get("stages")).get(stage.name)).get("started"))
                # An attempt that is only being opened has no start yet: it comes after those that have one.
                found.append((math.inf if started is None else started, stage.name, stage.attempt))
        return min(found)[1:] if found else None

    async def _read(self) -> list[str]:
        asked = {**(self.source or {}), **self.tail.request()}
        return self.tail.add(table(await self.link.request("tail", run=self.run, **asked)))

    async def _go_on(self) -> None:
        """What is new, then the next attempt's log. A lost link is waited out: logs are read by offset."""
        following = self._next()
        try:
            if self.source is not None:
                _print(await self._read())
                while self.tail.behind:
                    _print(await self._read())
        except (NotConnected, ConnectionLost, DeadlineExceeded):
            following = None
        if following is None:
            await asyncio.sleep(POLL_S)
            return
        # The log before it was read to its end: stages follow each other.
        self.known.add(following)
        stage, attempt = following
        self.source, self.tail = {"stage": stage, "attempt": attempt}, LogTail(self.args.lines, first_bytes=0)
        _print([f"==> {stage} <==" if attempt == 1 else f"==> {stage}, attempt {attempt} <=="])


def _print(lines: list[str]) -> None:
    if lines:
        print("\n".join(lines), flush=True)
