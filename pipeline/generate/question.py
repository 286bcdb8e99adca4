"""What is asked, and how: one chat request, as the body that goes to the server. Imports nothing of ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Chat:
    """A question: the messages, and the tools that the answer may call."""

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()

    def to_tokenize(self, model: str) -> dict[str, Any]:
        """The body that asks vLLM's /tokenize for the ids of the prompt."""
        body = {"model": model, "messages": list(self.messages), "add_generation_prompt": True}
        return {**body, "tools": list(self.tools)} if self.tools else body


HELLO = Chat(({"role": "user", "content": "Hello"},))
"""The short question that finds out about a server."""


@dataclass(frozen=True)
class Asking:
    """How questions are put: sampling, limits, and the way (streaming or not, extra fields) that was found to work."""

    model: str
    max_tokens: int
    temperature: float
    top_p: float
    timeout_s: float
    stream: bool = True
    extra: Mapping[str, Any] | None = None

    def body(self, chat: Chat) -> dict[str, Any]:
        """The arguments of openai's chat.completions.create."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": list(chat.messages),
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "stream": self.stream,
            "extra_body": dict(self.extra or {}),
        }
        if chat.tools:
            body["tools"] = list(chat.tools)
        if self.stream:
            body["stream_options"] = {"include_usage": True}
        return body
