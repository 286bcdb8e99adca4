"""Greedy answers from an OpenAI-compatible engine, several at a time, with exact token ids.

Plain HTTP of the standard library: the stage measures an engine, and a heavy client would take part of its cores.
Imports pipeline.failure and pipeline.deploy.counters.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.parse
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.deploy.counters import Metrics, SpecCounters, parse_metrics
from pipeline.failure import StageError

ANSWER_TIMEOUT_S = 900.0
GAUGE_EVERY_S = 1.0
"""Between two readings of a gauge, where there are no counters."""


@dataclass(frozen=True)
class Question:
    """One prompt to measure on, with the tools that its answer may call."""

    id: str
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Answer:
    """What the engine gave: the prompt's and the answer's token ids (the stop token included)."""

    id: str
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    finish_reason: str


@dataclass(frozen=True)
class Measurement:
    """Answers in the order of the questions, wall seconds for all of them, the counters' difference (None: the engine
    exposes none), and the mean of the readings of SGLang's gauge (None: there was no need, or nothing to read).
    """

    answers: tuple[Answer, ...]
    seconds: float
    counters: SpecCounters | None
    gauge: float | None = None

    @property
    def tokens_per_s(self) -> float:
        return sum(len(answer.output_ids) for answer in self.answers) / max(self.seconds, 1e-9)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Measurement:
        answers = tuple(
            Answer(one["id"], tuple(one["prompt_ids"]), tuple(one["output_ids"]), one["finish_reason"])
            for one in raw["answers"]
        )
        counters = raw["counters"]
        if counters is not None:
            counters = SpecCounters(**{**counters, "accepted_by_position": tuple(counters["accepted_by_position"])})
        return cls(answers, raw["seconds"], counters, raw.get("gauge"))


class EngineClient:
    """One engine at a base URL such as http://127.0.0.1:8000 (a trailing /v1 is dropped)."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        self.url = url
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or (443 if parts.scheme == "https" else 80)
        self._secure = parts.scheme == "https"
        self._base = parts.path.rstrip("/").removesuffix("/v1")
        self._model = ""

    def model(self) -> str:
        """The first model that the engine lists."""
        if not self._model:
            listed = self._call("GET", "/v1/models").get("data") or []
            if not listed:
                raise StageError(f"{self.url} lists no model", "Start the engine with a model")
            self._model = str(listed[0]["id"])
        return self._model

    def metrics(self) -> Metrics:
        """What /metrics says now; nothing where the engine has no such page (SGLang without --enable-metrics)."""
        status, raw = self._exchange("GET", "/metrics", None)
        return parse_metrics(raw.decode("utf-8", "replace")) if status == 200 else Metrics()

    def answer(self, question: Question, max_tokens: int) -> Answer:
        """A greedy answer. Raises StageError when the engine fails or leaves token ids out."""
        body = {
            "model": self.model(),
            "messages": list(question.messages),
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "return_token_ids": True,
            **({"tools": list(question.tools)} if question.tools else {}),
        }
        reply = self._call("POST", "/v1/chat/completions", body)
        try:
            choice = reply["choices"][0]
            prompt = reply.get("prompt_token_ids") or choice.get("prompt_token_ids")
            output = choice.get("token_ids") or choice.get("response_token_ids")
            reason = str(choice.get("finish_reason"))
        except (KeyError, IndexError, TypeError, AttributeError):
            raise StageError(
                f"{self.url} answered something that is no chat completion", "Check what serves there"
            ) from None
        if not prompt or not output:
            raise StageError(f"{self.url} left out the token ids", "Use an engine that knows return_token_ids")
        return Answer(question.id, tuple(prompt), tuple(output), reason)

    def measure(
        self,
        questions: Sequence[Question],
        max_tokens: int,
        concurrency: int,
        progress: Callable[[int], None],
        stopping: Callable[[], bool],
    ) -> Measurement | None:
        """All answers with the counters' difference over them; None when a stop was asked for. Assumes no other
        traffic.
        """
        self.model()
        before, start = self.metrics(), time.monotonic()
        gauges: list[float | None] = []
        read = start
        pool = ThreadPoolExecutor(max_workers=max(1, min(concurrency, len(questions))))
        try:
            running = {pool.submit(self.answer, one, max_tokens): place for place, one in enumerate(questions)}
            places, waiting = dict(running), set(running)
            answers: dict[int, Answer] = {}
            while waiting:
                done, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
                for future in done:
                    answers[places[future]] = future.result()
                progress(len(answers))
                if before.counters is None and before.gauge is not None and time.monotonic() - read > GAUGE_EVERY_S:
                    gauges.append(self.metrics().gauge)
                    read = time.monotonic()
                if waiting and stopping():
                    return None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        seconds, after = time.monotonic() - start, self.metrics()
        difference = None
        if after.counters is not None:
            # a counter that nothing was added to yet may not be shown
            difference = after.counters.since(before.counters or SpecCounters())
            if difference is None:
                raise StageError(f"The engine at {self.url} was restarted while it was measured", "Resume deploy")
        readings = [one for one in (*gauges, after.gauge) if one] if difference is None else []
        gauge = sum(readings) / len(readings) if readings else None
        return Measurement(tuple(answers[place] for place in range(len(questions))), seconds, difference, gauge)

    def _call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        raw = self._request(method, path, body)
        try:
            found = json.loads(raw)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise StageError(
                f"{self.url}{path} answered no JSON object", "Check that an OpenAI-compatible engine serves there"
            )
        return found

    def _request(self, method: str, path: str, body: Any) -> bytes:
        status, raw = self._exchange(method, path, body)
        if status != 200:
            raise StageError(f"{self.url}{path} answered {status}: {_error_text(raw)}", "Look at the engine's log")
        return raw

    def _exchange(self, method: str, path: str, body: Any) -> tuple[int, bytes]:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=ANSWER_TIMEOUT_S)
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, self._base + path, data, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            raw = reply.read()
        except (OSError, http.client.HTTPException) as error:
            raise StageError(
                f"The engine at {self.url} can't be reached ({error})", "Check that it runs, then resume deploy"
            ) from None
        finally:
            connection.close()
        return reply.status, raw


def _error_text(raw: bytes) -> str:
    """The message of an error body in vLLM's nested or SGLang's flat form."""
    text = raw.decode("utf-8", "replace")
    try:
        found = json.loads(text)
        inner = found.get("error", found) if isinstance(found, dict) else {}
        text = str(inner.get("message", text)) if isinstance(inner, dict) else text
    except ValueError:
        pass
    return " ".join(text.split())[:300]
