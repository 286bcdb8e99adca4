"""The product's laptop, watched: a Link and a Collector as the console has them, and a record of what came over them.

``python -m tests.real.network.laptop SPEC`` is the same in a process of its own, which may be stopped; it prints a
JSON line a change.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from console.collector import Collector
from console.snapshot import Snapshot, StageView
from remote.hostkeys import HostKeyStore
from remote.link import Kind, Link, LinkState, Pace
from remote.resolve import HostSpec

BRISK = Pace(keepalive=1.0, ping=0.5, stale=2.0, silence=4.0, backoff=0.2, backoff_cap=2.0, viewer_cap=1.0)
"""The design's clocks, five times as fast: a loss is seen after 4 s."""


class RecordingLink(Link):
    """A Link that writes down what it was asked and what it answered."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.log: list[tuple[str, dict[str, Any], Any]] = []
        self.states: list[LinkState] = []
        self.on_state(self.states.append)
        self._channels: set[Any] = set()

    def agents_said(self) -> list[bytes]:
        """The end of the standard error of every agent that has answered something."""
        return [channel.stderr_tail for channel in self._channels]

    async def request(self, op: str, **args: Any) -> Any:
        answer = await super().request(op, **args)
        if (session := self._session) is not None:
            clients = (session._client, session._bulk)
            self._channels.update(client._channel for client in clients if client is not None)
        if op == "tail":
            self.log.append((op, args, answer))
        return answer

    def kinds(self) -> list[str]:
        return [state.kind.value for state in self.states]


@dataclass
class Laptop:
    link: RecordingLink
    collector: Collector
    run: str
    troubles: list[str] = field(default_factory=list)
    """Whatever was logged as an error, and exceptions that nobody took."""
    lag_s: float = 0.0
    """The longest that this process was kept from running; what it measured is late by up to that."""

    @property
    def snapshot(self) -> Snapshot:
        return self.collector.snapshot

    def stage(self, name: str = "generate") -> StageView:
        return next(stage for stage in self.snapshot.stages if stage.name == name)

    def state(self, name: str = "generate") -> str:
        return next((stage.state for stage in self.snapshot.stages if stage.name == name), "")

    def count(self) -> int:
        return self.snapshot.samples or 0

    def log_pieces(self) -> list[tuple[int, str, int, bytes]]:
        """(attempt, generation, offset, bytes) of every piece of a log that the collector asked for."""
        return [
            (answer["attempt"], answer["generation"], answer["offset"], base64.b64decode(answer["data"]))
            for _, _, answer in self.link.log
        ]

    async def until(self, what: Callable[[], Any], seconds: float = 60.0) -> Any:
        """The first true answer; fails the test when there is none. A bound, never a measurement."""
        end = time.monotonic() + seconds
        while not (answer := what()):
            assert time.monotonic() < end, f"not within {seconds} s; link {self.snapshot.link}; {self.link.kinds()}"
            await asyncio.sleep(0.02)
        return answer

    async def live(self, seconds: float = 60.0) -> None:
        async with asyncio.timeout(seconds):
            await self.link.wait_for(Kind.LIVE)

    async def counting(self, more: int = 5, seconds: float = 60.0) -> None:
        """Returns when the screen shows a higher count than now."""
        before = self.count()
        await self.until(lambda: self.count() >= before + more, seconds)


@contextlib.asynccontextmanager
async def laptop(
    spec: HostSpec, hostkeys: HostKeyStore, run: str, pace: Pace = BRISK, viewer: bool = True
) -> AsyncIterator[Laptop]:
    """Someone is looking at ``run``, which need not be there yet."""
    watching = _Troubles()
    logging.getLogger().addHandler(watching)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: watching.add(context))
    link = RecordingLink(spec, hostkeys, pace=pace)
    link.viewer = viewer
    try:
        async with link, Collector(link, run) as collector:
            made = Laptop(link, collector, run, watching.found)
            clock = asyncio.create_task(_measure(made))
            try:
                yield made
            finally:
                clock.cancel()
    finally:
        logging.getLogger().removeHandler(watching)
        loop.set_exception_handler(None)


async def _measure(made: Laptop) -> None:
    while True:
        before = time.monotonic()
        await asyncio.sleep(0.05)
        made.lag_s = max(made.lag_s, time.monotonic() - before - 0.05)


class _Troubles(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or record.levelno >= logging.ERROR:
            self.found.append(f"{record.name}: {record.getMessage()}\n{self.formatException(record)}")

    @staticmethod
    def formatException(record: logging.LogRecord) -> str:
        return "".join(traceback.format_exception(*record.exc_info)) if record.exc_info else ""

    def add(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        lines = traceback.format_exception(error) if error is not None else []
        self.found.append(f"{context.get('message')} {''.join(lines)}")


async def _alone(given: dict[str, Any]) -> None:
    spec = HostSpec(**{**given["spec"], "identity_files": tuple(given["spec"]["identity_files"])})
    async with laptop(spec, HostKeyStore(Path(given["state"])), given["run"], Pace(**given["pace"])) as here:
        loop = asyncio.get_running_loop()
        end = loop.run_in_executor(None, sys.stdin.readline)
        told = ""
        while not end.done():
            view = here.snapshot
            line = {"link": view.link.state, "count": view.samples, "pieces": len(here.link.log)}
            line |= {"states": here.link.kinds(), "troubles": here.troubles, "stage": here.state()}
            if (text := json.dumps(line)) != told:
                print(json.dumps({**line, "mono": time.monotonic()}), flush=True)
                told = text
            await asyncio.sleep(0.05)
        if here.state() == "DONE":
            await here.until(lambda: here.link.log and here.link.log[-1][2]["done"])
        jumped = [asked["offset"] < 0 for _, asked, _ in here.link.log]
        pieces = [[jump, offset, data.hex()] for jump, (_, _, offset, data) in zip(jumped, here.log_pieces())]
        print(json.dumps({"log": pieces}), flush=True)


if __name__ == "__main__":
    asyncio.run(_alone(json.loads(sys.argv[1])))
