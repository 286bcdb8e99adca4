"""What the host has said about one run, and how the rest of it is asked for: plan, curves, events and log, in pieces.

Every piece is asked for from where the last answer ended. Imports remote.errors; no Textual, no asyncssh.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from console.curves import POINTS, CurveStore
from console.format import sentence
from console.log_tail import LogTail
from console.snapshot import EventView, StageView
from console.views import event_view, number, stage_views, table, text, whole
from remote.errors import RemoteError

LOG_LINES = 500
EVENTS_KEPT = 500
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
        self._filling = asyncio.Lock()

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

    async def fill(self, request: Request) -> None:
        """Ask for what is new. A part that is refused (no metrics yet, link lost) is asked for again the next time."""
        async with self._filling:
            for part in (self._fill_plan, self._fill_metrics, self._fill_events, self._fill_log):
                with contextlib.suppress(RemoteError):
                    await part(request)

    async def _fill_plan(self, request: Request) -> None:
        revision = whole(self.push.get("plan_revision"))
        if revision is not None and (self.plan is None or revision != whole(self.plan.get("revision"))):
            self.plan = dict(table(await request("plan", run=self.name)))

    async def _fill_metrics(self, request: Request) -> None:
        if not any(stage.name == CURVES_OF and stage.attempt is not None for stage in self.stages):
            return
        complete = False
        while not complete:
            since = self.curves.since
            asked: dict[str, Any] = {} if since is None else {"since_step": since}
            reply = await request("metrics", run=self.name, stage=CURVES_OF, points=POINTS, **asked)
            complete = self.curves.add(table(reply), since)

    async def _fill_events(self, request: Request) -> None:
        asked: dict[str, Any] = {} if self._cursor is None else {"since": dict(self._cursor)}
        reply = table(await request("events", run=self.name, **asked))
        rows = reply.get("events")
        new = [event for row in (rows if isinstance(rows, list) else ()) if (event := event_view(row))]
        if new:
            self.events = sorted([*self.events, *new], key=lambda event: event.t)[-EVENTS_KEPT:]
        if isinstance(reply.get("cursor"), Mapping):
            self._cursor = reply["cursor"]

    async def _fill_log(self, request: Request) -> None:
        stage = log_stage(self.stages, self.push)
        if stage is None:
            return
        if stage.name != self.log_stage or self.log.attempt not in (None, stage.attempt):
            self.log, self.log_stage = LogTail(LOG_LINES), stage.name
        # one that grows faster than it can be read is begun anew at its end, which is what counts
        for log, tails in ((self.log, TAILS_AT_ONCE), (LogTail(LOG_LINES), TAILS_OF_THE_END)):
            self.log = log
            for _ in range(tails):
                asked = {"stage": stage.name, "attempt": stage.attempt, **log.request()}
                log.add(table(await request("tail", run=self.name, **asked)))
                if not log.behind:
                    return


def log_stage(stages: tuple[StageView, ...], push: Mapping[str, Any]) -> StageView | None:
    """The stage whose log matters now: the one at work, else the one started last."""
    tried = [stage for stage in stages if stage.attempt is not None]
    for stage in reversed(tried):
        if stage.state in ACTIVE:
            return stage
    started = {name: number(table(row).get("started")) or 0.0 for name, row in table(push.get("stages")).items()}
    return max(tried, key=lambda stage: started.get(stage.name, 0.0), default=None)
