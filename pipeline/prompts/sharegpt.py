"""ShareGPT `conversations` as chat messages, with their function calls.

A `function_call` turn (a JSON text with `name` and `arguments`, or a list of such) becomes an assistant message with
tool_calls, and the observations behind it become the results of its calls, in their order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pipeline.prompts.errors import PromptError

SHAREGPT_ROLES = {
    "human": "user", "user": "user", "prompter": "user",
    "gpt": "assistant", "assistant": "assistant", "model": "assistant",
    "chatgpt": "assistant", "bing": "assistant", "bard": "assistant",
    "system": "system", "tool": "tool", "observation": "tool", "function_response": "tool",
    "function_call": "assistant",
}  # fmt: skip


def from_sharegpt(value: Any) -> list[dict[str, Any]]:
    """The messages of a `conversations` list. Raises PromptError, which names the turn (from 1)."""
    if not isinstance(value, list) or not value:
        raise PromptError("`conversations` must be a list that is not empty")
    messages: list[dict[str, Any]] = []
    waiting: list[str] = []
    calls = called = 0
    for number, turn in enumerate(value, start=1):
        kind, text = _turn(turn, number)
        message: dict[str, Any] = {"role": SHAREGPT_ROLES[kind], "content": text}
        observes = message["role"] == "tool"
        if observes and waiting:
            message["tool_call_id"] = waiting.pop(0)
        elif waiting:
            raise PromptError(f"turn {number} is no observation, but turn {called} calls a function that has none yet")
        elif observes and messages and "tool_call_id" in messages[-1]:
            raise PromptError(f"turn {number} is an observation too many for the calls of turn {called}")
        elif kind == "function_call":
            made = [_call(one, number, calls + place) for place, one in enumerate(_functions(text, number))]
            waiting, called, calls = [one["id"] for one in made], number, calls + len(made)
            message |= {"content": "", "tool_calls": made}
        messages.append(message)
    # calls at the very end are the recorded answer; with some of their results they are neither answer nor question
    if waiting and "tool_call_id" in messages[-1]:
        raise PromptError(f"turn {called} calls more functions than there are observations behind it")
    return messages


def _turn(turn: Any, number: int) -> tuple[str, str]:
    kind = str(turn.get("from", turn.get("role", ""))).lower() if isinstance(turn, dict) else ""
    if kind not in SHAREGPT_ROLES:
        raise PromptError(f"turn {number} needs a `from` of {', '.join(sorted(SHAREGPT_ROLES))}")
    text = turn.get("value", turn.get("content"))
    if not isinstance(text, str):
        raise PromptError(f"turn {number} needs a `value` of text")
    return kind, text


def _functions(text: str, number: int) -> Iterator[Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PromptError(f"turn {number}: the function call is not JSON ({error})") from None
    if not isinstance(found, list):
        found = [found]
    if not found:
        raise PromptError(f"turn {number} calls no function")
    yield from found


def _call(value: Any, number: int, place: int) -> dict[str, Any]:
    """One call as the API writes it. The id is made in the form that Kimi's chat template puts into the prompt; other
    templates pass over it."""
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str) or not name:
        raise PromptError(f"turn {number}: a function call needs a `name` and `arguments`")
    arguments = value.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise PromptError(f"turn {number}: the arguments of {name} are not JSON ({error})") from None
    if not isinstance(arguments, dict):
        raise PromptError(f"turn {number}: the arguments of {name} are no JSON object")
    text = json.dumps(arguments, ensure_ascii=False)
    return {"id": f"functions.{name}:{place}", "type": "function", "function": {"name": name, "arguments": text}}
