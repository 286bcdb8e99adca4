"""Keys and values of a running batch: one slot a row, written at each row's own position. Imports torch.

Rows join at the end and leave by having the last row moved into their place, so the rows at work are always the first
ones and attention reads plain slices. Memory starts at zero because a masked key still meets the query.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

GROWTH = 128
"""Positions, at least, that the cache grows by."""


class Slots:
    """What transformers' attention layers see as their cache: per layer keys and values [rows, heads, positions, size].

    Set `prefill` or `decode` before each pass of the model.
    """

    is_compileable = False

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._start = self._count = self._length = 0
        self._places: Tensor | None = None
        self._flat: Tensor | None = None
        self.clear()

    def prefill(self, start: int, count: int, width: int) -> None:
        """The next pass writes positions 0 … width - 1 of rows start … start + count - 1 and attends to those alone."""
        self._reserve(start + count, width)
        self._start, self._count, self._length, self._places = start, count, width, None

    def decode(self, positions: Tensor, length: int) -> None:
        """The next pass writes one position a row ([rows] int64, all below length) and attends to all below length."""
        count = len(positions)
        self._reserve(count, length)
        self._count, self._length, self._places = count, length, positions
        self._flat = None

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Stores key and value [rows, heads, n, size]; gives what to attend to, [rows, heads, length, size]."""
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        if keys.dim() < 4 or keys.shape[0] < self._rows or keys.shape[2] < self._positions:
            self._keys[layer_idx] = keys = self._grown(keys, key)
            self._values[layer_idx] = values = self._grown(values, value)
        if self._places is None:
            rows = slice(self._start, self._start + self._count)
            keys[rows, :, : self._length] = key
            values[rows, :, : self._length] = value
            return key, value
        size = key.shape[-1]
        if self._flat is None:
            lines = torch.arange(self._count * key.shape[1], device=key.device) * self._positions
            self._flat = lines + self._places.repeat_interleave(key.shape[1])
        keys.view(-1, size).index_copy_(0, self._flat, key.reshape(-1, size))
        values.view(-1, size).index_copy_(0, self._flat, value.reshape(-1, size))
        return keys[: self._count, :, : self._length], values[: self._count, :, : self._length]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._length

    def move(self, source: int, target: int) -> None:
        """Copies a row over another."""
        for held in (*self._keys, *self._values):
            held[target] = held[source]

    def clear(self) -> None:
        """Gives the memory back."""
        self._keys: list[Tensor] = [torch.empty(0)] * self._layers
        self._values: list[Tensor] = [torch.empty(0)] * self._layers
        self._rows = self._positions = 0

    def _reserve(self, rows: int, positions: int) -> None:
        if positions > self._positions:
            self._positions = -(-max(positions, self._positions * 3 // 2) // GROWTH) * GROWTH
        if rows > self._rows:
            self._rows = max(rows, self._rows * 2)

    def _grown(self, held: Tensor, like: Tensor) -> Tensor:
        _, heads, _, size = like.shape
        grown = torch.zeros(self._rows, heads, self._positions, size, dtype=like.dtype, device=like.device)
        if held.dim() == 4:
            grown[: held.shape[0], :, : held.shape[2]] = held
        return grown
