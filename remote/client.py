"""The laptop's end of the protocol: requests with deadlines, pushes, liveness both ways, over one agent channel.

Everything from the host is parsed strictly (remote.protocol), counted against limits and sanitised here, once. A host
that keeps breaking the rules is hung up on.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from remote import protocol
from remote.channel import Channel
from remote.errors import ConnectionLost, DeadlineExceeded, RemoteError
from remote.sanitize import clean_text, scrub

__all__ = ["AgentClient", "ConnectionLost", "DeadlineExceeded", "OnPush", "RemoteError"]

SILENCE_S = 20.0
"""The agent answers a ping every PING_EVERY_S; one that is silent for this long hangs, whatever SSH says."""
MAX_GARBAGE = 8
MAX_UNFRAMED = 4 * protocol.MAX_LINE
"""Bytes without a line in them before the host is hung up on."""
RTT_SAMPLES = 16
WAKE_S = 0.2
GRACE_S = 2.0
"""Added to a request's deadline on our side, so that the agent's own answer "too late" still gets here."""

OnPush = Callable[[str, dict[str, Any]], None]


class AgentClient:
    """``run`` must be running; it ends, with ConnectionLost, when the channel does. Any task may make requests."""

    def __init__(
        self,
        channel: Channel,
        hello: protocol.Hello,
        on_push: OnPush,
        ping_s: float = protocol.PING_EVERY_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        self.hello = hello
        self.garbage = 0
        """Lines that broke the rules."""
        self.heard_mono = time.monotonic()
        """When the last byte came."""
        self._channel = channel
        self._on_push = on_push
        self._ping_s = ping_s
        self._silence_s = silence_s
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._writing = asyncio.Lock()
        self._streamer = protocol.Streamer()
        self._samples: deque[tuple[float, float]] = deque(maxlen=RTT_SAMPLES)
        self._ended: ConnectionLost | None = None

    @property
    def rtt_s(self) -> float | None:
        """The shortest of the last round trips, in seconds."""
        return min(self._samples)[0] if self._samples else None

    @property
    def skew_s(self) -> float | None:
        """The host's wall clock less ours, in seconds, from the shortest round trip; known to half of that."""
        return min(self._samples)[1] if self._samples else None

    async def request(self, op: str, args: dict[str, Any], deadline_s: float = protocol.DEADLINE_S) -> Any:
        """The result of one operation. RemoteError as the agent gives it, DeadlineExceeded, ConnectionLost."""
        if self._ended is not None:
            raise self._ended
        self._number += 1
        number = self._number
        try:
            lines = protocol.encode(protocol.Request(number, op, args, deadline_s))
        except protocol.ProtocolError as error:
            raise RemoteError(f"The request {op} cannot be sent: {error.message}.", code=error.code) from None
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            async with asyncio.timeout(deadline_s + GRACE_S):
                async with self._writing:
                    await self._channel.write(b"".join(map(self._streamer.pack, lines)))
                return await answer
        except TimeoutError:
            raise DeadlineExceeded(
                f"The host did not answer {op} within {deadline_s:g} s; whether it was done is not known.",
                "Look at the state, then try again.",
            ) from None
        finally:
            self._waiting.pop(number, None)

    async def ping(self, deadline_s: float = protocol.DEADLINE_S) -> None:
        """One round trip, which also takes the clock's offset. Raises as ``request``."""
        sent_wall, sent = time.time(), time.monotonic()
        result = await self.request("ping", {}, deadline_s)
        rtt = time.monotonic() - sent
        wall = result.get("wall") if isinstance(result, dict) else None
        if isinstance(wall, (int, float)):
            self._samples.append((rtt, wall - (sent_wall + rtt / 2)))

    async def run(self) -> NoReturn:
        """Reads until the end, pinging all the while; requests in flight then get ConnectionLost, like the caller."""
        reading = asyncio.create_task(self._read(), name="read agent")
        tasks = {reading, asyncio.create_task(self._keep_pinging()), asyncio.create_task(self._hear_silence())}
        lost = ConnectionLost("The connection to the host was closed.")
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            error = (reading if reading in done else done.pop()).exception()
            lost = error if isinstance(error, ConnectionLost) else ConnectionLost(f"Reading failed: {error}.")
        finally:
            for task in tasks:
                task.cancel()
            self._ended = lost
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(ConnectionLost(lost.message, "Whether the request was done is not known."))
                    answer.exception()  # a request that was cancelled meanwhile leaves nobody to take it
        raise lost

    async def _keep_pinging(self) -> None:
        while True:
            with suppress(RemoteError):
                await self.ping(self._silence_s)
            await asyncio.sleep(self._ping_s)

    async def _hear_silence(self) -> None:
        while True:
            left = self.heard_mono + self._silence_s - time.monotonic()
            await asyncio.sleep(max(left, WAKE_S))  # after a suspend, what has arrived meanwhile is read first
            silent = time.monotonic() - self.heard_mono
            if silent >= self._silence_s:
                raise ConnectionLost(f"The agent has been silent for {silent:.0f} s.")

    async def _read(self) -> None:
        splitter, decoder, unframed = protocol.Splitter(), protocol.Decoder(), 0
        while True:
            data = await self._channel.read()
            if not data:
                raise ConnectionLost(f"The agent ended. {clean_text(self._last_words())}".strip())
            self.heard_mono = time.monotonic()
            lines = splitter.feed(data)
            unframed = 0 if lines else unframed + len(data)
            if unframed > MAX_UNFRAMED:
                raise ConnectionLost("The host sends something endless that is not our protocol.")
            for line in lines:
                try:
                    if line is None:
                        raise protocol.ProtocolError("a line is too long")
                    self._take(decoder.decode(line))
                except protocol.StreamBroken as error:
                    raise ConnectionLost(f"The host breaks the protocol: {error.message}.") from None
                except protocol.ProtocolError as error:
                    self.garbage += 1
                    if self.garbage > MAX_GARBAGE:
                        raise ConnectionLost(f"The host breaks the protocol: {clean_text(error.message)}.") from None

    def _take(self, message: protocol.Message | None) -> None:
        if isinstance(message, protocol.Push):
            self._on_push(clean_text(message.name), scrub(message.data))
        elif isinstance(message, (protocol.Reply, protocol.Failure)):
            answer = self._waiting.get(message.id)
            if answer is None or answer.done():
                return  # it came after its deadline
            if isinstance(message, protocol.Reply):
                answer.set_result(scrub(message.result))
            else:
                texts = (clean_text(text) for text in (message.message, message.remedy, message.code))
                answer.set_exception(RemoteError(*texts))
        elif message is not None:
            raise protocol.ProtocolError("neither an answer nor a push")

    def _last_words(self) -> str:
        lines = self._channel.stderr_tail.decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""

    async def close(self) -> None:
        """Gives the channel up; the agent ends by itself. Bounded in time, also on a dead network."""
        await self._channel.close()
