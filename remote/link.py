"""The link to one host: connects, notices a loss, comes back by itself, and says at any moment where it stands.

    IDLE -> CONNECTING -> BOOTSTRAP -> LIVE <-> STALE -> LOST -> BACKOFF -> CONNECTING …
                                    BLOCKED: a host key, the keys, the configuration; only a person gets it going

A link that is not LIVE says nothing about the run: the stages go on without it. asyncssh loads on the first connection.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from types import TracebackType
from typing import Any, Self

from remote.connection import Ask
from remote.errors import ConnectionLost, HostKeyChanged, HostKeyUnknown, NotConnected, RemoteError
from remote.hostkeys import HostKey, HostKeyStore
from remote.protocol import DEADLINE_S
from remote.resolve import HostSpec
from remote.session import Pace, Session, open_session

__all__ = ["Kind", "Link", "LinkState", "Pace"]

TICK_S = 1.0
SLEPT_S = 4.0
"""A tick that comes this much too late means that the laptop, or this process, was suspended."""
PROBE_S = 3.0
CLOSE_S = 2.0
DESIGN_PACE = Pace()

_log = logging.getLogger(__name__)


class Kind(StrEnum):
    IDLE = "IDLE"
    CONNECTING = "CONNECTING"
    BOOTSTRAP = "BOOTSTRAP"
    LIVE = "LIVE"
    STALE = "STALE"
    LOST = "LOST"
    BACKOFF = "BACKOFF"
    BLOCKED = "BLOCKED"


@dataclass(frozen=True)
class LinkState:
    """``since_mono`` (time.monotonic) is when ``kind`` began; ``age_s`` the time since the last byte, None before any.

    ``retry_in_s`` in BACKOFF only. ``rtt_ms`` and ``skew_s`` (the host's clock less ours) are the last known ones.
    ``error`` is what ``message`` and ``remedy`` come from: a HostKeyUnknown or HostKeyChanged has the fingerprints.
    While LIVE, ``message`` tells what is not as one may think (Session.notes); usually it is empty.
    """

    kind: Kind = Kind.IDLE
    since_mono: float = 0.0
    message: str = ""
    remedy: str = ""
    retry_in_s: float | None = None
    rtt_ms: float | None = None
    skew_s: float | None = None
    age_s: float | None = None
    error: RemoteError | None = None


class Link:
    """``async with Link(spec, hostkeys) as link``: connecting begins at once and goes on in the background."""

    def __init__(
        self, spec: HostSpec, hostkeys: HostKeyStore, ask: Ask | None = None, pace: Pace = DESIGN_PACE
    ) -> None:
        self.spec = spec
        self._hostkeys = hostkeys
        self._ask = ask
        self._pace = pace
        self._state = LinkState(since_mono=time.monotonic())
        self._retry_at = 0.0
        self._heard_mono: float | None = None
        self._session: Session | None = None
        self._viewer = False
        self._failures = 0
        self._kick = asyncio.Event()
        self._watched: dict[str, Any] | None = None
        self._subscribers: list[Callable[[str, dict[str, Any]], None]] = []
        self._observers: list[Callable[[LinkState], None]] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._set(Kind.CONNECTING)
        self._tasks = [
            asyncio.create_task(self._live(), name=f"link to {self.spec.alias}"),
            asyncio.create_task(self._tick(), name=f"clock of the link to {self.spec.alias}"),
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks, timeout=CLOSE_S)
        self._set(Kind.IDLE)

    # ------------------------------------------------------------ what a caller sees and does

    @property
    def state(self) -> LinkState:
        """The state as of now."""
        now = time.monotonic()
        session = self._session
        rtt, skew = (session.rtt_s, session.skew_s) if session else (None, None)
        return replace(
            self._state,
            message=self._state.message or (" ".join(session.notes) if session else ""),
            retry_in_s=max(0.0, self._retry_at - now) if self._state.kind is Kind.BACKOFF else None,
            rtt_ms=None if rtt is None else rtt * 1000,
            skew_s=skew,
            age_s=None if self._heard() is None else now - (self._heard() or now),
        )

    @property
    def session(self) -> Session:
        """The live session. NotConnected when there is none."""
        if self._session is None or self._state.kind not in (Kind.LIVE, Kind.STALE):
            raise NotConnected(
                f"There is no connection to {self.spec.alias} ({self._state.kind}). {self._state.message}".strip(),
                self._state.remedy or "It is being made anew; try again when it is LIVE.",
            )
        return self._session

    @property
    def viewer(self) -> bool:
        """Whether someone is looking: then no wait is longer than Pace.viewer_cap."""
        return self._viewer

    @viewer.setter
    def viewer(self, looking: bool) -> None:
        self._viewer = looking
        if looking and self._state.kind is Kind.BACKOFF and self._retry_at > time.monotonic() + self._pace.viewer_cap:
            self._kick.set()

    async def request(self, op: str, *, deadline_s: float = DEADLINE_S, **args: Any) -> Any:
        """One operation of the protocol. NotConnected at once when not LIVE; otherwise as AgentClient.request."""
        return await self.session.request(op, args, deadline_s)

    async def watch(self, run: str, every_s: float = 1.0) -> None:
        """Pushes of ``run``, and of no other, from now on and after every reconnect. RemoteError when refused now."""
        self._watched = {"run": run, "every_s": every_s}
        if self._state.kind in (Kind.LIVE, Kind.STALE):
            await self.request("watch", **self._watched)

    async def unwatch(self) -> None:
        """No pushes any more."""
        self._watched = None
        with suppress(RemoteError):
            await self.request("unwatch")

    def subscribe(self, callback: Callable[[str, dict[str, Any]], None]) -> Callable[[], None]:
        """Calls ``callback(push name, data)``, in the event loop, for every push. Returns what ends it."""
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)

    def on_state(self, callback: Callable[[LinkState], None]) -> Callable[[], None]:
        """Calls ``callback(state)`` after every change. Returns what ends it."""
        self._observers.append(callback)
        return lambda: self._observers.remove(callback)

    async def wait_for(self, *kinds: Kind) -> LinkState:
        """Returns when the link is, or has just been, in one of ``kinds``."""
        if self._state.kind in kinds:
            return self.state
        seen: asyncio.Future[LinkState] = asyncio.get_running_loop().create_future()

        def look(state: LinkState) -> None:
            if state.kind in kinds and not seen.done():
                seen.set_result(state)

        forget = self.on_state(look)
        try:
            return await seen
        finally:
            forget()

    def retry_now(self) -> None:
        """Ends a wait, and is the only way (beside the host key confirmations) out of BLOCKED."""
        self._kick.set()

    def confirm_host_key(self, fingerprint: str) -> None:
        """Pins the unknown key that blocks the link and goes on; ``fingerprint`` is the one the person was shown."""
        error = self._state.error
        if not isinstance(error, HostKeyUnknown) or error.fingerprint != fingerprint:
            raise RemoteError("No host key with this fingerprint waits to be confirmed.", "", "refused")
        self._hostkeys.pin(error.name, HostKey.parse(error.key))
        self.retry_now()

    def replace_host_key(self, fingerprint: str, typed: str) -> None:
        """Replaces the pin of a changed key; ``typed`` is what the person wrote, to be HostKeyChanged.phrase."""
        error = self._state.error
        if not isinstance(error, HostKeyChanged) or error.fingerprint != fingerprint:
            raise RemoteError("No changed host key with this fingerprint waits to be replaced.", "", "refused")
        self._hostkeys.replace(error.name, HostKey.parse(error.key), typed)
        self.retry_now()

    # ------------------------------------------------------------ the machine

    async def _live(self) -> None:
        while True:
            self._kick.clear()
            self._set(Kind.CONNECTING)
            error = await self._one_life()
            if error.blocks:
                self._kick.clear()  # a wish from before does not count: keys are never tried again by themselves
            self._set(Kind.BLOCKED if error.blocks else Kind.LOST, error)
            if error.blocks:
                await self._kick.wait()
                continue
            delay = self._delay(error)
            self._retry_at = time.monotonic() + delay
            self._set(Kind.BACKOFF, error)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._kick.wait(), delay)

    async def _one_life(self) -> RemoteError:
        """Connects and stays until the end of the connection, which is returned."""
        session = None
        live_mono = None
        failure: RemoteError | None = None
        try:
            session = await open_session(
                self.spec, self._hostkeys, self._ask, self._pace, lambda: self._set(Kind.BOOTSTRAP), self._hurried()
            )
            self._session, live_mono = session, time.monotonic()
            running = asyncio.create_task(session.run(self._push), name="session")
            try:
                self._set(Kind.LIVE)
                await self._watch_again(session)
                await running
            finally:
                running.cancel()
        except RemoteError as error:
            failure = error
        except Exception as error:  # a defect must show as a message, and must not end the link
            _log.exception("the link failed")
            failure = RemoteError(f"The connection failed unexpectedly: {type(error).__name__}: {error}.", "Try again.")
        finally:
            if live_mono is not None:
                healthy = time.monotonic() - live_mono >= self._pace.healthy
                self._failures = 0 if healthy else self._failures + 1
            else:
                self._failures += 1
            if session is not None:
                self._heard_mono, self._session = session.heard_mono, None
                if failure is not None and not failure.blocks:
                    # before hanging up, which may take a second: nobody may take this for LIVE
                    self._set(Kind.LOST, failure)
                await session.close()
        assert failure is not None  # a session ends by raising
        return failure

    def _hurried(self) -> bool:
        """A lost network comes back at no special moment, and a try that began before must not stand in the way of
        the next. Every third try takes its time all the same, for a host that is slow."""
        return self._viewer and self._heard_mono is not None and self._failures % 3 != 0

    async def _watch_again(self, session: Session) -> None:
        if self._watched is None:
            return
        try:
            await session.request("watch", self._watched, DEADLINE_S)
        except ConnectionLost:
            raise
        except RemoteError as error:
            _log.warning("watching %s again: %s", self._watched["run"], error)

    def _delay(self, error: RemoteError) -> float:
        silent = error.code in ("timeout", "unreachable", "dns")
        looked_at = self._pace.silent_cap if silent else self._pace.viewer_cap
        cap = looked_at if self._viewer else self._pace.backoff_cap
        window = min(cap, self._pace.backoff * 2 ** min(self._failures - 1, 10))
        return random.uniform(0.1 * window, window)

    async def _tick(self) -> None:
        """Tells STALE from LIVE, and notices that time went by without us."""
        last_mono, last_wall = time.monotonic(), time.time()
        while True:
            await asyncio.sleep(min(TICK_S, self._pace.stale / 4))
            mono, wall = time.monotonic(), time.time()
            # a suspended laptop's monotonic clock stands still, so the wall clock is asked as well
            slept = max(mono - last_mono, wall - last_wall) > TICK_S + SLEPT_S
            last_mono, last_wall = mono, wall
            if slept:
                await self._woke()
            heard = self._heard()
            if self._state.kind in (Kind.LIVE, Kind.STALE) and heard is not None:
                stale = mono - heard > self._pace.stale
                if stale is (self._state.kind is Kind.LIVE):
                    self._set(Kind.STALE if stale else Kind.LIVE)

    async def _woke(self) -> None:
        session = self._session
        if session is None:
            if self._state.kind is Kind.BACKOFF:
                self._kick.set()
            return
        try:
            async with asyncio.timeout(PROBE_S):
                await session.ping()
        except (RemoteError, TimeoutError):
            self._kick.set()
            await session.connection.close(0.1)

    def _heard(self) -> float | None:
        return self._session.heard_mono if self._session else self._heard_mono

    def _set(self, kind: Kind, error: RemoteError | None = None) -> None:
        if kind is self._state.kind and error is self._state.error:
            return
        message, remedy = (error.message, error.remedy) if error else ("", "")
        since = self._state.since_mono if kind is self._state.kind else time.monotonic()
        self._state = LinkState(kind, since, message, remedy, error=error)
        self._tell(self._observers, self.state)

    def _push(self, name: str, data: dict[str, Any]) -> None:
        self._tell(self._subscribers, name, data)

    @staticmethod
    def _tell(callbacks: list[Callable[..., None]], *what: Any) -> None:
        for callback in list(callbacks):
            try:
                callback(*what)
            except Exception:  # a listener's defect must not cost the connection
                _log.exception("a listener of the link failed")
