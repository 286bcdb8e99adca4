"""The sequences to extract: an index over generate's tokenized.jsonl, and how they are put into batches and shards.

May import numpy, pipeline.stage. Ids and offsets are held, tokens are read when their batch comes.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from pipeline.stage import StageError

TOKENIZED = "tokenized.jsonl"
WINDOW = 64
"""Batches that are sorted by length together: padding then costs about a percent."""


@dataclass(frozen=True)
class Entry:
    """Where a sequence lies in the file, and its tokens after the cut at the length."""

    id: str
    offset: int
    length: int


@dataclass(frozen=True)
class Tokens:
    """A sequence as extract reads it: input_ids int32 [T], loss_mask uint8 [T]; truncated: the answer was cut."""

    id: str
    input_ids: NDArray[np.int32]
    loss_mask: NDArray[np.uint8]
    truncated: bool


class SequenceFile:
    """Random access to tokenized.jsonl. `unsupervised` are the ids that the length leaves without a generated token."""

    def __init__(self, folder: Path, *, length: int, vocab_size: int) -> None:
        self.path = folder / TOKENIZED
        self._length = length
        self.entries: list[Entry] = []
        self.unsupervised: list[str] = []
        try:
            self._file: BinaryIO = self.path.open("rb")
        except FileNotFoundError:
            raise StageError(f"{self.path} is missing", "Run generate again to its end") from None
        offset = 0
        for number, line in enumerate(self._file, start=1):
            one = self._parse(line, number)
            if one.input_ids.size and not 0 <= int(one.input_ids.min()) <= int(one.input_ids.max()) < vocab_size:
                raise StageError(
                    f"{self.path} line {number} has token ids beyond the verifier's vocabulary of {vocab_size}",
                    "The samples come from another model: correct verifier.path, or generate anew",
                )
            if one.loss_mask.any():
                self.entries.append(Entry(one.id, offset, len(one.input_ids)))
            else:
                self.unsupervised.append(one.id)
            offset += len(line)

    def read(self, entry: Entry) -> Tokens:
        self._file.seek(entry.offset)
        return self._parse(self._file.readline(), 0)

    def close(self) -> None:
        self._file.close()

    def _parse(self, line: bytes, number: int) -> Tokens:
        try:
            row: dict[str, Any] = json.loads(line)
            ids = np.asarray(row["input_ids"], dtype=np.int64)
            mask = np.asarray(row["loss_mask"], dtype=np.uint8)
            if ids.ndim != 1 or ids.shape != mask.shape:
                raise ValueError("input_ids and loss_mask differ in length")
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise StageError(
                f"{self.path} line {number} is damaged ({error})", "Run generate again to its end"
            ) from None
        cut = len(ids) > self._length
        kept = ids[: self._length].astype(np.int32)
        return Tokens(str(row["id"]), kept, mask[: self._length], cut or bool(row.get("truncated")))


def plan_batches(entries: Items[Entry], batch_tokens: int) -> Iterator[list[Entry]]:
    """Groups sequences so that the longest of a batch times their number stays within `batch_tokens` (one always fits).

    Sequences are sorted by length within windows of about WINDOW batches.
    """
    window: list[Entry] = []
    tokens = 0
    for entry in entries:
        window.append(entry)
        tokens += entry.length
        if tokens >= WINDOW * batch_tokens:
            yield from _batches(window, batch_tokens)
            window, tokens = [], 0
    yield from _batches(window, batch_tokens)


def _batches(window: list[Entry], batch_tokens: int) -> Iterator[list[Entry]]:
    batch: list[Entry] = []
    for entry in sorted(window, key=lambda one: (-one.length, one.id)):
        if batch and batch[0].length * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(entry)
    if batch:
        yield batch


def take_shard(pending: deque[list[Entry]], token_bytes: int, shard_bytes: int) -> deque[list[Entry]]:
    """Takes the batches of the next shard from the front: at most `shard_bytes`, but one batch at least."""
    taken: deque[list[Entry]] = deque()
    size = 0
    while pending:
        size += sum(entry.length for entry in pending[0]) * token_bytes
        if taken and size > shard_bytes:
            break
        taken.append(pending.popleft())
    return taken
