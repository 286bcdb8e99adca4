"""Keeps one immutable snapshot of one run up to date over a link, and passes actions on to the host.

Pushes bring the host's and the run's state; metrics, events and the log are asked for from where the last answer ended,
so that a lost link costs no point of a curve. While the link is down the last data stays and only its age grows.
Imports no Textual and no asyncssh, so the command line and the demo use it headless.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from console.curves import last_value
from console.format import sentence
from console.run_data import RunData
from console.snapshot import BudgetView, ConductorView, LinkView, Snapshot
from console.views import (
    acceptance_length,
    budget_view,
    conductor_view,
    disk_view,
    gpu_views,
    service_views,
    table,
    text,
    whole,
)
from remote.errors import HostKeyChanged, PassphraseNeeded, RemoteError

if TYPE_CHECKING:
    from remote.link import Link, LinkState

NOTIFY_EVERY_S = 0.25
"""Subscribers hear of changes at most this often."""
POLL_EVERY_S = 1.0
WATCH_AGAIN_S = 2.0
RUNS_EVERY_S = 15.0
REFRESH_S = 15.0

LIVE = "LIVE"


class _Part:
    """What is asked for in turn, each for itself: `filled` is set once it is all there."""

    def __init__(self, fill: Callable[[RunData], Awaitable[bool]]) -> None:
        self.fill = fill
        self.wake = asyncio.Event()
        self.filled = asyncio.Event()


class Collector:
    """`async with Collector(link, run) as collector`; the link is opened and closed by its owner.

    Actions return when the host has accepted them and raise remote.errors.RemoteError (message, remedy) when it refuses
    or can't be reached; their effect arrives with the following snapshots.
    """

    def __init__(self, link: Link, run: str) -> None:
        self._link = link
        self._data = RunData(run)
        self._host: Mapping[str, Any] = {}
        self._runs: tuple[str, ...] = ()
        self._runs_at = -RUNS_EVERY_S
        self._view: Snapshot | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._changed = asyncio.Event()
        self._selected = asyncio.Event()
        # apart, as the host may have to read a long file before it tells of a curve
        self._parts = (_Part(self._fill), _Part(self._fill_curves))
        self._forget: list[Callable[[], None]] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._forget = [self._link.subscribe(self._on_push), self._link.on_state(self._on_state)]
        self._tasks = [
            asyncio.create_task(self._watch(), name="collector watch"),
            *(asyncio.create_task(self._poll(part), name="collector poll") for part in self._parts),
            asyncio.create_task(self._notify(), name="collector notify"),
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for forget in self._forget:
            forget()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ------------------------------------------------------------ what is known

    @property
    def run(self) -> str:
        return self._data.name

    @property
    def snapshot(self) -> Snapshot:
        """The newest state; the link's state and the age of the data are those of this moment."""
        if self._view is None:
            self._view = self._build()
        return replace(self._view, link=self._link_view(), taken_wall=time.time())

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after changes, at most four times a second, and once a second in any case.

        Returns what ends that.
        """
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    async def filled(self) -> None:
        """Returns once the host has told everything about the run, or has refused to."""
        for part in self._parts:
            while not (part.filled.is_set() or self._data.refusal):
                await _within(NOTIFY_EVERY_S, part.filled)

    async def refresh(self) -> None:
        """Have the host tell everything about the run anew. Returns when it is known; raises RemoteError."""
        data = self._data
        data.taken.clear()
        await self._link.watch(data.name)
        async with asyncio.timeout(REFRESH_S):
            await data.taken.wait()
        for fill in (data.fill, data.fill_curves):
            while not await fill(self._ask):
                pass

    def _link_view(self) -> LinkView:
        state = self._link.state
        return LinkView(
            state=state.kind.value,
            age_s=state.age_s,
            rtt_ms=state.rtt_ms,
            retry_in_s=state.retry_in_s,
            host=self._link.spec.alias,
            message=text(state.message),
            remedy=text(state.remedy),
            skew_s=state.skew_s,
            locked=self._locked(),
        )

    def _locked(self) -> tuple[str, ...]:
        """Files that a passphrase would open here; the system's ssh takes keys from files and agents only."""
        error = self._link.state.error
        return error.files if isinstance(error, PassphraseNeeded) and self._link.spec.backend == "asyncssh" else ()

    def _build(self) -> Snapshot:
        data = self._data
        stages, curves = data.stages, data.curves.curves()
        counts = table(data.push.get("counts"))
        generate = table(table(table(data.plan).get("stages")).get("generate"))
        targets = table(generate.get("params"))
        return Snapshot(
            link=self._link_view(),
            run=data.name,
            host=self._link.spec.alias,
            plan_revision=whole(data.push.get("plan_revision")),
            through=text(data.push.get("through")),
            verifier=text(data.push.get("verifier")),
            stages=stages,
            gpus=gpu_views(self._host),
            gpu_note=text(self._host.get("gpu_note")),
            disk=disk_view(self._host),
            samples=whole(counts.get("samples")),
            tokens=whole(counts.get("tokens")),
            tokens_target=whole(targets.get("token_budget")) or None,
            samples_target=whole(targets.get("max_samples")) or None,
            curves=curves,
            acceptance_length=acceptance_length(stages, last_value(curves, "val/acceptance_length")),
            log=data.log.shown(),
            log_source=data.log_stage,
            events=tuple(data.events),
            budget=budget_view(data.push),
            services=service_views(data.push),
            conductor=ConductorView("failed", message=data.refusal) if data.refusal else conductor_view(data.push),
            runs=self._runs,
            taken_wall=time.time(),
            plan=data.plan,
        )

    def _touch(self) -> None:
        self._view = None
        self._changed.set()

    # ------------------------------------------------------------ what arrives

    def _on_push(self, name: str, data: Mapping[str, Any]) -> None:
        if name == "host":
            self._host = data
        elif name == "run" and data.get("run") == self.run:
            self._data.take(data)
            self._wake()
        self._touch()

    def _on_state(self, state: LinkState) -> None:
        if state.kind == LIVE:
            self._data.begin_small()
            self._begin_anew()
        self._touch()

    async def _watch(self) -> None:
        """The link asks again after every reconnect; a host that refuses (no such run yet) is asked again here."""
        watched: RunData | None = None
        while True:
            data = self._data
            try:
                if watched not in (None, data):
                    await self._link.unwatch()
                if watched is not data or not data.push:
                    await self._link.watch(data.name)
                    watched, data.refusal = data, ""
            except RemoteError as error:
                data.refusal = sentence(error.message, error.remedy)
                self._touch()
            self._selected.clear()
            await _within(WATCH_AGAIN_S, self._selected)

    async def _notify(self) -> None:
        while True:
            await _within(POLL_EVERY_S, self._changed)
            self._changed.clear()
            for callback in tuple(self._callbacks):
                callback()
            await asyncio.sleep(NOTIFY_EVERY_S)

    def _wake(self) -> None:
        for part in self._parts:
            part.wake.set()

    def _begin_anew(self) -> None:
        for part in self._parts:
            part.filled.clear()
        self._wake()

    async def _poll(self, part: _Part) -> None:
        """Back-fill after every push of the run, piece by piece until it is whole; each second while a stage is at
        work, as logs grow without pushes."""
        complete = True
        while True:
            if complete:
                await _within(POLL_EVERY_S if self._data.working else None, part.wake)
            part.wake.clear()
            data, complete = self._data, True
            if self._link.state.kind == LIVE:
                complete = await part.fill(data)
                if complete and data.push and data is self._data:
                    part.filled.set()
                self._touch()
            await asyncio.sleep(NOTIFY_EVERY_S)

    async def _fill(self, data: RunData) -> bool:
        complete = await data.fill(self._ask)
        with contextlib.suppress(RemoteError):
            await self._fill_runs()
        return complete

    async def _fill_curves(self, data: RunData) -> bool:
        return await data.fill_curves(self._ask)

    async def _ask(self, op: str, **args: Any) -> Any:
        """Each answer is shown when it comes: what follows it may take long."""
        try:
            return await self._link.request(op, **args)
        finally:
            self._touch()

    async def _fill_runs(self) -> None:
        if time.monotonic() - self._runs_at >= RUNS_EVERY_S:
            reply = await self._link.request("runs")
            self._runs_at = time.monotonic()
            rows = [text(table(row).get("name")) for row in (reply if isinstance(reply, list) else ())]
            self._runs = tuple(name for name in rows if name)

    # ------------------------------------------------------------ actions

    async def start(self, *, first: str | None = None, through: str | None = None, stale: str = "refuse") -> None:
        """Go from stage to stage up to `through`.

        `stale` says what to do with finished stages whose inputs have changed: "refuse", "rerun" or "keep".
        """
        asked = {key: value for key, value in (("from", first), ("through", through)) if value}
        await self._act("start", stale=stale, **asked)

    async def stop(self, stage: str | None = None) -> None:
        """Ask the running stage to save and end; the run goes on with `resume`."""
        await self._act("stop", **({"stage": stage} if stage else {}))

    async def resume(self, stage: str | None = None, *, stale: str = "refuse") -> None:
        """Go on with a stage and what follows it. `stale` as in `start`, for stages that aren't made from it."""
        await self._act("resume", stale=stale, **({"stage": stage} if stage else {}))

    async def restart(self, stage: str, *, stale: str = "refuse") -> None:
        """Begin a new output of a stage and go on from there; the old one stays on disk. `stale` as in `start`."""
        await self._act("restart", stage=stage, stale=stale)

    async def kill(self, stage: str | None = None) -> None:
        """End every process of the running stage at once; what it has not saved is lost."""
        await self._act("kill", **({"stage": stage} if stage else {}))

    async def set(self, changes: Mapping[str, object], note: str = "") -> None:
        """Write a new revision of the plan: {"generate.max_samples": "10000"}."""
        data = self._data
        data.plan = dict(table(await self._link.request("set", run=data.name, changes=dict(changes), note=note)))
        self._wake()
        self._touch()

    async def budget(self, plan: Mapping[str, object]) -> BudgetView | None:
        """What the run would need under another plan."""
        return budget_view({"budget": await self._link.request("budget", run=self.run, plan=dict(plan))})

    async def select(self, run: str) -> None:
        """Show another run of the same host from now on."""
        self._data = RunData(run)
        self._begin_anew()
        self._selected.set()
        self._touch()

    def retry_now(self) -> None:
        """Connect at once instead of at the end of the pause."""
        self._link.retry_now()

    async def confirm_host_key(self, fingerprint: str) -> None:
        """Pin the key with this fingerprint, which a person has compared, and connect.

        Where another key is pinned, the caller has had the person type the host's name; the pin is replaced.
        """
        error = self._link.state.error
        if isinstance(error, HostKeyChanged):
            self._link.replace_host_key(fingerprint, error.phrase)
        else:
            self._link.confirm_host_key(fingerprint)

    async def unlock(self, file: str, passphrase: str) -> None:
        """Open an identity file for this process and connect. Raises RemoteError for a wrong passphrase."""
        await asyncio.to_thread(self._link.spec.keyring.unlock, file, passphrase)
        self._link.retry_now()

    async def _act(self, op: str, **args: Any) -> None:
        await self._link.request(op, run=self.run, **args)
        self._wake()


async def _within(seconds: float | None, event: asyncio.Event) -> None:
    """Until the event is set, at most `seconds`. Not wait_for, which before Python 3.12 may swallow a cancellation."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
