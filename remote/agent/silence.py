"""Whether a server that was ready still answers: asked at a modest pace, told of, and given up after a long silence.

A busy server must not be taken for a hung one. vLLM's /health misses a deadline of 1 or 2 s under load
(scaleapi/llm-engine#255; gonka-ai/gonka#1421: eight restarts a day of healthy servers of Kimi). SGLang's waits up to
20 s for a token and then says 503, which a queue of long prefills reaches (sgl-project/sglang#22511), so it is given
longer than that to say so itself. Both engines take a step of 300 s for hung and end themselves (SGLang's
--watchdog-timeout, VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS): with the same time counted from the first question that went
unanswered theirs comes first, and says in the log where it hung. CUDA graphs are captured before a server is ready.
Imports modules beside it.
"""

from __future__ import annotations

import contextlib
import os
import time

from pipeline.rundir import write_json
from remote.agent.attempts import ServiceAttempt
from remote.agent.health import Probe

LIMIT_S = 300.0
"""Of a service whose attempt says nothing else."""
PATIENCE_S, PAUSE_S = 30.0, 15.0
"""At most; with a shorter limit there are as many questions in it."""
TOLD, FEWEST = 2, 3
"""Questions in a row that went unanswered when it is told of, and at the least when it is given up."""


class Listener:
    """Asks one attempt. What it knows is in the attempt's silent.json, for a keeper that comes later and for views."""

    def __init__(self, attempt: ServiceAttempt) -> None:
        spec = attempt.spec()
        self.attempt, self.limit_s = attempt, float(spec.get("answer_timeout_s") or LIMIT_S)
        self._port, self._path = int(spec["port"]), str(spec["health"])
        self._patience_s, self._pause_s = min(PATIENCE_S, self.limit_s / 10), min(PAUSE_S, self.limit_s / 20)
        self._probe: Probe | None = None
        self._asked_at = self._next = time.monotonic()
        self.hung = False
        """Whether it has been silent for longer than it may; judged when a question has gone unanswered."""
        self._since: float | None = None
        self._missed = 0
        # A keeper that comes later gives it the whole time again, but goes on telling since when it is.
        self._told_since = (attempt.silence or {}).get("since")

    def look(self) -> str | None:
        """One step, without waiting: what is new in words, or None."""
        now = time.monotonic()
        if self._probe is None:
            if now < self._next:
                return None
            self._probe, self._asked_at = Probe(self._port, self._path, self._patience_s), now
        wrong = self._probe.look()
        if wrong is None:
            return None
        self._probe, self._next = None, now + self._pause_s
        return self._unanswered(wrong) if wrong else self._answered()

    def _answered(self) -> str | None:
        told, self._told_since = self._told_since is not None, None
        self._since, self._missed, self.hung = None, 0, False
        if not told:
            return None
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.attempt.file("silent.json"))
        return "it answers again"

    def _unanswered(self, wrong: str) -> str | None:
        self._missed += 1
        if self._since is None:
            self._since = self._asked_at
        silent_s = time.monotonic() - self._since
        self.hung = self._missed >= FEWEST and silent_s >= self.limit_s
        if self._missed < TOLD:
            return None
        new = self._told_since is None
        if new:
            self._told_since = time.time() - silent_s
        with contextlib.suppress(OSError):  # a full volume: it is given up all the same
            if new or (self.attempt.silence or {}).get("message") != wrong:
                write_json(self.attempt.file("silent.json"), {"since": self._told_since, "message": wrong})
        return f"it is not answering: {wrong}" if new else None
