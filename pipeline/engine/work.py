"""The decoding thread: takes requests, keeps the batch running, hands tokens back.

Requests arrive from many threads through one queue; each gets its tokens back through a queue of its own. With a
drafter, pipeline.engine.speculative decodes.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue

from pipeline.engine.batch import Batch
from pipeline.engine.chat import ChatRequest
from pipeline.engine.loading import Verifier
from pipeline.engine.metrics import DraftCounters, Metrics
from pipeline.engine.row import Event, Job, Row
from pipeline.engine.text import Answer, StopStrings

_STOPPING = "The engine is stopping."
_IDLE_S = 0.2
_JOIN_STEPS = 5
"""Steps between two prefills of a running batch: reading one prompt costs nearly what reading five at once does."""
_GATHER_S = 0.01
"""With a drafter batches don't let anybody in, so the first request waits this long for company."""


class Work:
    """The queue of requests and the loop that empties it; `run` belongs in a thread of its own."""

    def __init__(self, verifier: Verifier, max_batch: int, metrics: Metrics) -> None:
        self._verifier, self._max_batch, self._metrics = verifier, max_batch, metrics
        self._queue: SimpleQueue[Job] = SimpleQueue()
        self._stopping = threading.Event()
        self._working: Sequence[Row] = []
        self.drafted: DraftCounters | None = None
        self._loop: Callable[[], None] = self._plain

    def draft_with(self, drafter: Path, k: int) -> None:
        """Decodes speculatively from now on. Raises what the drafter's loader raises."""
        from pipeline.engine.speculative import SpeculativeDecoder

        decoder = SpeculativeDecoder(self._verifier.model, drafter, k)
        self.drafted = decoder.counters

        def loop() -> None:
            while jobs := self._take(self._max_batch, wait=True, gather=True):
                self._working, self._metrics.running = jobs, len(jobs)
                answers = decoder.generate(
                    [list(job.prompt_ids) for job in jobs],
                    [job.max_tokens for job in jobs],
                    set(self._verifier.eos_ids),
                )
                for job, answer in zip(jobs, answers):
                    for token in answer.ids:
                        job.take(token, self._verifier.eos_ids)
                        job.look()
                        if job.finish_reason:
                            break
                self._working, self._metrics.running = [], 0
                self._close(jobs)

        self._loop = loop

    def submit(self, request: ChatRequest) -> Job:
        """Queues a request; its events come through `events` of what is returned."""
        stops = StopStrings(Answer(self._verifier.decode, request.think), request.stop) if request.stop else None
        job = Job(request.prompt_ids, request.max_tokens, request.sampling, stream=request.stream, stops=stops)
        if self._stopping.is_set():
            job.events.put(Event(error=_STOPPING, status=503))
        else:
            self._queue.put(job)
        return job

    def stop(self) -> None:
        """Ends the loop; every answer under way ends with an error."""
        self._stopping.set()

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def run(self) -> None:
        """Works until `stop`."""
        while not self._stopping.is_set():
            try:
                self._loop()
            except Exception as error:  # one broken pass must not take the server down with it
                print(f"pipeline.engine: a decoding step failed: {error!r}", file=sys.stderr, flush=True)
                self._fail(f"The engine failed while decoding: {error}")
        self._fail(_STOPPING, 503)

    def _plain(self) -> None:
        batch = Batch(self._verifier)
        self._working = batch.rows
        steps = 0
        while True:
            jobs: list[Job] = []
            if not batch.rows or steps >= _JOIN_STEPS:
                jobs = self._take(self._max_batch - len(batch.rows), wait=not batch.rows)
            self._working = [*batch.rows, *jobs]
            if self._stopping.is_set():
                return
            if jobs:
                batch.join(jobs)
                steps = 0
            elif batch.rows:
                batch.step()
                steps += 1
            self._look(batch.rows)
            self._close([row for row in batch.leave() if isinstance(row, Job)])
            self._working = batch.rows
            self._metrics.running = len(batch.rows)

    def _look(self, rows: Sequence[Row]) -> None:
        now = time.monotonic()
        for job in rows:
            assert isinstance(job, Job)
            job.look()
            if not job.finish_reason:
                job.hand_on(now, len(rows))

    def _close(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._metrics.generation_tokens += len(job.output_ids)
            self._metrics.finished[job.finish_reason] += 1
            job.hand_on(0.0)

    def _take(self, room: int, wait: bool, gather: bool = False) -> list[Job]:
        """Up to `room` waiting jobs that somebody still wants; with wait at least one, unless the engine stops."""
        jobs: list[Job] = []
        while len(jobs) < room and not self._stopping.is_set():
            try:
                if wait and not jobs:
                    job = self._queue.get(timeout=_IDLE_S)
                    if gather:
                        time.sleep(_GATHER_S)
                else:
                    job = self._queue.get_nowait()
            except Empty:
                if wait and not jobs:
                    continue
                break
            if job.cancelled:
                job.finish_reason = "abort"
                self._close([job])
                continue
            self._metrics.prompt_tokens += len(job.prompt_ids)
            jobs.append(job)
        self._metrics.waiting = self._queue.qsize()
        return jobs

    def _fail(self, message: str, status: int = 500) -> None:
        """Ends the answers under way; where the engine stops, those that wait too."""
        rows, self._working = self._working, []
        for row in rows:
            if isinstance(row, Job):
                row.events.put(Event(error=message, status=status))
        while self._stopping.is_set():
            try:
                self._queue.get_nowait().events.put(Event(error=message, status=status))
            except Empty:
                break
