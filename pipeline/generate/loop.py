"""The loop of the generate stage: hands out prompts, settles answers, keeps to the targets, stops. Imports this folder.

All writes happen here, in one task; the others only ask.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterator

from pipeline.config import GenerateParams
from pipeline.generate.asker import Asker, Reply
from pipeline.generate.judge import RejectWatch, judge, lacks_reasoning, sample_row
from pipeline.generate.reasoning import ReasoningWatch
from pipeline.generate.store import SampleStore, Tally
from pipeline.prompts import Prompt, PromptIndex, PromptReader
from pipeline.stage import StageRun, Stopped

STOP_GRACE_S = 5.0
"""How long answers in flight may still come after a stop; the others are asked for again by a resume."""
_TURN_S, _SYNC_S = 0.2, 1.0
_SPACE = 1 << 20
_SHOWN_REJECTS = 5


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
        asker: Asker,
    ) -> None:
        self._stage, self._index, self._store, self._asker = stage, index, store, asker
        self._reasoning, self._rejects = ReasoningWatch(), RejectWatch()
        self._shown: Counter[str] = Counter()
        self._tasks: dict[asyncio.Task[Reply], Prompt] = {}
        self._synced_at = 0.0

    @property
    def _params(self) -> GenerateParams:
        params = self._stage.params
        assert isinstance(params, GenerateParams)
        return params

    async def run(self) -> None:
        """Asks until a target is reached or the prompts are used up, those that failed for the server's sake twice.

        Raises Stopped, StageError, Failure (FATAL).
        """
        reader = self._index.open()
        try:
            await self._ask_all(self._left(reader, self._store.done))
            again = sum(not self._store.settled(one) for one in self._index.ids)
            if again and not self._reached():
                self._stage.event("info", f"{again} prompts failed and are asked once more")
                await self._ask_all(self._left(reader, self._store.settled))
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            reader.close()

    def _left(self, reader: PromptReader, done: Callable[[str], bool]) -> Iterator[Prompt]:
        left = [number for number, one in enumerate(self._index.ids) if not done(one)]
        return (reader.read(number) for number in left)

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
                task = asyncio.create_task(self._asker.reply(prompt, self._params.system))
                self._tasks[task] = prompt
            if not self._tasks:
                return
            await self._settle_some()
            await self._report()

    async def _drain(self) -> None:
        """Takes what still comes within the grace, half of the stage's own at most."""
        clock = asyncio.get_running_loop().time
        until = clock() + min(STOP_GRACE_S, self._stage.plan.stages["generate"].grace_s / 2)
        while self._tasks and clock() < until and not self._asker.away and not self._reached():
            await self._settle_some()
            await self._report(phase="saving")

    async def _settle_some(self) -> None:
        done, _ = await asyncio.wait(self._tasks, timeout=_TURN_S, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            prompt = self._tasks.pop(task)
            reply = task.result()
            if not self._reached():
                self._settle(prompt, reply)

    def _settle(self, prompt: Prompt, reply: Reply) -> None:
        answer, reject, verdicts = reply.answer, reply.reject, self._asker.verdicts
        asked_before = prompt.id in self._store.rejected
        if answer is not None and reject is None:
            reject = judge(answer, reasoning=verdicts.reasoning, vocab_size=verdicts.vocab_size)
        if reject is None:
            assert answer is not None
            dialect = self._asker.dialect
            source = "server" if dialect.ids else "retokenized"
            self._store.add(sample_row(prompt.id, reply.chat, answer, ids_from=source, model=dialect.asking.model))
        else:
            self._store.reject(prompt.id, reject)
            self._shown[reject.cause] += 1
            if self._shown[reject.cause] <= _SHOWN_REJECTS:
                self._stage.event("reject", f"{prompt.id}: {reject.detail}", cause=reject.cause)
        if asked_before:
            # those that failed once fail more often than others, so they say nothing about the server; `unanswered`
            # decides about them
            return
        if answer is not None:
            self._reasoning.note(lacks_reasoning(answer, verdicts.reasoning), answer.content)
        self._rejects.note(reject)

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
        away = self._asker.away
        self._stage.progress(
            tally.samples,
            self.total(),
            "samples",
            counts=counts,
            bytes=tally.bytes,
            phase="waiting" if away else phase,
            note=away,
        )
        now = asyncio.get_running_loop().time()
        if now - self._synced_at >= _SYNC_S:
            self._synced_at = now
            self._stage.check_space(_SPACE)
            await asyncio.to_thread(self._store.sync)
