"""Bodies of replies, in vLLM's shapes: models, chat completions whole and in chunks. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.engine.chat import ChatRequest
from pipeline.engine.loading import Verifier
from pipeline.engine.row import Event
from pipeline.engine.text import Answer


def models(verifier: Verifier, started: int) -> dict[str, Any]:
    """Body of /v1/models."""
    row = {
        "id": verifier.name,
        "object": "model",
        "created": started,
        "owned_by": "eagledeck",
        "root": verifier.path,
        "parent": None,
        "max_model_len": verifier.max_length,
    }
    return {"object": "list", "data": [row]}


def usage(request: ChatRequest, completion_tokens: int, answer: Answer) -> dict[str, Any]:
    """Token counts; those of the reasoning only where a reasoning parser is set."""
    counts: dict[str, Any] = {
        "prompt_tokens": len(request.prompt_ids),
        "completion_tokens": completion_tokens,
        "total_tokens": len(request.prompt_ids) + completion_tokens,
    }
    if request.think is not None:
        counts["completion_tokens_details"] = {"reasoning_tokens": answer.reasoning_tokens}
    return counts


def completion(request: ChatRequest, event: Event, answer: Answer) -> dict[str, Any]:
    """A whole completion. event: the only one, with all ids. A part without text is null, as in vLLM."""
    reasoning, content = answer.finish(event.ids, event.length)
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": content or None, "reasoning": reasoning or None},
        "logprobs": None,
        "finish_reason": event.finish_reason,
        "stop_reason": event.stop or None,
    }
    body: dict[str, Any] = {
        "id": request.id,
        "object": "chat.completion",
        "created": request.created,
        "model": request.model,
        "choices": [choice],
        "usage": usage(request, len(event.ids), answer),
    }
    if request.return_token_ids:
        choice["token_ids"] = list(event.ids)
        body["prompt_token_ids"] = request.prompt_ids
    return body


def opening_chunk(request: ChatRequest) -> dict[str, Any]:
    """The first chunk of a stream: the role, and the prompt's ids where they are asked for."""
    extra = {"prompt_token_ids": request.prompt_ids} if request.return_token_ids else {}
    return _chunk(request, [_delta({"role": "assistant", "content": ""})], **extra)


def chunk(request: ChatRequest, event: Event, answer: Answer) -> dict[str, Any] | None:
    """The chunk of an event; None where it adds neither text, ids nor an end."""
    last = bool(event.finish_reason)
    reasoning, content = answer.finish(event.ids, event.length) if last else answer.push(event.ids)
    parts = {name: text for name, text in (("reasoning", reasoning), ("content", content)) if text}
    if not parts and not last and not request.return_token_ids:
        return None
    choice = _delta(parts, event.finish_reason or None)
    if last:
        choice["stop_reason"] = event.stop or None
    if request.return_token_ids:
        choice["token_ids"] = list(event.ids)
    return _chunk(request, [choice])


def usage_chunk(request: ChatRequest, completion_tokens: int, answer: Answer) -> dict[str, Any]:
    """The chunk after the last one, with no choices."""
    return _chunk(request, [], usage=usage(request, completion_tokens, answer))


def _delta(parts: Mapping[str, str], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": parts, "logprobs": None, "finish_reason": finish_reason}


def _chunk(request: ChatRequest, choices: list[dict[str, Any]], **extra: Any) -> dict[str, Any]:
    body = {"id": request.id, "object": "chat.completion.chunk", "created": request.created, "model": request.model}
    return {**body, "choices": choices, **extra}
