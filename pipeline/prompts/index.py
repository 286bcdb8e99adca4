"""A prompt file, indexed once and read by position.

A line that can't be used is reported with its number and never stops the others. The index keeps offsets and ids, not
texts, so a file of any size costs about 100 bytes a prompt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pipeline.prompts.errors import PromptError
from pipeline.prompts.row import Prompt, parse_line


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
