"""Writes one shard as its sequences arrive, and puts it in place whole. Imports torch and pipeline.rundir."""

from __future__ import annotations

import os
from collections.abc import Sequence as Items
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from pipeline.rundir.atomic import fsync_folder
from pipeline.shards.index import PIECE, ShardInfo, sha256
from pipeline.shards.layout import Sequence, header, shapes


class ShardWriter:
    """A shard in the making, `NAME.part` until `close`.

    The planned ids and token count fix where each tensor starts, so states go straight to their place in the file, and
    memory holds only the small tensors. A shard may end up smaller than planned (a stop, a rejected sequence): `close`
    then moves the second large tensor down. Raises OSError when the disk is full.
    """

    def __init__(self, path: Path, *, ids: Items[str], tokens: int, hidden_size: int, dtype: torch.dtype) -> None:
        self.path = path
        self._hidden = hidden_size
        self._dtype = dtype
        self._planned = tokens
        self._state = hidden_size * dtype.itemsize
        self._small: list[Sequence] = []
        self._tokens = 0
        self._header_size = (len(header(shapes(tokens, len(ids), hidden_size, dtype), ids)) + 7) // 8 * 8
        self._data = 8 + self._header_size
        self._part = path.with_name(path.name + ".part")
        self._fd = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

    def append(self, sequence: Sequence) -> None:
        """Adds a sequence: tensors on the CPU, states in the shard's dtype. ValueError when it doesn't fit the plan."""
        count = len(sequence.input_ids)
        if self._tokens + count > self._planned:
            raise ValueError(f"{self.path.name} was planned for {self._planned} tokens")
        for tensor, width, start in ((sequence.aux, 3, 0), (sequence.last, 1, 3 * self._planned)):
            if tensor.dtype != self._dtype or tensor.numel() != count * width * self._hidden:
                raise ValueError(f"sequence {sequence.id} has a state {tuple(tensor.shape)} of {tensor.dtype}")
            _write_at(self._fd, _raw(tensor), self._data + (start + width * self._tokens) * self._state)
        none = sequence.aux[:0]
        self._small.append(replace(sequence, aux=none, last=none))
        self._tokens += count

    def close(self) -> ShardInfo | None:
        """Finishes the file: header, fsync, checksum, rename, fsync of the folder. None and no file when empty."""
        if not self._small:
            self.abort()
            return None
        tokens, small = self._tokens, self._small
        states = self._data + 3 * tokens * self._state
        _move(self._fd, self._data + 3 * self._planned * self._state, states, tokens * self._state)
        tensors = (
            torch.tensor([0] + [len(one.input_ids) for one in small]).cumsum(0),
            torch.cat([one.logsumexp.float() for one in small]),
            torch.cat([one.argmax.int() for one in small]),
            torch.cat([one.input_ids.int() for one in small]),
            torch.cat([one.loss_mask.byte() for one in small]),
            torch.tensor([one.truncated for one in small], dtype=torch.uint8),
        )
        end = states + tokens * self._state
        for tensor in tensors:
            end += _write_at(self._fd, _raw(tensor), end)
        os.ftruncate(self._fd, end)
        final = header(shapes(tokens, len(small), self._hidden, self._dtype), [one.id for one in small])
        start = self._header_size.to_bytes(8, "little") + final.ljust(self._header_size)
        _write_at(self._fd, memoryview(start), 0)
        os.fsync(self._fd)
        digest = sha256(self._fd)
        self._close_file()
        os.replace(self._part, self.path)
        fsync_folder(self.path.parent)
        return ShardInfo(self.path.name, end, digest, len(small), tokens)

    def abort(self) -> None:
        """Drops the unfinished shard. After `close` it does nothing."""
        self._close_file()
        self._part.unlink(missing_ok=True)

    def _close_file(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def _raw(tensor: Tensor) -> memoryview:
    # numpy has no bfloat16, so the bytes are what is handed over
    return memoryview(tensor.contiguous().view(torch.uint8).numpy()).cast("B")  # type: ignore[arg-type]


def _write_at(fd: int, data: memoryview, offset: int) -> int:
    written = 0
    while written < len(data):
        written += os.pwrite(fd, data[written : written + PIECE], offset + written)
    return written


def _move(fd: int, source: int, target: int, size: int) -> None:
    """Moves a range of a file towards its start; the ranges may overlap."""
    moved = 0
    while source != target and moved < size:
        piece = os.pread(fd, min(PIECE, size - moved), source + moved)
        moved += _write_at(fd, memoryview(piece), target + moved)
