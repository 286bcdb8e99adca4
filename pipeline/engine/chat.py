"""Reads requests: validates their fields, renders the prompt, counts its tokens. Imports nothing heavy.

Errors carry vLLM's shape: {"error": {"message", "type", "param", "code"}}.
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.engine.loading import Verifier
from pipeline.engine.row import Sampling
from pipeline.engine.text import Think

_TYPES = {
    400: "BadRequestError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    411: "BadRequestError",
    413: "BadRequestError",
}
_ROLES = ("system", "user", "assistant", "tool")
_COLD = 1e-5
"""Temperatures below this are greedy, as in vLLM; dividing by them would overflow."""
_encoding = threading.Lock()


class ApiError(Exception):
    """An answer with a status other than 200."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param = status, message, param

    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "ServiceUnavailableError" if self.status == 503 else "InternalServerError")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.status}}


@dataclass(frozen=True)
class ChatRequest:
    """A chat request that can be answered."""

    model: str
    prompt_ids: list[int]
    max_tokens: int
    sampling: Sampling
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool
    return_token_ids: bool
    think: Think | None
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))


def read_chat(body: Mapping[str, Any], verifier: Verifier, greedy_only: bool) -> ChatRequest:
    """Checks a request's body. Raises ApiError; unknown fields are passed over, as in vLLM."""
    check_model(body, verifier)
    if _integer(body, "n", 1, 1) != 1:
        raise ApiError(400, "This engine gives one choice a request; send n = 1 or leave n out.", "n")
    prompt_ids = chat_ids(body, verifier, generation_prompt=True)
    asked = body.get("max_completion_tokens")
    name = "max_tokens" if asked is None else "max_completion_tokens"
    room = verifier.max_length - len(prompt_ids)
    if room < 1:
        raise ApiError(
            400,
            f"This model's maximum context length is {verifier.max_length} tokens, and the prompt alone has "
            f"{len(prompt_ids)}. Shorten the prompt.",
            "input_tokens",
        )
    max_tokens = _integer(body, name, room, 1)
    if max_tokens > room:
        raise ApiError(
            400,
            f"This model's maximum context length is {verifier.max_length} tokens. The prompt has {len(prompt_ids)} "
            f"and {name} asks for {max_tokens} more. Shorten the prompt or ask for at most {room}.",
            "input_tokens",
        )
    stream, options = _flag(body, "stream"), body.get("stream_options")
    if options is not None and not isinstance(options, Mapping):
        raise ApiError(400, "stream_options must be an object.", "stream_options")
    if options is not None and not stream:
        raise ApiError(400, "stream_options goes with stream = true only.", "stream_options")
    return ChatRequest(
        model=verifier.name,
        prompt_ids=prompt_ids,
        max_tokens=max_tokens,
        sampling=_sampling(body, verifier, greedy_only),
        stop=_stop(body),
        stream=stream,
        include_usage=_flag(options or {}, "include_usage"),
        return_token_ids=_flag(body, "return_token_ids"),
        think=think_state(prompt_ids, verifier),
    )


def check_model(body: Mapping[str, Any], verifier: Verifier) -> None:
    """Raises ApiError 404 for another model's name; a missing name means the one that is served."""
    name = body.get("model")
    if name is not None and name != verifier.name:
        raise ApiError(404, f"The model `{name}` does not exist here; this engine serves `{verifier.name}`.", "model")


def chat_ids(body: Mapping[str, Any], verifier: Verifier, generation_prompt: bool) -> list[int]:
    """Token ids of a chat request's rendered prompt. Raises ApiError."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "messages must be a list with at least one message.", "messages")
    messages = [_message(message) for message in messages]
    options = body.get("chat_template_kwargs") or {}
    if not isinstance(options, Mapping):
        raise ApiError(400, "chat_template_kwargs must be an object.", "chat_template_kwargs")
    tools = body.get("tools")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(one, Mapping) for one in tools)):
        raise ApiError(400, "tools must be a list of objects.", "tools")
    taken = {"tokenize": False, "add_generation_prompt": generation_prompt, "tools": tools or None}
    if body.get("continue_final_message"):
        taken["continue_final_message"] = True
    try:
        text = verifier.tokenizer.apply_chat_template(messages, **{**options, **taken})
    except Exception as error:  # templates raise what they like
        raise ApiError(
            400, f"The chat template refused the messages: {' '.join(str(error).split())[:300]}", "messages"
        ) from error
    return encode(text, verifier, special=False)


def _message(message: Any) -> dict[str, Any]:
    """A message whose content is one text: not every template takes a list of parts."""
    if not isinstance(message, Mapping) or message.get("role") not in _ROLES:
        raise ApiError(400, f"Each message needs a role ({', '.join(_ROLES)}) and a content.", "messages")
    content = message.get("content")
    if content is None and message["role"] == "assistant":
        content = ""
    if isinstance(content, list):
        texts = [
            part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None for part in content
        ]
        if not all(isinstance(text, str) for text in texts):
            raise ApiError(400, "This engine reads text only: each part must have type text and a text.", "messages")
        content = "\n".join(str(text) for text in texts)
    if not isinstance(content, str):
        raise ApiError(400, "A message's content must be a text or a list of parts.", "messages")
    return {**message, "content": content}


def encode(text: str, verifier: Verifier, special: bool) -> list[int]:
    """Token ids of a text; special: let the tokenizer add its own beginning and end tokens."""
    # a fast tokenizer raises "Already borrowed" when two threads meet in it
    with _encoding:
        ids: list[int] = verifier.tokenizer(text, add_special_tokens=special)["input_ids"]
    return ids


def think_state(prompt_ids: list[int], verifier: Verifier) -> Think | None:
    """How the reasoning parser reads an answer to this prompt; None where no parser is set."""
    if verifier.parser != "kimi" or verifier.end_think_id is None:
        return None
    markers = [token for token in prompt_ids if token in (verifier.think_id, verifier.end_think_id)]
    return Think(verifier.think_id, verifier.end_think_id, open=bool(markers) and markers[-1] == verifier.think_id)


def _sampling(body: Mapping[str, Any], verifier: Verifier, greedy_only: bool) -> Sampling:
    temperature = _number(body, "temperature", 0.0 if greedy_only else verifier.temperature)
    top_p = _number(body, "top_p", verifier.top_p)
    seed = body.get("seed")
    if temperature < 0:
        raise ApiError(400, f"temperature must be 0 or more, not {temperature}.", "temperature")
    if not 0 < top_p <= 1:
        raise ApiError(400, f"top_p must be above 0 and at most 1, not {top_p}.", "top_p")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise ApiError(400, "seed must be a whole number.", "seed")
    if greedy_only and temperature > 0:
        raise ApiError(400, "With a drafter this engine decodes greedily; send temperature = 0.", "temperature")
    return Sampling(temperature if temperature >= _COLD else 0.0, top_p, seed)


def _stop(body: Mapping[str, Any]) -> tuple[str, ...]:
    stop = body.get("stop") or []
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(text, str) and text for text in stops):
        raise ApiError(400, "stop must be a text or a list of texts.", "stop")
    return tuple(stops)


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise ApiError(400, f"{name} must be true or false.", name)
    return bool(value)


def _integer(body: Mapping[str, Any], name: str, default: int, least: int) -> int:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ApiError(400, f"{name} must be a whole number, at least {least}, not {value!r}.", name)
    return value


def _number(body: Mapping[str, Any], name: str, default: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ApiError(400, f"{name} must be a number, not {value!r}.", name)
    return float(value)
