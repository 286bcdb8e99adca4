"""One answer, put together from the frames of a stream or from a whole completion. Imports nothing of ours.

Whatever JSON a server sends, it gives an answer or raises Unfinished: one malformed reply must not end a stage.
Both engines' names are read: vLLM sends `prompt_token_ids` beside the choices and `token_ids` in each of them, SGLang
`prompt_token_ids` and `response_token_ids` in the choice, or `sglext.input_ids` and `sglext.output_ids` at the end of a
stream; reasoning is `reasoning` in vLLM from 0.16 on and `reasoning_content` in SGLang, llama.cpp and older vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

INTERRUPTED = {"abort", "error"}
"""Finish reasons of an answer that its server gave up: vLLM and SGLang say so when they drain or restart."""
_LARGEST_ID = 2**31 - 1


class Unfinished(Exception):
    """The server ended an answer before it was whole, or sent what is no answer. The text says what was missing."""


class ErrorFrame(Unfinished):
    """The server sent an error in place of (the rest of) the answer."""


@dataclass(frozen=True)
class Answer:
    """What a server answered. reasoning is None where the field never came; ids are None where the server gave none.

    output_ids hold the end token (the text does not); stop_reason is the stop token's id, or the stop string, where the
    server tells it (vLLM's `stop_reason`, SGLang's `matched_stop`).
    """

    reasoning: str | None
    content: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    prompt_ids: tuple[int, ...] | None = None
    output_ids: tuple[int, ...] | None = None
    stop_reason: int | str | None = None
    model: str = ""

    @property
    def has_ids(self) -> bool:
        return self.prompt_ids is not None and self.output_ids is not None


@dataclass
class Gathering:
    """Takes frames (`add`) until `finish`. A whole completion is one frame whose choice has a `message`."""

    reasoning: list[str] = field(default_factory=list)
    reasoned: bool = False
    content: list[str] = field(default_factory=list)
    finish_reason: str = ""
    usage: Mapping[str, Any] | None = None
    prompt_ids: tuple[int, ...] | None = None
    output_ids: list[int] | None = None
    whole_output: tuple[int, ...] | None = None
    stop_reason: int | str | None = None
    model: str = ""

    def add(self, frame: Any) -> None:
        """Reads one decoded frame. Raises ErrorFrame for an error frame, Unfinished for what is no frame."""
        if not isinstance(frame, Mapping):
            raise Unfinished("garbage instead of a JSON object")
        if frame.get("error") or frame.get("object") == "error":
            raise ErrorFrame(f"an error in the middle: {error_text(frame)}")
        choices = frame.get("choices")
        if not isinstance(choices, list):
            raise Unfinished("a JSON object without choices")
        self.model = str(frame.get("model") or self.model)
        if isinstance(frame.get("usage"), Mapping):
            self.usage = frame["usage"]
        beside = frame.get("sglext")
        if isinstance(beside, Mapping):
            self.prompt_ids = ids_in(beside.get("input_ids")) or self.prompt_ids
            self.whole_output = ids_in(beside.get("output_ids")) or self.whole_output
        self.prompt_ids = ids_in(frame.get("prompt_token_ids")) or self.prompt_ids
        # the frame with the usage has no choice
        for choice in choices[:1]:
            if not isinstance(choice, Mapping):
                raise Unfinished("a choice that is no JSON object")
            self._choice(choice)

    def _choice(self, choice: Mapping[str, Any]) -> None:
        self.prompt_ids = ids_in(choice.get("prompt_token_ids")) or self.prompt_ids
        self.whole_output = ids_in(choice.get("response_token_ids")) or self.whole_output
        new = ids_in(choice.get("token_ids"))
        if new is not None:
            self.output_ids = (self.output_ids or []) + list(new)
        part = choice.get("delta") or choice.get("message") or {}
        if not isinstance(part, Mapping):
            raise Unfinished("a choice whose text is no JSON object")
        for name in ("reasoning", "reasoning_content"):
            text = _text(part, name)
            if text is not None:
                # some versions send both fields with the same text
                self.reasoned = True
                self.reasoning.append(text)
                break
        content = _text(part, "content")
        if content is not None:
            self.content.append(content)
        self.finish_reason = _text(choice, "finish_reason") or self.finish_reason
        for name in ("stop_reason", "matched_stop"):
            stop = choice.get(name)
            if isinstance(stop, str) or (type(stop) is int and 0 <= stop <= _LARGEST_ID):
                self.stop_reason = stop

    def finish(self) -> Answer:
        """The answer, once a finish reason and the usage were seen. Raises Unfinished otherwise."""
        if not self.finish_reason:
            raise Unfinished("the answer ended without a finish reason")
        if self.finish_reason in INTERRUPTED:
            raise Unfinished(f"the server gave the answer up: it ended with {self.finish_reason!r}")
        counts = [_count((self.usage or {}).get(key)) for key in ("prompt_tokens", "completion_tokens")]
        output = self.whole_output if self.output_ids is None else tuple(self.output_ids)
        return Answer(
            reasoning="".join(self.reasoning) if self.reasoned else None,
            content="".join(self.content),
            finish_reason=self.finish_reason,
            prompt_tokens=counts[0],
            completion_tokens=counts[1],
            prompt_ids=self.prompt_ids,
            output_ids=output,
            stop_reason=self.stop_reason,
            model=self.model,
        )


def ids_in(value: Any) -> tuple[int, ...] | None:
    """A list of token ids, or None for anything else."""
    if isinstance(value, list) and all(type(one) is int and 0 <= one <= _LARGEST_ID for one in value):
        return tuple(value)
    return None


def _text(part: Mapping[str, Any], name: str) -> str | None:
    value = part.get(name)
    if value is not None and not isinstance(value, str):
        raise Unfinished(f"a `{name}` that is no text")
    return value


def _count(value: Any) -> int:
    """A number of tokens; some gateways write it as 12.0."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or value < 0:
        raise Unfinished("the answer ended without its usage")
    return value


def error_text(body: Any) -> str:
    """The message of an error body: vLLM nests it under `error`, SGLang sends it flat. Cut to 300 characters."""
    inner = body.get("error", body) if isinstance(body, Mapping) else body
    message = inner.get("message", inner) if isinstance(inner, Mapping) else inner
    return " ".join(str(message).split())[:300]
