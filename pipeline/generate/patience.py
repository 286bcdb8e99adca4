"""Asks until there is an answer or no hope of one: retries, backoff, and waiting for a server that is away.

Imports this folder. Retries are decided here and never by the HTTP client, which would repeat long answers in silence.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from pipeline.generate.answer import Answer
from pipeline.generate.endpoint import Endpoint
from pipeline.generate.failure import Failure, Kind
from pipeline.generate.question import Asking, Chat
from pipeline.stage import StageError

FIRST_DELAY_S, LONGEST_DELAY_S, LONGEST_PING_S = 0.5, 30.0, 5.0
RETURN_S = 3600.0
"""How long a server that has answered before may be away: a large model takes half an hour to load again."""
_FEWEST_OUTAGES = 3


class Patience:
    """One server asked by many at once. `say(kind, message)` reports outages; `limit_s` bounds the first of them."""

    def __init__(self, endpoint: Endpoint, *, limit_s: float, retries: int, say: Callable[[str, str], None]) -> None:
        self._endpoint, self._limit_s, self._retries, self._say = endpoint, limit_s, retries, say
        self._turn = asyncio.Lock()
        self._back_at = float("-inf")
        self._answered = False
        self.away = ""
        """Why the server is being waited for, in words."""

    async def ask(self, chat: Chat, asking: Asking) -> Answer:
        """The answer. Raises the last Failure when no try is left, StageError when the server stays away."""
        tries = outages = waits = 0
        clock = asyncio.get_running_loop().time
        busy_since: float | None = None
        while True:
            began = clock()
            try:
                answer = await self._endpoint.ask(chat, asking)
                self._answered = True
                return answer
            except Failure as failure:
                if failure.kind in (Kind.CONTEXT, Kind.REFUSED, Kind.FATAL):
                    raise
                if _may_be_away(failure) and await self._recover(began, failure.detail):
                    # what a restart cut short is not this prompt's fault, unless that happens again and again
                    outages, busy_since = outages + 1, None
                    if outages > max(self._retries, _FEWEST_OUTAGES):
                        raise
                    continue
                if failure.kind is Kind.BUSY:
                    busy_since = began if busy_since is None else busy_since
                    if clock() - busy_since > self._limit_s:
                        raise
                else:
                    tries += 1
                    if tries > self._retries:
                        raise
                pause = failure.retry_after_s
            waits += 1
            await asyncio.sleep(min(LONGEST_DELAY_S, _delay(waits) if pause is None else pause))

    async def until_up(self) -> list[dict[str, Any]]:
        """Waits for the server and gives its models. Raises StageError when it stays away, Failure for its refusals."""
        garbage = waits = 0
        clock = asyncio.get_running_loop().time
        busy_since = clock()
        while True:
            began = clock()
            try:
                return await self._endpoint.models()
            except Failure as failure:
                if failure.kind in (Kind.REFUSED, Kind.FATAL, Kind.CONTEXT):
                    raise
                if _may_be_away(failure) and await self._recover(began, failure.detail):
                    busy_since = clock()
                    continue
                busy = failure.kind is Kind.BUSY
                garbage += not busy
                if garbage > 3 or (busy and clock() - busy_since > self._limit_s):
                    raise
            waits += 1
            await asyncio.sleep(_delay(waits))

    async def _recover(self, began: float, detail: str) -> bool:
        """Whether the server was away since `began`; comes back once it answers. One asks, the others wait for it."""
        async with self._turn:
            if self._back_at >= began:
                return True
            if await self._endpoint.alive():
                return False
            await self._wait(detail)
            return True

    async def _wait(self, detail: str) -> None:
        clock = asyncio.get_running_loop().time
        started = clock()
        self.away = f"{self._endpoint.shown} does not answer ({detail})"
        self._say("warning", f"{self.away}; waiting for it")
        limit_s = max(self._limit_s, RETURN_S) if self._answered else self._limit_s
        pings = 0
        while True:
            pings += 1
            left = limit_s - (clock() - started)
            if left <= 0:
                what = "has not come back" if self._answered else "never answered"
                raise StageError(
                    f"The server at {self._endpoint.shown} {what} within {limit_s:.0f} s ({detail})",
                    "Start it (look at its log), or correct generate.endpoint, then resume",
                )
            await asyncio.sleep(min(left, LONGEST_PING_S, _delay(pings)))
            if await self._endpoint.alive():
                break
        self._back_at = clock()
        self.away = ""
        self._say("info", f"{self._endpoint.shown} answers after {self._back_at - started:.0f} s")


def _may_be_away(failure: Failure) -> bool:
    """Whether /health decides: a full server and a gateway whose server is loading both say 503; 429 is of one that
    lives."""
    return failure.kind is not Kind.BUSY or failure.status == 503


def _delay(times: int) -> float:
    """Seconds before try number `times` + 1: doubling, with jitter so that many don't come back at once."""
    return float(min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** min(times - 1, 10)) * random.uniform(0.5, 1.0))
