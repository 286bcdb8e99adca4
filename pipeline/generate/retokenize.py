"""Token ids for an answer whose server gave none: made from the text, and kept only where they are proven.

The proof: as many ids as the server counted, in the prompt and in the answer, ids that decode to the very text, and no
second way to put the text together that passes too. May import transformers (for the verifier's own tokenizer).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from pipeline.generate.answer import Answer, ids_in
from pipeline.generate.endpoint import Endpoint
from pipeline.generate.endtoken import EndToken, ending_of
from pipeline.generate.failure import Failure, Kind
from pipeline.generate.judge import Reject
from pipeline.generate.question import HELLO, Chat
from pipeline.generate.reasoning import CLOSED, OPENED
from pipeline.stage import StageError


class Tokenizer(Protocol):
    """Prompt ids as the verifier's chat template makes them, and text to ids and back without adding anything.

    Each raises Failure when it can't.
    """

    async def prompt(self, chat: Chat) -> list[int]: ...
    async def encode(self, text: str) -> list[int]: ...
    async def decode(self, ids: Sequence[int]) -> str: ...


class ServerTokenizer:
    """The server's own /tokenize and /detokenize (vLLM)."""

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        self._endpoint, self._model = endpoint, model

    async def prompt(self, chat: Chat) -> list[int]:
        return _tokens(await self._endpoint.post("/tokenize", chat.to_tokenize(self._model)))

    async def encode(self, text: str) -> list[int]:
        body = {"model": self._model, "prompt": text, "add_special_tokens": False}
        return _tokens(await self._endpoint.post("/tokenize", body))

    async def decode(self, ids: Sequence[int]) -> str:
        reply = await self._endpoint.post("/detokenize", {"model": self._model, "tokens": list(ids)})
        return str(reply.get("prompt", "")) if isinstance(reply, Mapping) else ""


class FolderTokenizer:
    """The tokenizer in the verifier's folder. Raises StageError when it can't be loaded."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, ImportError) as error:
            raise StageError(
                f"The server gives no token ids, and {folder} holds no tokenizer that loads ({error})",
                "Use a server that knows return_token_ids (vLLM 0.10.2, SGLang 0.5.23, or later)",
            ) from None

    async def prompt(self, chat: Chat) -> list[int]:
        written = [_with_parsed_arguments(message) for message in chat.messages]
        try:
            text = self._tokenizer.apply_chat_template(
                written, tools=list(chat.tools) or None, add_generation_prompt=True, tokenize=False
            )
        except Exception as error:
            # templates raise what they like
            why = " ".join(str(error).split())[:200]
            raise Failure(Kind.BROKEN, f"the verifier's chat template can't write the prompt ({why})") from error
        return await self.encode(text)

    async def encode(self, text: str) -> list[int]:
        try:
            return list(self._tokenizer.encode(text, add_special_tokens=False))
        except (TypeError, ValueError) as error:
            # half of a surrogate pair is a text to JSON, and none to a tokenizer
            raise Failure(Kind.BROKEN, f"the verifier's tokenizer can't read the text ({error})") from None

    async def decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text


async def choose_tokenizer(endpoint: Endpoint, model: str, folder: Path | None) -> Tokenizer:
    """The server's tokenizer where it has the pages, else the one in the verifier's folder. Raises StageError."""
    server = ServerTokenizer(endpoint, model)
    try:
        if await server.decode(await server.encode("a b")) == "a b" and await server.prompt(HELLO):
            return server
    except Failure:
        pass
    if folder is None:
        raise StageError(
            "The server gives no token ids and has no /tokenize, and the plan names no verifier folder",
            "Use a server that knows return_token_ids (vLLM 0.10.2, SGLang 0.5.23, or later), or set verifier.path",
        )
    return await asyncio.to_thread(FolderTokenizer, folder)


async def add_ids(answer: Answer, chat: Chat, tokenizer: Tokenizer, *, opened: bool, end: EndToken) -> Answer | Reject:
    """The answer with proven ids. `opened`: the prompt ends in <think>. Raises Failure when the tokenizer fails."""
    if answer.finish_reason == "tool_calls":
        return Reject("round_trip", "the text of a call is not what the model wrote, so its tokens can't be proven")
    prompt = await tokenizer.prompt(chat)
    if len(prompt) != answer.prompt_tokens:
        return Reject("round_trip", f"the prompt makes {len(prompt)} ids, the server counted {answer.prompt_tokens}")
    ending = await ending_of(answer, end, tokenizer.encode)
    if isinstance(ending, Reject):
        return ending
    proven: set[tuple[int, ...]] = set()
    for written in _texts(answer, opened):
        text = written + ending.text
        ids = await tokenizer.encode(text)
        if len(ids) + len(ending.ids) == answer.completion_tokens and await tokenizer.decode(ids) == text:
            proven.add((*ids, *ending.ids))
    if len(proven) != 1:
        how = "no" if not proven else "more than one"
        return Reject("round_trip", f"{how} way to write the answer has its {answer.completion_tokens} tokens")
    return replace(answer, prompt_ids=tuple(prompt), output_ids=proven.pop())


def _texts(answer: Answer, opened: bool) -> list[str]:
    """The texts that the model may have written, markers included; servers trim the space around the reasoning."""
    if not answer.reasoning:
        return [answer.content]
    starts = [""] if opened else [OPENED, f"{OPENED}\n"]
    if opened:
        starts += ["\n"]
    if not answer.content and answer.finish_reason == "length":
        return [start + answer.reasoning for start in starts]
    gaps = ("", "\n", "\n\n")
    return [
        f"{start}{answer.reasoning}{before}{CLOSED}{behind}{answer.content}"
        for start in starts
        for before in gaps
        for behind in gaps
    ]


def _tokens(reply: Any) -> list[int]:
    ids = ids_in(reply.get("tokens")) if isinstance(reply, Mapping) else None
    if ids is None:
        raise Failure(Kind.BROKEN, "no tokens in the reply of /tokenize")
    return list(ids)


def _with_parsed_arguments(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with the arguments of its calls as objects: what templates take, and what servers make of the text
    that the API wants."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return dict(message)
    parsed = []
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        arguments = function.get("arguments") if isinstance(function, Mapping) else None
        try:
            parsed.append({**call, "function": {**(function or {}), "arguments": json.loads(arguments or "")}})
        except (TypeError, ValueError):
            parsed.append(call)
    return {**message, "tool_calls": parsed}
