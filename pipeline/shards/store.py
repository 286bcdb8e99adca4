"""Random access to the sequences of an output's shards, memory-mapped. Imports torch and pipeline.shards."""

from __future__ import annotations

import bisect
import itertools
import json
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.shards.index import ShardError, check_size, read_index, sha256
from pipeline.shards.layout import HEAD, INDEX, NAMES, VERIFIER_CONFIG, Sequence

_DTYPES = {name: dtype for dtype, name in NAMES.items()}


class ShardStore:
    """The sequences of an extract output, in the order of its shards. A sequence costs no read until it is touched.

    Opening checks that every listed shard is there with its size; `verify` reads everything. Raises ShardError, which
    names the file. Mappings are opened on first use, so a store may be handed to worker processes.
    """

    def __init__(self, out: Path) -> None:
        index = read_index(out)
        if index is None:
            raise ShardError(f"{out} holds no {INDEX}", "Run extract first")
        self.out = out
        self.index = index
        self._ends = list(itertools.accumulate(shard.sequences for shard in index.shards))
        self._open: dict[int, _Shard] = {}
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
        ends = (self._shard(number).ends for number in range(len(self.index.shards)))
        return [after - before for shard in ends for before, after in itertools.pairwise(shard)]

    def ids(self) -> list[str]:
        """Ids of every sequence, in order."""
        return [one for number in range(len(self.index.shards)) for one in self._shard(number).ids]

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
            mapped = _Mapped(path)
        except FileNotFoundError:
            raise ShardError(f"{path} is missing") from None
        return {name: mapped.tensor(name) for name in mapped.entries}

    def verifier_config(self) -> dict[str, Any]:
        """The verifier's text configuration, as its config.json had it."""
        path = self.out / VERIFIER_CONFIG
        try:
            config: dict[str, Any] = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise ShardError(f"{path} can't be read ({error})") from None
        return config

    def _shard(self, number: int) -> _Shard:
        if number not in self._open:
            self._open[number] = _Shard(self.out / self.index.shards[number].file)
        return self._open[number]

    def __getstate__(self) -> dict[str, Any]:
        # a mapping can't be pickled, and each process opens its own
        return {**self.__dict__, "_open": {}}


class _Mapped:
    """A safetensors file mapped into memory. Raises FileNotFoundError, and ShardError for a damaged header."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            # copy on write: torch wants a writable buffer, and nothing written through it may reach the file
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        try:
            size = int.from_bytes(self._map[:8], "little")
            header = json.loads(self._map[8 : 8 + size])
            self.metadata: dict[str, str] = header.pop("__metadata__", {})
            self.entries: dict[str, dict[str, Any]] = header
            self._data = 8 + size
            end = self._data + max(entry["data_offsets"][1] for entry in header.values())
            if end != len(self._map):
                raise ValueError(f"{len(self._map)} bytes instead of {end}")
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise ShardError(f"{path} is damaged ({error})") from None

    def tensor(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Rows [start, stop) of a tensor, as a view of the file."""
        entry = self.entries[name]
        dtype, (rows, *sides) = _DTYPES[entry["dtype"]], entry["shape"]
        stop = rows if stop is None else stop
        row = 1
        for side in sides:
            row *= side
        offset = self._data + entry["data_offsets"][0] + start * row * dtype.itemsize
        flat = torch.frombuffer(self._map, dtype=dtype, count=(stop - start) * row, offset=offset)
        return flat.view(stop - start, *sides)


class _Shard(_Mapped):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            self.ids: list[str] = json.loads(self.metadata["ids"])
            self.ends: list[int] = self.tensor("offsets").tolist()
            self._truncated: list[int] = self.tensor("truncated").tolist()
        except (ValueError, KeyError) as error:
            raise ShardError(f"{path} is no shard ({error})") from None

    def sequence(self, number: int) -> Sequence:
        start, stop = self.ends[number], self.ends[number + 1]
        return Sequence(
            id=self.ids[number],
            aux=self.tensor("aux", start, stop),
            last=self.tensor("last", start, stop),
            input_ids=self.tensor("input_ids", start, stop),
            loss_mask=self.tensor("loss_mask", start, stop),
            argmax=self.tensor("argmax", start, stop),
            logsumexp=self.tensor("logsumexp", start, stop),
            truncated=bool(self._truncated[number]),
        )
