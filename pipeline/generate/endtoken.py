"""How an answer whose server gave no token ids ended: what the server says, else the verifier's only end token.

A model with several end tokens (Qwen, Llama 3, Kimi) may have ended with any of them, so none is guessed at. Imports
generate.answer and generate.judge.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.generate.answer import Answer, ids_in
from pipeline.generate.judge import Reject


@dataclass(frozen=True)
class EndToken:
    """What the verifier's folder says: the text of its end token ("": none), and every id that ends an answer."""

    text: str = ""
    ids: frozenset[int] = frozenset()


NO_END = EndToken()


@dataclass(frozen=True)
class Ending:
    """What stands behind the answer's text: a stop string that the server cut off, or the ids of the end token."""

    text: str = ""
    ids: tuple[int, ...] = ()


def read_end_token(folder: Path | None) -> EndToken:
    """From tokenizer_config.json (the text), generation_config.json and config.json (the ids); empty where unknown."""
    if folder is None:
        return NO_END
    found = _read(folder / "tokenizer_config.json").get("eos_token")
    text = found.get("content") if isinstance(found, Mapping) else found
    config = _read(folder / "config.json")
    inner = config.get("text_config")
    ids: frozenset[int] = frozenset()
    for part in (_read(folder / "generation_config.json"), config, inner if isinstance(inner, dict) else {}):
        values = part.get("eos_token_id")
        ids |= frozenset(ids_in(values if isinstance(values, list) else [values]) or ())
    return EndToken(text if isinstance(text, str) else "", ids)


async def ending_of(answer: Answer, end: EndToken, encode: Callable[[str], Awaitable[list[int]]]) -> Ending | Reject:
    """How the answer ended, or why that can't be known (cause round_trip). Raises what `encode` raises."""
    if answer.finish_reason == "length":
        return Ending()
    if isinstance(answer.stop_reason, str):
        return Ending(text=answer.stop_reason)
    if answer.stop_reason is not None:
        return Ending(ids=(answer.stop_reason,))
    if not end.text or not end.ids:
        return _unknown("the verifier's folder does not tell which token ends an answer")
    if len(end.ids) > 1:
        listed = ", ".join(str(one) for one in sorted(end.ids))
        return _unknown(f"any of the verifier's {len(end.ids)} end tokens ({listed}) may have ended it")
    ids = await encode(end.text)
    if set(ids) != end.ids or len(ids) != 1:
        return _unknown(f"{end.text!r} encodes to {ids}, and the verifier's eos_token_id is {min(end.ids)}")
    return Ending(ids=(ids[0],))


def _unknown(why: str) -> Reject:
    return Reject("round_trip", f"the end token of the answer is unknown: the server tells no stop token, and {why}")


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
