"""Prompt files: JSON lines with `prompt`, `messages` or ShareGPT `conversations`, indexed once and read by position.

Standard library only; imports nothing of ours. A line that can't be used is reported with its number and never stops
the others. The index keeps offsets and ids, not texts, so a file of any size costs about 100 bytes a prompt.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

Message = dict[str, Any]

ROLES = {"system", "developer", "user", "assistant", "tool"}
SHAREGPT_ROLES = {
    "human": "user", "user": "user", "prompter": "user",
    "gpt": "assistant", "assistant": "assistant", "model": "assistant",
    "chatgpt": "assistant", "bing": "assistant", "bard": "assistant",
    "system": "system", "tool": "tool", "observation": "tool", "function_response": "tool",
}  # fmt: skip
MAX_ID = 256
"""Longest id in characters: ids travel through file metadata, logs and the screen."""


class PromptError(Exception):
    """A prompt file can't be used at all, or a line can't. `remedy` says what to do (empty for a line)."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(f"{message} {remedy}".strip())
        self.message = message
        self.remedy = remedy


@dataclass(frozen=True)
class Prompt:
    """One prompt: its stable id and the messages that ask for an answer (the last one never from the assistant)."""

    id: str
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class BadLine:
    """A line (1-based) that gives no prompt, and why."""

    line: int
    cause: str


@dataclass(frozen=True)
class PromptIndex:
    """The usable prompts of a file, in file order. `sha256` is of the file's bytes."""

    path: Path
    ids: tuple[str, ...]
    offsets: tuple[int, ...]
    lines: tuple[int, ...]
    bad: tuple[BadLine, ...]
    duplicates: tuple[BadLine, ...]
    sha256: str

    def __len__(self) -> int:
        return len(self.ids)

    def open(self) -> PromptReader:
        return PromptReader(self)


class PromptReader:
    """Random access to the prompts of an index: one open file, one seek a prompt."""

    def __init__(self, index: PromptIndex) -> None:
        self._index = index
        self._file: BinaryIO = index.path.open("rb")

    def read(self, position: int) -> Prompt:
        """The prompt at `position` (0-based) of the index. Raises PromptError when the file changed since."""
        self._file.seek(self._index.offsets[position])
        try:
            prompt = parse_line(self._file.readline())
        except PromptError:
            prompt = None
        if prompt is None or prompt.id != self._index.ids[position]:
            raise PromptError(
                f"{self._index.path} changed while it was being read (line {self._index.lines[position]}).",
                "Put the file back, or resume to read the new one.",
            )
        return prompt

    def close(self) -> None:
        self._file.close()


def index_prompts(path: Path) -> PromptIndex:
    """Reads the whole file once. Raises PromptError when it is missing, unreadable or holds no usable prompt."""
    ids: list[str] = []
    offsets: list[int] = []
    lines: list[int] = []
    bad: list[BadLine] = []
    duplicates: list[BadLine] = []
    first_line: dict[str, int] = {}
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            for number, offset, raw in _lines(file):
                digest.update(raw)
                try:
                    prompt = parse_line(raw)
                except PromptError as error:
                    bad.append(BadLine(number, error.message))
                    continue
                if prompt is None:
                    continue
                if prompt.id in first_line:
                    duplicates.append(BadLine(number, f"id {prompt.id} was on line {first_line[prompt.id]} already"))
                    continue
                first_line[prompt.id] = number
                ids.append(prompt.id)
                offsets.append(offset)
                lines.append(number)
    except FileNotFoundError:
        raise PromptError(
            f"There is no prompt file {path} on this host.",
            "Send it with `eagledeck put`, or correct generate.prompts.",
        ) from None
    except OSError as error:
        raise PromptError(
            f"The prompt file {path} can't be read: {error.strerror}.", "Correct generate.prompts."
        ) from None
    if not ids:
        raise PromptError(
            f"{path} holds no usable prompt" + (f": line {bad[0].line}: {bad[0].cause}." if bad else "."),
            "Each line must be a JSON object with `prompt`, `messages` or `conversations`.",
        )
    return PromptIndex(
        path, tuple(ids), tuple(offsets), tuple(lines), tuple(bad), tuple(duplicates), digest.hexdigest()
    )


def _lines(file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    offset = 0
    for number, raw in enumerate(file, start=1):
        if number == 1 and raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise PromptError(f"{file.name} is UTF-16.", "Save it as UTF-8.")
        yield number, offset, raw
        offset += len(raw)


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
    messages = _messages(row)
    canonical = json.dumps(messages, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    try:
        encoded = canonical.encode("utf-8")
    except UnicodeEncodeError:
        raise PromptError("the text holds half of a surrogate pair") from None
    return Prompt(_row_id(row, encoded), tuple(messages))


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
        messages = _sharegpt(row["conversations"])
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


def _sharegpt(value: Any) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise PromptError("`conversations` must be a list that is not empty")
    messages: list[Message] = []
    for number, turn in enumerate(value, start=1):
        role = (
            SHAREGPT_ROLES.get(str(turn.get("from", turn.get("role", ""))).lower()) if isinstance(turn, dict) else None
        )
        if role is None:
            raise PromptError(f"turn {number} needs a `from` of {', '.join(sorted(SHAREGPT_ROLES))}")
        text = turn.get("value", turn.get("content"))
        if not isinstance(text, str):
            raise PromptError(f"turn {number} needs a `value` of text")
        messages.append({"role": role, "content": text})
    return messages
