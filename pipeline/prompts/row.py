"""One line of a prompt file: its form, its messages, its tools, its id."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from pipeline.prompts.errors import PromptError
from pipeline.prompts.sharegpt import from_sharegpt
from pipeline.prompts.tools import read_tools

Message = dict[str, Any]
Tool = dict[str, Any]

ROLES = {"system", "developer", "user", "assistant", "tool"}
MAX_ID = 256
"""Longest id in characters: ids travel through file metadata, logs and the screen."""


@dataclass(frozen=True)
class Prompt:
    """One prompt: its stable id, the messages that ask for an answer (the last one never from the assistant), and the
    tools that the answer may call."""

    id: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()


def parse_line(raw: bytes) -> Prompt | None:
    """The prompt of one line (byte order mark, CRLF allowed), None for a blank one. Raises PromptError: the cause."""
    try:
        text = raw.removeprefix(b"\xef\xbb\xbf").decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise PromptError(f"not UTF-8 (byte {error.start + 1} of the line)") from None
    if not text:
        return None
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PromptError(f"not JSON ({error})") from None
    if not isinstance(row, dict):
        raise PromptError("a JSON object is needed, with `prompt`, `messages` or `conversations`")
    messages, tools = _messages(row), read_tools(row.get("tools"))
    # without tools the hash is of the messages alone, so that such rows have the ids they always had
    content = {"messages": messages, "tools": tools} if tools else messages
    canonical = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    try:
        encoded = canonical.encode("utf-8")
    except UnicodeEncodeError:
        raise PromptError("the text holds half of a surrogate pair") from None
    return Prompt(_row_id(row, encoded), tuple(messages), tuple(tools))


def _row_id(row: dict[str, Any], canonical: bytes) -> str:
    given = row.get("id")
    if given is None or given == "":
        return "h-" + hashlib.sha256(canonical).hexdigest()[:20]
    if isinstance(given, bool) or not isinstance(given, str | int):
        raise PromptError("`id` must be a string or a whole number")
    text = str(given)
    if len(text) > MAX_ID or not text.isprintable():
        raise PromptError(f"`id` must be printable and at most {MAX_ID} characters")
    return text


def _messages(row: dict[str, Any]) -> list[Message]:
    if "messages" in row:
        messages = _chat(row["messages"])
    elif "conversations" in row:
        messages = from_sharegpt(row["conversations"])
    elif "prompt" in row:
        prompt = row["prompt"]
        if not isinstance(prompt, str) or not prompt.strip():
            raise PromptError("`prompt` must be a text that is not empty")
        messages = [{"role": "user", "content": prompt}]
    else:
        raise PromptError("none of `prompt`, `messages`, `conversations` is there")
    # A recorded answer is what the verifier is to give anew.
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()
    if not any(message["role"] == "user" for message in messages):
        raise PromptError("no message from a user to answer")
    if messages[-1]["role"] not in ("user", "tool"):
        raise PromptError(f"the last message is from {messages[-1]['role']}, so there is nothing to answer")
    return messages


def _chat(value: Any) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise PromptError("`messages` must be a list that is not empty")
    for number, message in enumerate(value, start=1):
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise PromptError(f"message {number} needs a `role` of {', '.join(sorted(ROLES))}")
        content = message.get("content")
        parts = isinstance(content, list) and bool(content) and all(isinstance(part, dict) for part in content)
        calls = message["role"] == "assistant" and isinstance(message.get("tool_calls"), list)
        if not isinstance(content, str) and not parts and not (calls and content is None):
            raise PromptError(f"message {number} needs a `content` of text")
    return list(value)
