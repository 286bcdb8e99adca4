"""`eagledeck logs`: the end of a stage's or service's log; with -f what follows, through attempts and reconnects."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from console.command.refusal import Refusal
from console.command.session import connected, find_run, run_async
from console.log_tail import LogTail
from console.run_data import log_stage
from console.views import stage_views, table
from remote.errors import ConnectionLost, NotConnected, RemoteError

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
    """Prints one log; which stage's is decided by the run's state unless it was named."""

    def __init__(self, link: Link, run: str, args: argparse.Namespace) -> None:
        self.link = link
        self.run = run
        self.lines: int = args.lines
        self.follow: bool = args.follow
        self.named: dict[str, Any] = {}
        if args.service:
            self.named = {"service": args.service}
        elif args.stage:
            self.named = {"stage": args.stage}
        self.attempt: dict[str, Any] = {"attempt": args.attempt} if args.attempt else {}
        self.push: Mapping[str, Any] = {}
        self.pushed = asyncio.Event()

    async def show(self) -> int:
        if not self.named:
            self.link.subscribe(self._on_push)
            await self.link.watch(self.run)
            async with asyncio.timeout(STATE_S):
                await self.pushed.wait()
        source = self._source()
        if source is None and not self.follow:
            raise Refusal(f"No stage of {self.run} has run yet.", f"`eagledeck start {self.run}` starts it.")
        tail = LogTail(self.lines, max(16_384, self.lines * BYTES_A_LINE))
        if source is not None:
            while await self._read(source, tail) or tail.behind:
                pass
            shown = tail.lines if self.follow else tail.shown()[-self.lines :]
            if shown:
                print("\n".join(shown), flush=True)
        if self.follow:
            await self._go_on(source, tail)
        return 0

    def _on_push(self, name: str, data: Mapping[str, Any]) -> None:
        if name == "run" and data.get("run") == self.run:
            self.push = data
            self.pushed.set()

    def _source(self) -> dict[str, Any] | None:
        if self.named:
            return self.named
        stage = log_stage(stage_views(self.push), self.push)
        return None if stage is None else {"stage": stage.name}

    async def _read(self, source: Mapping[str, Any], tail: LogTail) -> list[str]:
        asked = {**tail.request(), **self.attempt}
        return tail.add(table(await self.link.request("tail", run=self.run, **source, **asked)))

    async def _go_on(self, source: dict[str, Any] | None, tail: LogTail) -> None:
        """Until Ctrl-C. A lost link is waited out; nothing of the log is missed, since it is read by offset."""
        while True:
            now = self._source()
            if now is not None and now != source:
                source, tail = now, LogTail(self.lines, first_bytes=0)
                tail.offset = 0
                print(f"==> {' '.join(source.values())} <==", flush=True)
            new: list[str] = []
            if source is not None:
                try:
                    new = await self._read(source, tail)
                except (NotConnected, ConnectionLost):
                    pass
                except RemoteError as error:
                    if error.code != "deadline":
                        raise
            if new:
                print("\n".join(new), flush=True)
            if not tail.behind:
                await asyncio.sleep(POLL_S)
