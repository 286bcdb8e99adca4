"""One shard file: its header and offsets read and the file closed again, or the whole of it mapped into memory.

Neither keeps a descriptor: an output of 2 TB is more than a thousand shards, and 1,024 open files are all that many
hosts allow a process. Imports torch and pipeline.shards.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.shards.index import ShardError
from pipeline.shards.layout import NAMES, Sequence

_DTYPES = {name: dtype for dtype, name in NAMES.items()}


@dataclass(frozen=True)
class Header:
    """The JSON header of a safetensors file. data: where its tensors begin; size: of the file; both bytes."""

    path: Path
    metadata: dict[str, str]
    entries: dict[str, dict[str, Any]]
    data: int
    size: int

    def ids(self) -> list[str]:
        """Ids of a shard's sequences. Raises ShardError when the file is no shard."""
        try:
            found: list[str] = json.loads(self.metadata["ids"])
        except (ValueError, KeyError) as error:
            raise ShardError(f"{self.path} is no shard ({error})") from None
        return found


def read_header(path: Path) -> Header:
    """Reads the header of a file and closes it. Raises FileNotFoundError, and ShardError for a damaged one."""
    with path.open("rb") as file:
        length = os.fstat(file.fileno()).st_size
        try:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(size, length)))
            metadata: dict[str, str] = header.pop("__metadata__", {})
            end = 8 + size + max(entry["data_offsets"][1] for entry in header.values())
            if end != length:
                raise ValueError(f"{length} bytes instead of {end}")
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise ShardError(f"{path} is damaged ({error})") from None
    return Header(path, metadata, header, 8 + size, length)


def read_ends(path: Path) -> list[int]:
    """The offsets of a shard's sequences, one more than there are; nothing else of the file is read."""
    header = read_header(path)
    try:
        start, end = header.entries["offsets"]["data_offsets"]
    except (KeyError, ValueError) as error:
        raise ShardError(f"{path} is no shard ({error})") from None
    with path.open("rb") as file:
        file.seek(header.data + start)
        return memoryview(file.read(end - start)).cast("q").tolist()


class Mapped:
    """A safetensors file mapped into memory. Raises FileNotFoundError, and ShardError for a damaged header.

    The mapping lasts as long as this or any of its views.
    """

    def __init__(self, path: Path) -> None:
        self.header = read_header(path)
        # private, so copied on write: nothing written through a view reaches the file. mmap.mmap would keep a
        # descriptor for each mapping, this doesn't.
        self._bytes = torch.from_file(str(path), shared=False, size=self.header.size, dtype=torch.uint8)

    def tensor(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Rows [start, stop) of a tensor, as a view of the file."""
        entry = self.header.entries[name]
        dtype, (rows, *sides) = _DTYPES[entry["dtype"]], entry["shape"]
        stop = rows if stop is None else stop
        row = dtype.itemsize
        for side in sides:
            row *= side
        offset = self.header.data + entry["data_offsets"][0] + start * row
        return self._bytes[offset : offset + (stop - start) * row].view(dtype).view(stop - start, *sides)


class Shard(Mapped):
    """A mapped shard."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            self._ends: list[int] = self.tensor("offsets").tolist()
            self._truncated: list[int] = self.tensor("truncated").tolist()
        except (ValueError, KeyError) as error:
            raise ShardError(f"{path} is no shard ({error})") from None

    @cached_property
    def ids(self) -> list[str]:
        return self.header.ids()

    def sequence(self, number: int) -> Sequence:
        start, stop = self._ends[number], self._ends[number + 1]
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
