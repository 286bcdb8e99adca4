"""How long an answer the server's context has room for, when the prompt and the longest answer don't fit together.

The refusal tells it exactly (SGLang, older vLLM, the bundled engine), or only how many tokens the prompt has at
least: newer vLLM stops counting at the first one too many. Then /tokenize counts, and where that takes no chats
(SGLang, gateways), an answer of one token does, in its usage. Imports this folder.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.generate.answer import Answer
from pipeline.generate.endpoint import Endpoint
from pipeline.generate.failure import Failure
from pipeline.generate.question import Chat

_CONTEXT = (
    r"context length is(?: only)? (\d+)",
    r"context length of (\d+)",
    r"context length \((\d+)",
    r"maximum model length of (\d+)",
    r"context size \((\d+)",
)
_PROMPT = (
    r"(\d+) tokens from the input messages",
    r"\((\d+) in the (?:messages|prompt)",
    r"your (?:request has|prompt contains) (\d+) input tokens",
    r"the input \((\d+) tokens\)",
    r"the prompt (?:alone )?has (\d+)",
)
_EXCLUSIVE = "requested token count exceeds"
"""SGLang refuses what would fill the context to its last token, too."""


@dataclass(frozen=True)
class Told:
    """What a refusal says, tokens; None for what it doesn't. `spare`: tokens of the context that can't be used."""

    context: int | None
    prompt: int | None
    spare: int = 0


def read_refusal(text: str) -> Told:
    """The numbers in the error text of vLLM, SGLang, llama.cpp and the bundled engine."""
    return Told(_number(_CONTEXT, text), _number(_PROMPT, text), int(_EXCLUSIVE in text.lower()))


async def room_for(
    chat: Chat, model: str, refusal: str, endpoint: Endpoint, one_token: Callable[[], Awaitable[Answer]]
) -> int:
    """Tokens that the context leaves for the answer; 0 when it leaves none, or when nobody tells.

    `one_token` asks for an answer of one token. Raises Failure of kind FATAL, and StageError when the server is gone.
    """
    told = read_refusal(refusal)
    prompt, context = told.prompt, told.context
    if prompt is None:
        prompt, its_context = await _tokenized(chat, model, endpoint)
        context = its_context or context
    if context is None:
        context = await _listed(model, endpoint)
    if context is None:
        return 0
    if prompt is None:
        try:
            prompt = (await one_token()).prompt_tokens
        except Failure:
            return 0
    return max(0, context - prompt - told.spare)


async def _tokenized(chat: Chat, model: str, endpoint: Endpoint) -> tuple[int | None, int | None]:
    """The prompt's tokens and the context, from /tokenize."""
    try:
        reply = await endpoint.post("/tokenize", chat.to_tokenize(model))
    except Failure:
        return None, None
    found = reply if isinstance(reply, dict) else {}
    return _positive(found.get("count")), _positive(found.get("max_model_len"))


async def _listed(model: str, endpoint: Endpoint) -> int | None:
    """The context of the model in /v1/models, where vLLM and SGLang tell it."""
    try:
        rows = await endpoint.models()
    except Failure:
        return None
    return next((_positive(row.get("max_model_len")) for row in rows if row.get("id") == model), None)


def _number(patterns: Sequence[str], text: str) -> int | None:
    found = (re.search(pattern, text, re.IGNORECASE) for pattern in patterns)
    return next((int(match[1]) for match in found if match), None)


def _positive(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None
