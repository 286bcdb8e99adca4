"""Finds out with one short question how a server gives token ids. Imports this folder.

vLLM gives them in a stream. SGLang's `return_token_ids` needs an answer in one piece; 0.5.23 can put them at the end of
a stream, under another name. Servers accept fields they don't know in silence, so only ids that come back count.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from pipeline.generate.answer import Answer
from pipeline.generate.failure import Failure, Kind
from pipeline.generate.question import Asking

_AT_THE_END = {"return_input_ids_in_sglext": True, "return_output_ids_in_sglext": True}
_ALL = {"return_token_ids": True, **_AT_THE_END}
_WAYS: tuple[tuple[bool, dict[str, Any]], ...] = (
    (True, _ALL),
    (True, _AT_THE_END),
    (False, _ALL),
    (True, {}),
    (False, {}),
)
PROBE_TOKENS = 8


@dataclass(frozen=True)
class Dialect:
    """The way that works; `ids`: whether it brings token ids."""

    asking: Asking
    ids: bool


async def find_dialect(asking: Asking, ask: Callable[[Asking], Awaitable[Answer]]) -> Dialect:
    """Tries the ways in order of preference; `ask` puts a short question and retries what is worth it.

    Raises Failure when none of them gives a whole answer.
    """
    without: Asking | None = None
    problem: Failure | None = None
    for stream, extra in _WAYS:
        if without is not None and not extra:
            break
        way = replace(asking, stream=stream, extra=extra)
        try:
            answer = await ask(replace(way, max_tokens=min(PROBE_TOKENS, asking.max_tokens)))
        except Failure as failure:
            if failure.kind not in (Kind.REFUSED, Kind.BROKEN):
                raise
            problem = failure
            continue
        if answer.has_ids:
            return Dialect(way, ids=True)
        without = without or replace(way, extra={})
    if without is None:
        assert problem is not None
        raise problem
    return Dialect(without, ids=False)
