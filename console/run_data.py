"""What the host has said about one run, and how the rest of it is asked for: plan, curves, events and log, in pieces.

Every piece is asked for from where the last answer ended, and is as large as the link carries in about a second: what
fills a slow one for longer would hold up key presses and heartbeats. Imports remote.errors and remote.session; no
Textual, no asyncssh.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from console.curves import FIRST_POINTS, LEAST_POINTS, POINTS, Ask, CurveStore
from console.format import sentence
from console.log_tail import LogTail
from console.snapshot import EventView, StageView
from console.views import event_view, number, stage_views, table, text, whole
from remote.errors import RemoteError
from remote.session import PIECE_S, next_piece

LOG_LINES = 500
EVENTS_KEPT = 500
FIRST_EVENTS, LEAST_EVENTS, MOST_EVENTS = 50, 10, 1000
TAILS_AT_ONCE, TAILS_OF_THE_END = 8, 2
CURVES_OF = "train"
"""The stage whose metrics are the run's curves."""
ACTIVE = frozenset({"RUNNING", "STOPPING"})

Request = Callable[..., Awaitable[Any]]
"""remote.link.Link.request."""


class RunData:
    """One run's data as it arrives. Nothing in it is ever taken back because the link is down."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.push: Mapping[str, Any] = {}
        self.plan: Mapping[str, object] | None = None
        self.curves = CurveStore()
        self.log = LogTail(LOG_LINES)
        self.log_stage = ""
        self.events: list[EventView] = []
        self.refusal = ""
        """Why the host does not tell about this run."""
        self.taken = asyncio.Event()
        """Set by every push."""
        self._cursor: Mapping[str, Any] | None = None
        self.begin_small()
        self._filling, self._filling_curves = asyncio.Lock(), asyncio.Lock()

    def take(self, push: Mapping[str, Any]) -> None:
        """A "run" push: the run's section, or why it can't be read any more; then what it last said stays."""
        self.taken.set()
        error = push.get("error")
        if isinstance(error, Mapping):
            self.refusal = sentence(text(error.get("message")), text(error.get("remedy")))
        else:
            self.push, self.refusal = push, ""

    @property
    def stages(self) -> tuple[StageView, ...]:
        return stage_views(self.push)

    @property
    def working(self) -> bool:
        return any(stage.state in ACTIVE for stage in self.stages)

    def begin_small(self) -> None:
        """The link is another one, and may be slower than the one before."""
        self._points, self._rows = FIRST_POINTS, FIRST_EVENTS

    async def fill(self, request: Request) -> bool:
        """Ask for what is new of all but the curves. Whether that was all of it.

        A part that is refused (no log yet, link lost) is asked for again the next time.
        """
        async with self._filling:
            return await self._in_turn(request, self._fill_plan, self._fill_events, self._fill_log)

    async def fill_curves(self, request: Request) -> bool:
        """As ``fill``, for the curves: what is new, then about a second's worth of what is held only roughly."""
        async with self._filling_curves:
            return await self._in_turn(request, self._fill_metrics, self._refine_metrics)

    async def _in_turn(self, request: Request, *parts: Callable[[Request], Awaitable[bool]]) -> bool:
        complete = True
        for part in parts:
            try:
                complete &= await part(request)
            except RemoteError as error:
                if error.code == "deadline":
                    self.begin_small()
        return complete

    async def _fill_plan(self, request: Request) -> bool:
        revision = whole(self.push.get("plan_revision"))
        if revision is not None and (self.plan is None or revision != whole(self.plan.get("revision"))):
            self.plan = dict(table(await request("plan", run=self.name)))
        return True

    async def _fill_metrics(self, request: Request) -> bool:
        if any(stage.name == CURVES_OF and stage.attempt is not None for stage in self.stages):
            while not await self._ask_metrics(request, self.curves.newest(self._points)):
                pass
        return True

    async def _refine_metrics(self, request: Request) -> bool:
        end = time.monotonic() + PIECE_S
        while ask := self.curves.finer(self._points):
            if time.monotonic() >= end or not await self._ask_metrics(request, ask):
                return False
        return True

    async def _ask_metrics(self, request: Request, ask: Ask) -> bool:
        began = time.monotonic()
        reply = table(await request("metrics", run=self.name, stage=CURVES_OF, **ask.args()))
        got, took = min(whole(reply.get("rows")) or 0, ask.points), time.monotonic() - began
        if got == ask.points or took > PIECE_S:
            self._points = next_piece(ask.points, got, took, LEAST_POINTS, POINTS)
        return self.curves.add(reply, ask)

    async def _fill_events(self, request: Request) -> bool:
        end = time.monotonic() + PIECE_S
        while await self._ask_events(request):
            if time.monotonic() >= end:
                return False
        return True

    async def _ask_events(self, request: Request) -> bool:
        """Whether there are more."""
        began, most = time.monotonic(), self._rows
        # without a cursor the newest are told, and nothing older is asked for later
        asked: dict[str, Any] = {} if self._cursor is None else {"since": dict(self._cursor), "max": most}
        reply = table(await request("events", run=self.name, **asked))
        rows = reply.get("events")
        new = [event for row in (rows if isinstance(rows, list) else ()) if (event := event_view(row))]
        if new:
            self.events = sorted([*self.events, *new], key=lambda event: event.t)[-EVENTS_KEPT:]
        if isinstance(reply.get("cursor"), Mapping):
            self._cursor = reply["cursor"]
        took, more = time.monotonic() - began, reply.get("more") is True
        if asked and (more or took > PIECE_S):
            got = len(rows) if isinstance(rows, list) else 0
            self._rows = next_piece(most, got, took, LEAST_EVENTS, MOST_EVENTS)
        return more

    async def _fill_log(self, request: Request) -> bool:
        stage = log_stage(self.stages, self.push)
        if stage is None:
            return True
        if stage.name != self.log_stage or self.log.attempt not in (None, stage.attempt):
            self.log, self.log_stage = LogTail(LOG_LINES), stage.name
        # one that grows faster than it can be read is begun anew at its end, which is what counts
        for log, tails in ((self.log, TAILS_AT_ONCE), (LogTail(LOG_LINES), TAILS_OF_THE_END)):
            self.log = log
            for _ in range(tails):
                asked = {"stage": stage.name, "attempt": stage.attempt, **log.request()}
                log.add(table(await request("tail", run=self.name, **asked)))
                if not log.behind:
                    return True
        return True


def log_stage(stages: tuple[StageView, ...], push: Mapping[str, Any]) -> StageView | None:
    """The stage whose log matters now: the one at work, else the one started last."""
    tried = [stage for stage in stages if stage.attempt is not None]
    for stage in reversed(tried):
        if stage.state in ACTIVE:
            return stage
    started = {name: number(table(row).get("started")) or 0.0 for name, row in table(push.get("stages")).items()}
    return max(tried, key=lambda stage: started.get(stage.name, 0.0), default=None)
