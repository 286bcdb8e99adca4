"""index.json: what all shards of an output share, and which of them are whole. Imports pipeline.rundir and stage."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pipeline.rundir import write_json
from pipeline.shards.layout import INDEX, SCHEMA
from pipeline.stage import StageError

PIECE = 16 << 20
"""Bytes of one read or write."""
_AGAIN = "`eagledeck restart RUN extract` makes them anew"


class ShardError(StageError):
    """A shard or its index is missing, cut or damaged. Names the file and the remedy."""

    def __init__(self, message: str, remedy: str = _AGAIN) -> None:
        super().__init__(message, remedy)


@dataclass(frozen=True)
class ShardInfo:
    """A finished shard as index.json lists it."""

    file: str
    bytes: int
    sha256: str
    sequences: int
    tokens: int


@dataclass(frozen=True)
class ShardIndex:
    """hidden_size, vocab_size: the verifier's; aux_layers: captured layers; length: the longest sequence kept."""

    hidden_size: int
    aux_layers: tuple[int, ...]
    vocab_size: int
    dtype: str
    length: int
    shards: tuple[ShardInfo, ...] = ()

    def with_shard(self, shard: ShardInfo) -> ShardIndex:
        return replace(self, shards=(*self.shards, shard))

    def begun_alike(self, other: ShardIndex) -> bool:
        """Whether shards of both may lie in one output."""
        return replace(self, shards=()) == replace(other, shards=())

    def write(self, out: Path) -> None:
        write_json(out / INDEX, {"schema": SCHEMA, **asdict(self)})

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards)

    @property
    def sequences(self) -> int:
        return sum(shard.sequences for shard in self.shards)

    @property
    def bytes(self) -> int:
        return sum(shard.bytes for shard in self.shards)


def read_index(out: Path) -> ShardIndex | None:
    """The index of an output, None when there is none yet. Raises ShardError when it can't be read."""
    path = out / INDEX
    try:
        raw = json.loads(path.read_text("utf-8"))
        if raw.pop("schema") > SCHEMA:
            raise ShardError(f"{path} was written by a newer Eagledeck", "Update Eagledeck on the host")
        shards = tuple(ShardInfo(**shard) for shard in raw.pop("shards"))
        return ShardIndex(**{**raw, "aux_layers": tuple(raw["aux_layers"])}, shards=shards)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ShardError(f"{path} can't be read ({error})") from None


def check_size(out: Path, shard: ShardInfo) -> None:
    """Raises ShardError when a listed shard is missing or has another size."""
    path = out / shard.file
    try:
        found = path.stat().st_size
    except FileNotFoundError:
        raise ShardError(f"{path} is missing, though {INDEX} lists it") from None
    if found != shard.bytes:
        raise ShardError(f"{path} has {found} bytes instead of {shard.bytes}")


def sha256(fd: int) -> str:
    """Checksum of a whole open file."""
    digest = hashlib.sha256()
    read = 0
    while piece := os.pread(fd, PIECE, read):
        digest.update(piece)
        read += len(piece)
    return digest.hexdigest()
