"""One thread that writes while the verifier computes the next batch. Imports nothing of ours.

On a GPU, writing and checksumming take as long as computing; beside each other they cost half.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

DEPTH = 4
"""Batches that may wait to be written: what bounds the memory they take."""


@dataclass(frozen=True)
class _Job:
    future: Future[Any]
    then: Callable[[Any], None]
    size: int


class Disk:
    """Runs jobs one after the other; `then` gets a job's result in the caller's thread, at a later call.

    An exception of a job is raised by the call that finds it, and no job behind it is run. Close it.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="disk")
        self._jobs: deque[_Job] = deque()
        self._broken = False

    @property
    def waiting_bytes(self) -> int:
        """Bytes handed over and not known to be written."""
        return sum(job.size for job in self._jobs)

    def submit(self, work: Callable[[], Any], then: Callable[[Any], None], size: int = 0) -> None:
        """Hands over a job that writes `size` bytes. Waits while too many are before it."""
        while len(self._jobs) >= DEPTH or (self._jobs and self._jobs[0].future.done()):
            self._reap()
        self._jobs.append(_Job(self._thread.submit(self._run, work), then, size))

    def drain(self) -> None:
        """Waits until everything is written."""
        while self._jobs:
            self._reap()

    def close(self) -> None:
        """Ends the thread after the job it is at; the others are dropped (after `drain` there are none)."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _run(self, work: Callable[[], Any]) -> Any:
        if self._broken:
            raise RuntimeError("an earlier job failed")
        try:
            return work()
        except BaseException:
            self._broken = True
            raise

    def _reap(self) -> None:
        job = self._jobs.popleft()
        job.then(job.future.result())
