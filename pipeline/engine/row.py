"""One answer in the making: how it is sampled, its tokens, its way back to who asked. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from random import Random

from pipeline.engine.text import StopStrings

_FLUSH_S = 0.05
"""A stream hands on what it has this often, not token by token: on two cores the reader is the engine's rival."""
_FLUSH_EACH_S = 0.015
"""And less often the more rows run, so that all together cost the same: writing frames takes turns with decoding."""


@dataclass(frozen=True)
class Sampling:
    """temperature 0 is greedy; top_p in (0, 1]; seed None draws differently every time."""

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None

    def generator(self) -> Random:
        return Random(self.seed)


@dataclass
class Row:
    """One answer in the making. `finish_reason` is empty until it has ended."""

    prompt_ids: Sequence[int]
    max_tokens: int
    sampling: Sampling
    output_ids: list[int] = field(default_factory=list)
    finish_reason: str = ""
    generator: Random = field(init=False)

    def __post_init__(self) -> None:
        self.generator = self.sampling.generator()

    def take(self, token: int, eos_ids: frozenset[int]) -> None:
        """Adds a token; ends at an end token or at the limit."""
        self.output_ids.append(token)
        if token in eos_ids:
            self.finish_reason = "stop"
        elif len(self.output_ids) >= self.max_tokens:
            self.finish_reason = "length"


@dataclass(frozen=True)
class Event:
    """New ids of an answer; with a finish_reason the last of it.

    stop: the stop string that ended it; length: characters before that; error: why there is no more, with its HTTP
    status.
    """

    ids: Sequence[int] = ()
    finish_reason: str = ""
    stop: str = ""
    length: int | None = None
    error: str = ""
    status: int = 500


@dataclass
class Job(Row):
    """A row with its way back. Set `cancelled` and it leaves the batch at the next step."""

    stream: bool = False
    stops: StopStrings | None = None
    events: SimpleQueue[Event] = field(default_factory=SimpleQueue)
    cancelled: bool = False
    looked: int = 0
    sent: int = 0
    sent_at: float = 0.0

    def look(self) -> None:
        """Ends the answer where its reader is gone or a stop string stands."""
        if self.cancelled:
            self.finish_reason = "abort"
        elif self.stops is not None:
            new, self.looked = self.output_ids[self.looked :], len(self.output_ids)
            if self.stops.push(new) or (self.finish_reason and self.stops.finish()):
                self.finish_reason = "stop"

    def hand_on(self, now: float, rows: int = 1) -> None:
        """Sends what is due: everything at the end, before that only to streams and only now and then, the more `rows`
        run the less often.
        """
        if self.finish_reason:
            stop, length = (self.stops.found, self.stops.length) if self.stops is not None else ("", None)
            self.events.put(Event(self.output_ids[self.sent :], self.finish_reason, stop, length))
        elif self.stream and now - self.sent_at >= max(_FLUSH_S, rows * _FLUSH_EACH_S):
            self.events.put(Event(self.output_ids[self.sent :]))
            self.sent, self.sent_at = len(self.output_ids), now
