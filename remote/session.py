"""One life of a link: a connection, the agent on it, and the channels beside it. It lives until the first loss.

Operations with large answers (log tails, metrics) go to a second agent on a channel of its own, so that they never
stand before a key press or a heartbeat. A host that allows one session only gets along with one.
"""

from __future__ import annotations

import asyncio
import importlib
import shlex
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from remote import protocol
from remote.archive import Archive, build_archive
from remote.bootstrap import Agent, open_shell, start_agent
from remote.channel import Channel, ChannelEnded
from remote.client import AgentClient, OnPush
from remote.connection import Ask, Connection, open_connection
from remote.errors import ConnectionLost, DeadlineExceeded, RemoteError
from remote.hostkeys import HostKeyStore
from remote.resolve import HostSpec, resolve
from remote.sanitize import clean_text

BULK = frozenset({"tail", "metrics", "telemetry", "events"})
HELPER_S = 20.0
PIECE_S = 1.0
"""A piece of a log may take this long to arrive: on one TCP connection a heartbeat waits behind it."""
FIRST_PIECE, LEAST_PIECE = 8192, 1024
_ONE_CHANNEL = "The host allows too few sessions (MaxSessions in its sshd_config); logs share one with everything else."


@dataclass(frozen=True)
class Pace:
    """The link's clocks, in seconds. The values are those of the design; tests run faster."""

    keepalive: float = 5.0
    ping: float = protocol.PING_EVERY_S
    stale: float = 10.0
    """Without a byte for this long, numbers on screen are old."""
    silence: float = 20.0
    """Without a byte for this long, the connection is given up."""
    backoff: float = 1.0
    backoff_cap: float = 30.0
    viewer_cap: float = 5.0
    """The longest wait while someone is looking."""
    silent_cap: float = 1.5
    """The same where nothing answered at all: no packet that arrives could annoy a rate limit."""
    hurry: float = 2.5
    """How long a try may wait for an answer while someone is looking at a link that was live before."""
    healthy: float = 60.0
    """A connection that held this long starts the backoff anew."""


class Session:
    """Made by ``open_session``; ``run`` must be running while requests are made."""

    def __init__(self, connection: Connection, agent: Agent, spec: HostSpec, archive: Archive, pace: Pace) -> None:
        self.connection = connection
        self.agent = agent
        self._spec = spec
        self._archive = archive
        self._pace = pace
        self._pushed: OnPush = lambda name, data: None
        self._client = self._client_of(agent, lambda name, data: self._pushed(name, data))
        self._bulk: AgentClient | None = None
        self._bulk_running: asyncio.Task[None] | None = None
        self._bulk_opening = asyncio.Lock()
        self._one_channel = False
        self._piece = FIRST_PIECE

    def _client_of(self, agent: Agent, on_push: OnPush) -> AgentClient:
        return AgentClient(agent.channel, agent.hello, on_push, self._pace.ping, self._pace.silence)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not as the person may think: settings that are not followed, code in another place, one channel."""
        return (*self.connection.resolved.notes, *self.agent.notes, *(_ONE_CHANNEL,) * self._one_channel)

    @property
    def heard_mono(self) -> float:
        """When the last byte came (time.monotonic)."""
        return self._client.heard_mono

    @property
    def rtt_s(self) -> float | None:
        return self._client.rtt_s

    @property
    def skew_s(self) -> float | None:
        return self._client.skew_s

    async def run(self, on_push: OnPush) -> NoReturn:
        """Until the connection is lost: raises ConnectionLost."""
        self._pushed = on_push
        await self._client.run()

    async def ping(self) -> None:
        """Proves that the agent is there. RemoteError when it does not answer."""
        await self._client.ping()

    async def request(self, op: str, args: dict[str, Any], deadline_s: float) -> Any:
        """As AgentClient.request."""
        client = await self._bulk_client() if op in BULK else self._client
        if op != "tail":
            return await client.request(op, args, deadline_s)
        asked = min(args.get("max") or protocol.TAIL_MAX, self._piece)
        began = time.monotonic()
        answer = await client.request(op, {**args, "max": asked}, deadline_s)
        got = len(answer.get("data") or "") * 3 // 4 if isinstance(answer, dict) else 0
        took = time.monotonic() - began
        if asked == self._piece or took > PIECE_S:
            self._piece = next_piece(asked, got, took)
        return answer

    async def _bulk_client(self) -> AgentClient:
        async with self._bulk_opening:
            if self._bulk is None and not self._one_channel:
                try:
                    agent = await start_agent(self.connection, self._spec, self._archive)
                except ConnectionLost:
                    raise
                except RemoteError:
                    self._one_channel = True  # MaxSessions 1, or a host too poor for a second process
                else:
                    self._bulk = self._client_of(agent, lambda name, data: None)
                    self._bulk_running = asyncio.create_task(self._run_bulk(self._bulk), name="bulk agent")
            return self._bulk or self._client

    async def _run_bulk(self, client: AgentClient) -> None:
        try:
            with suppress(ConnectionLost):
                await client.run()
        finally:
            self._bulk = None
            await client.close()

    async def open_helper(self, command: str) -> Channel:
        """A channel to another subcommand of the agent (``receive``, ``send``), behind its first line.

        RemoteError as bootstrap.open_shell and connection.open_channel give it.
        """
        agent = self.agent
        script = (
            f"cd {shlex.quote(agent.code)} && exec {shlex.quote(agent.python)} -E -S -B -u -m remote.agent "
            f'{command} --root {shlex.quote(agent.root)} --nonce "$N"'
        )
        channel, nonce = await self._helper_shell(script)
        try:
            async with asyncio.timeout(HELPER_S):
                while await channel.read_until(b"\n") != nonce.encode():
                    pass
        except TimeoutError:
            await channel.close()
            raise DeadlineExceeded(f"{self._spec.alias} did not start `{command}` in time.", "Try again.") from None
        except ChannelEnded:
            await channel.close()
            said = clean_text(channel.stderr_tail.decode("utf-8", "replace").strip())
            raise RemoteError(f"{self._spec.alias} did not start `{command}`. {said}".strip()) from None
        except BaseException:
            await channel.close()
            raise
        return channel

    async def _helper_shell(self, script: str) -> tuple[Channel, str]:
        try:
            return await open_shell(self.connection, script)
        except RemoteError as error:
            if error.code != "channels" or self._bulk_running is None or self._bulk_running.done():
                raise
        self._one_channel = True  # the transfer takes the place of the logs' channel
        self._bulk_running.cancel()
        await asyncio.wait([self._bulk_running])
        return await open_shell(self.connection, script)

    async def close(self) -> None:
        """Hangs up. The agents end by themselves, and nothing that they started ends."""
        if self._bulk_running is not None:
            self._bulk_running.cancel()
        await self.connection.close()


def next_piece(asked: int, got: int, took_s: float, least: int = LEAST_PIECE, most: int = protocol.TAIL_MAX) -> int:
    """Bytes of a log, or rows, to ask for after ``got`` of ``asked`` took so long: what the link carries in PIECE_S."""
    carried = int(got * PIECE_S / max(took_s, 0.001))
    if got < asked:  # the log ended: the link may carry more than was seen
        carried = max(carried, asked) if took_s < PIECE_S else carried
    return max(least, min(carried, 4 * asked, most))


async def open_session(
    spec: HostSpec,
    hostkeys: HostKeyStore,
    ask: Ask | None,
    pace: Pace,
    on_bootstrap: Callable[[], None],
    hurry: bool = False,
) -> Session:
    """Resolves, connects, starts the agent; ``on_bootstrap`` is called when the connection stands.

    ``hurry``: no hop is waited for longer than Pace.hurry. Raises the errors of resolve, open_connection, start_agent.
    """
    resolved, archive, _ = await asyncio.gather(
        resolve(spec), asyncio.to_thread(build_archive), asyncio.to_thread(importlib.import_module, "asyncssh")
    )
    if hurry:
        jumps = tuple(replace(hop, connect_timeout_s=pace.hurry) for hop in resolved.jumps)
        resolved = replace(resolved, jumps=jumps, connect_timeout_s=pace.hurry)
    connection = await open_connection(resolved, hostkeys, ask, pace.keepalive)
    try:
        on_bootstrap()
        agent = await start_agent(connection, spec, archive)
    except BaseException:
        await connection.close()
        raise
    return Session(connection, agent, spec, archive, pace)
