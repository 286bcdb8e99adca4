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
from pipeline.generate.failure import Failure
from pipeline.generate.judge import Reject
from pipeline.generate.reasoning import CLOSED, OPENED
from pipeline.stage import StageError

Messages = Sequence[Mapping[str, Any]]


class Tokenizer(Protocol):
    """Prompt ids as the verifier's chat template makes them, and text to ids and back without adding anything."""

    async def prompt(self, messages: Messages) -> list[int]: ...
    async def encode(self, text: str) -> list[int]: ...
    async def decode(self, ids: Sequence[int]) -> str: ...


class ServerTokenizer:
    """The server's own /tokenize and /detokenize (vLLM). Raises Failure."""

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        self._endpoint, self._model = endpoint, model

    async def prompt(self, messages: Messages) -> list[int]:
        body = {"model": self._model, "messages": list(messages), "add_generation_prompt": True}
        return _tokens(await self._endpoint.post("/tokenize", body))

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

    async def prompt(self, messages: Messages) -> list[int]:
        text = self._tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
        return await self.encode(text)

    async def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    async def decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text


async def choose_tokenizer(endpoint: Endpoint, model: str, folder: Path | None) -> Tokenizer:
    """The server's tokenizer where it has the pages, else the one in the verifier's folder. Raises StageError."""
    server = ServerTokenizer(endpoint, model)
    try:
        if await server.decode(await server.encode("a b")) == "a b" and await server.prompt([_HELLO]):
            return server
    except (Failure, ValueError):
        pass
    if folder is None:
        raise StageError(
            "The server gives no token ids and has no /tokenize, and the plan names no verifier folder",
            "Use a server that knows return_token_ids (vLLM 0.10.2, SGLang 0.5.23, or later), or set verifier.path",
        )
    return await asyncio.to_thread(FolderTokenizer, folder)


async def add_ids(
    answer: Answer, messages: Messages, tokenizer: Tokenizer, *, opened: bool, end: str
) -> Answer | Reject:
    """The answer with proven ids. `opened`: the prompt ends in <think>; `end`: the text of the verifier's end token."""
    prompt = await tokenizer.prompt(messages)
    if len(prompt) != answer.prompt_tokens:
        return Reject("round_trip", f"the prompt makes {len(prompt)} ids, the server counted {answer.prompt_tokens}")
    tail = await _end_ids(answer, tokenizer, end)
    if tail is None:
        return Reject("round_trip", "the end token of the answer is unknown")
    proven: set[tuple[int, ...]] = set()
    for text in _texts(answer, opened):
        ids = await tokenizer.encode(text)
        if len(ids) + len(tail) == answer.completion_tokens and await tokenizer.decode(ids) == text:
            proven.add((*ids, *tail))
    if len(proven) != 1:
        how = "no" if not proven else "more than one"
        return Reject("round_trip", f"{how} way to write the answer has its {answer.completion_tokens} tokens")
    return replace(answer, prompt_ids=tuple(prompt), output_ids=proven.pop())


def end_text(folder: Path | None) -> str:
    """The text of the end token in a verifier's tokenizer_config.json, "" when there is none."""
    if folder is None:
        return ""
    try:
        found = json.loads((folder / "tokenizer_config.json").read_text("utf-8")).get("eos_token")
    except (OSError, ValueError, AttributeError):
        return ""
    text = found.get("content") if isinstance(found, Mapping) else found
    return text if isinstance(text, str) else ""


async def _end_ids(answer: Answer, tokenizer: Tokenizer, end: str) -> list[int] | None:
    if answer.finish_reason == "length":
        return []
    if answer.stop_reason is not None:
        return [answer.stop_reason]
    ids = await tokenizer.encode(end) if end else []
    return ids if len(ids) == 1 else None


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
        raise ValueError("no tokens in the reply of /tokenize")
    return list(ids)


_HELLO = {"role": "user", "content": "Hello"}
