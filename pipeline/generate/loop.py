"""The loop of the generate stage: hands out prompts, settles answers, keeps to the targets, stops. Imports this folder.

All writes happen here, in one task; the others only ask.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from pipeline.config import GenerateParams
from pipeline.generate.answer import Answer
from pipeline.generate.dialect import Dialect
from pipeline.generate.endpoint import Endpoint
from pipeline.generate.failure import Failure, Kind
from pipeline.generate.judge import Reject, RejectWatch, judge, lacks_reasoning, sample_row
from pipeline.generate.patience import Patience
from pipeline.generate.reasoning import ReasoningWatch
from pipeline.generate.retokenize import Tokenizer, add_ids
from pipeline.generate.store import SampleStore, Tally
from pipeline.prompts import Message, Prompt, PromptIndex
from pipeline.stage import StageRun, Stopped

STOP_GRACE_S = 5.0
"""How long answers in flight may still come after a stop; the others are asked for again by a resume."""
_TURN_S, _SYNC_S = 0.2, 1.0
_SPACE = 1 << 20
_SHOWN_REJECTS = 5


@dataclass(frozen=True)
class Verdicts:
    """What decides about an answer: whether it must have reasoning, the verifier's vocabulary size, and, for a server
    without token ids, the tokenizer that makes them (`opened`: the prompt ends in <think>; `end`: the end token)."""

    reasoning: bool | None
    vocab_size: int | None
    tokenizer: Tokenizer | None = None
    opened: bool = False
    end: str = ""


@dataclass(frozen=True)
class _Reply:
    messages: list[Message]
    answer: Answer | None
    reject: Reject | None


def reached(params: GenerateParams, tally: Tally) -> bool:
    """Whether one of the targets is met."""
    return (
        (params.max_samples > 0 and tally.samples >= params.max_samples)
        or (params.token_budget > 0 and tally.tokens >= params.token_budget)
        or (params.byte_budget > 0 and tally.bytes >= params.byte_budget)
    )


class Generation:
    """One attempt's work on the prompts that have no sample yet."""

    def __init__(
        self,
        stage: StageRun,
        index: PromptIndex,
        store: SampleStore,
        endpoint: Endpoint,
        patience: Patience,
        dialect: Dialect,
        verdicts: Verdicts,
    ) -> None:
        self._stage, self._index, self._store = stage, index, store
        self._endpoint, self._patience, self._dialect, self._verdicts = endpoint, patience, dialect, verdicts
        self._reasoning, self._rejects = ReasoningWatch(), RejectWatch()
        self._shown: Counter[str] = Counter()
        self._tasks: dict[asyncio.Task[_Reply], Prompt] = {}
        self._synced_at = 0.0

    @property
    def _params(self) -> GenerateParams:
        params = self._stage.params
        assert isinstance(params, GenerateParams)
        return params

    async def run(self) -> None:
        """Asks until a target is reached or the prompts are used up. Raises Stopped, StageError, Failure (FATAL)."""
        reader = self._index.open()
        left = [number for number, one in enumerate(self._index.ids) if not self._store.done(one)]
        prompts = (reader.read(number) for number in left)
        try:
            await self._ask_all(prompts)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            reader.close()

    async def _ask_all(self, prompts: Iterator[Prompt]) -> None:
        while True:
            if self._stage.stopping():
                await self._drain()
                raise Stopped
            self._stage.live_params()
            if self._reached():
                return
            for _ in range(self._room()):
                prompt = next(prompts, None)
                if prompt is None:
                    break
                self._tasks[asyncio.create_task(self._reply(prompt))] = prompt
            if not self._tasks:
                return
            await self._settle_some()
            await self._report()

    async def _drain(self) -> None:
        """Takes what still comes within the grace, half of the stage's own at most."""
        clock = asyncio.get_running_loop().time
        until = clock() + min(STOP_GRACE_S, self._stage.plan.stages["generate"].grace_s / 2)
        while self._tasks and clock() < until and not self._patience.away and not self._reached():
            await self._settle_some()
            await self._report(phase="saving")

    async def _settle_some(self) -> None:
        done, _ = await asyncio.wait(self._tasks, timeout=_TURN_S, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            prompt = self._tasks.pop(task)
            reply = task.result()
            if not self._reached():
                self._settle(prompt, reply)

    def _settle(self, prompt: Prompt, reply: _Reply) -> None:
        answer, reject = reply.answer, reply.reject
        if answer is not None and reject is None:
            reject = judge(answer, reasoning=self._verdicts.reasoning, vocab_size=self._verdicts.vocab_size)
        if reject is None:
            assert answer is not None
            source = "server" if self._dialect.ids else "retokenized"
            model = self._dialect.asking.model
            self._store.add(sample_row(prompt.id, reply.messages, answer, ids_from=source, model=model))
        else:
            self._store.reject(prompt.id, reject)
            self._shown[reject.cause] += 1
            if self._shown[reject.cause] <= _SHOWN_REJECTS:
                self._stage.event("reject", f"{prompt.id}: {reject.detail}", cause=reject.cause)
        if answer is not None:
            self._reasoning.note(lacks_reasoning(answer, self._verdicts.reasoning), answer.content)
        self._rejects.note(reject)

    async def _reply(self, prompt: Prompt) -> _Reply:
        messages = list(prompt.messages)
        if self._params.system and messages[0]["role"] not in ("system", "developer"):
            messages.insert(0, {"role": "system", "content": self._params.system})
        try:
            answer = await self._ask(messages)
            if self._verdicts.tokenizer is None or lacks_reasoning(answer, self._verdicts.reasoning):
                return _Reply(messages, answer, None)
            opened, end = self._verdicts.opened, self._verdicts.end
            proven = await add_ids(answer, messages, self._verdicts.tokenizer, opened=opened, end=end)
        except Failure as failure:
            if failure.kind is Kind.FATAL:
                raise
            cause = failure.kind.value if failure.kind in (Kind.CONTEXT, Kind.REFUSED) else "failed"
            return _Reply(messages, None, Reject(cause, failure.detail))
        if isinstance(proven, Reject):
            return _Reply(messages, answer, proven)
        return _Reply(messages, proven, None)

    async def _ask(self, messages: list[Message]) -> Answer:
        """Asks; when prompt and longest answer exceed the context together, again for what the context leaves."""
        asking = self._dialect.asking
        try:
            return await self._patience.ask(messages, asking)
        except Failure as failure:
            if failure.kind is not Kind.CONTEXT:
                raise
            left = await self._context_left(messages)
            if not 0 < left < asking.max_tokens:
                raise
            return await self._patience.ask(messages, replace(asking, max_tokens=left))

    async def _context_left(self, messages: list[Message]) -> int:
        """Tokens that the context leaves for the answer, from the server's /tokenize; 0 when it can't be asked."""
        body = {"model": self._dialect.asking.model, "messages": messages, "add_generation_prompt": True}
        try:
            reply = await self._endpoint.post("/tokenize", body)
            return int(reply["max_model_len"]) - int(reply["count"])
        except (Failure, KeyError, TypeError, ValueError):
            return 0

    def _reached(self) -> bool:
        return reached(self._params, self._store.tally)

    def _room(self) -> int:
        """How many more to ask now: the concurrency, and what the targets are likely to need beyond those in flight."""
        tally, params, flying = self._store.tally, self._params, len(self._tasks)
        room = params.concurrency
        if params.max_samples:
            room = min(room, params.max_samples - tally.samples)
        for budget, used in ((params.token_budget, tally.tokens), (params.byte_budget, tally.bytes)):
            if budget and tally.samples:
                room = min(room, math.ceil((budget - used) * tally.samples / used))
        return max(0, room - flying)

    def total(self) -> int:
        """Samples that this output will have when no budget ends it earlier."""
        samples = self._params.max_samples or len(self._index)
        return max(self._store.tally.samples, min(samples, len(self._index)))

    async def _report(self, phase: str = "running") -> None:
        counts = {**self._store.counts(), "in_flight": len(self._tasks)}
        tally = self._store.tally
        phase = "waiting" if self._patience.away else phase
        self._stage.progress(tally.samples, self.total(), "samples", counts=counts, bytes=tally.bytes, phase=phase)
        now = asyncio.get_running_loop().time()
        if now - self._synced_at >= _SYNC_S:
            self._synced_at = now
            self._stage.check_space(_SPACE)
            await asyncio.to_thread(self._store.sync)
