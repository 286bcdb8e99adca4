"""One answer, put together from the frames of a stream or from a whole completion. Imports nothing of ours.

Both engines' names are read: vLLM sends `prompt_token_ids` beside the choices and `token_ids` in each of them, SGLang
`prompt_token_ids` and `response_token_ids` in the choice, or `sglext.input_ids` and `sglext.output_ids` at the end of a
stream; reasoning is `reasoning` in vLLM from 0.16 on and `reasoning_content` in SGLang, llama.cpp and older vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class Unfinished(Exception):
    """The server ended an answer before it was whole, or sent what is no answer. The text says what was missing."""


@dataclass(frozen=True)
class Answer:
    """What a server answered. reasoning is None where the field never came; ids are None where the server gave none.

    output_ids hold the end token (the text does not); stop_reason is the stop token's id where vLLM tells it.
    """

    reasoning: str | None
    content: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    prompt_ids: tuple[int, ...] | None = None
    output_ids: tuple[int, ...] | None = None
    stop_reason: int | None = None
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
    stop_reason: int | None = None
    model: str = ""

    def add(self, frame: Any) -> None:
        """Reads one decoded frame. Raises Unfinished for an error frame and for what is no frame."""
        if not isinstance(frame, Mapping):
            raise Unfinished("garbage instead of a JSON object")
        if frame.get("error") or frame.get("object") == "error":
            raise Unfinished(f"an error in the middle: {error_text(frame)}")
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
        for name in ("reasoning", "reasoning_content"):
            text = part.get(name)
            if isinstance(text, str):
                # some versions send both fields with the same text
                self.reasoned = True
                self.reasoning.append(text)
                break
        if isinstance(part.get("content"), str):
            self.content.append(part["content"])
        self.finish_reason = str(choice.get("finish_reason") or self.finish_reason)
        if isinstance(choice.get("stop_reason"), int):
            self.stop_reason = choice["stop_reason"]

    def finish(self) -> Answer:
        """The answer, once a finish reason and the usage were seen. Raises Unfinished otherwise."""
        if not self.finish_reason:
            raise Unfinished("the answer ended without a finish reason")
        try:
            counts = [int((self.usage or {})[key]) for key in ("prompt_tokens", "completion_tokens")]
        except (KeyError, TypeError, ValueError):
            raise Unfinished("the answer ended without its usage") from None
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
    if isinstance(value, list) and all(type(one) is int and one >= 0 for one in value):
        return tuple(value)
    return None


def error_text(body: Any) -> str:
    """The message of an error body: vLLM nests it under `error`, SGLang sends it flat. Cut to 300 characters."""
    inner = body.get("error", body) if isinstance(body, Mapping) else body
    message = inner.get("message", inner) if isinstance(inner, Mapping) else inner
    return " ".join(str(message).split())[:300]
