"""Random access to the sequences of an output's shards, memory-mapped. Imports torch and pipeline.shards."""

from __future__ import annotations

import bisect
import itertools
import json
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from pipeline.shards.index import ShardError, check_size, read_index, sha256
from pipeline.shards.layout import HEAD, INDEX, VERIFIER_CONFIG, Sequence
from pipeline.shards.mapped import Mapped, Shard, read_ends, read_header

MAPPED_SHARDS = 256
"""Shards that stay mapped, the ones used last: page tables of all that was ever touched of 2 TB would take 4 GB, and
opening a shard again costs a millisecond beside the megabytes that are read from it."""


class ShardStore:
    """The sequences of an extract output, in the order of its shards. A sequence costs no read until it is touched.

    Opening checks that every listed shard is there with its size; `verify` reads everything. Raises ShardError, which
    names the file. Shards are mapped on first use, so a store may be handed to worker processes; no descriptor stays
    open, however many shards there are.
    """

    def __init__(self, out: Path) -> None:
        index = read_index(out)
        if index is None:
            raise ShardError(f"{out} holds no {INDEX}", "Run extract first")
        self.out = out
        self.index = index
        self._ends = list(itertools.accumulate(shard.sequences for shard in index.shards))
        self._open: OrderedDict[int, Shard] = OrderedDict()
        for shard in index.shards:
            check_size(out, shard)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def tokens(self) -> int:
        return self.index.tokens

    def sequence(self, number: int) -> Sequence:
        """Sequence `number` (0-based) as views of the mapped file. Raises IndexError."""
        if not 0 <= number < len(self):
            raise IndexError(number)
        shard = bisect.bisect_right(self._ends, number)
        return self._shard(shard).sequence(number - (self._ends[shard - 1] if shard else 0))

    def __iter__(self) -> Iterator[Sequence]:
        return (self.sequence(number) for number in range(len(self)))

    def lengths(self) -> list[int]:
        """Tokens of every sequence, in order. Reads headers and offsets only."""
        ends = (read_ends(self.out / shard.file) for shard in self.index.shards)
        return [after - before for shard in ends for before, after in itertools.pairwise(shard)]

    def ids(self) -> list[str]:
        """Ids of every sequence, in order. Reads headers only."""
        return [one for shard in self.index.shards for one in read_header(self.out / shard.file).ids()]

    def verify(self) -> None:
        """Compares every shard with its checksum. Raises ShardError naming the first that differs."""
        for shard in self.index.shards:
            path = self.out / shard.file
            with path.open("rb") as file:
                if sha256(file.fileno()) != shard.sha256:
                    raise ShardError(f"{path} does not match its checksum in {INDEX}")

    def frozen(self) -> dict[str, Tensor]:
        """What training needs of the verifier, mapped: embed_tokens and lm_head [V, H], norm [H], and `layer.*`,
        the tensors of its last decoder layer (absent when that isn't of Llama's type)."""
        path = self.out / HEAD
        try:
            mapped = Mapped(path)
        except FileNotFoundError:
            raise ShardError(f"{path} is missing") from None
        return {name: mapped.tensor(name) for name in mapped.header.entries}

    def verifier_config(self) -> dict[str, Any]:
        """The verifier's text configuration, as its config.json had it."""
        path = self.out / VERIFIER_CONFIG
        try:
            config: dict[str, Any] = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise ShardError(f"{path} can't be read ({error})") from None
        return config

    def _shard(self, number: int) -> Shard:
        if number in self._open:
            self._open.move_to_end(number)
            return self._open[number]
        if len(self._open) >= MAPPED_SHARDS:
            self._open.popitem(last=False)
        found = self._open[number] = Shard(self.out / self.index.shards[number].file)
        return found

    def __getstate__(self) -> dict[str, Any]:
        # each process maps its own
        return {**self.__dict__, "_open": OrderedDict()}
