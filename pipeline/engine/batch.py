"""The running batch: rows join with a prefill, take one token a step, and leave. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.engine.loading import Verifier
from pipeline.engine.row import Row
from pipeline.engine.sampling import choose
from pipeline.engine.slots import Slots

_PREFILL_TOKENS = 8192
"""Positions of one prefill pass; more rows take several passes."""


class Batch:
    """Rows decoded together, greedy or sampled each in its own way. Used from one thread."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self._device = verifier.head.weight.device
        self._slots = Slots(len(verifier.decoder.layers))
        self._tokens = torch.empty(0, dtype=torch.long, device=self._device)
        self._positions = torch.empty(0, dtype=torch.long, device=self._device)
        self._longest = 0
        self.rows: list[Row] = []

    @torch.inference_mode()
    def join(self, rows: Sequence[Row]) -> None:
        """Reads the prompts of new rows and gives each its first token."""
        part: list[Row] = []
        for row in sorted(rows, key=lambda row: len(row.prompt_ids)):
            if part and len(row.prompt_ids) * (len(part) + 1) > _PREFILL_TOKENS:
                self._prefill(part)
                part = []
            part.append(row)
        if part:
            self._prefill(part)

    @torch.inference_mode()
    def step(self) -> None:
        """One more token for every row."""
        length = self._longest + 1
        self._slots.decode(self._positions, length)
        mask = torch.arange(length, device=self._device) <= self._positions.unsqueeze(1)
        hidden = self._forward(self._tokens.unsqueeze(1), self._positions.unsqueeze(1), mask[:, None, None])
        self._positions += 1
        self._longest = length
        tokens = self._choose(hidden[:, 0], self.rows)
        self._tokens = torch.tensor(tokens, device=self._device)

    @torch.inference_mode()
    def leave(self) -> list[Row]:
        """Takes out the rows that have ended and gives them."""
        gone = [index for index, row in enumerate(self.rows) if row.finish_reason]
        if not gone:
            return []
        ended = [self.rows[index] for index in gone]
        kept = len(self.rows) - len(gone)
        holes = [index for index in gone if index < kept]
        movers = [index for index in range(kept, len(self.rows)) if not self.rows[index].finish_reason]
        order = list(range(kept))
        for hole, mover in zip(holes, movers):
            self._slots.move(mover, hole)
            order[hole] = mover
        self.rows = [self.rows[index] for index in order]
        chosen = torch.tensor(order, dtype=torch.long, device=self._device)
        self._tokens, self._positions = self._tokens[chosen], self._positions[chosen]
        self._longest = max((len(row.prompt_ids) + len(row.output_ids) - 1 for row in self.rows), default=0)
        if not self.rows:
            self._slots.clear()
        return ended

    def _prefill(self, rows: list[Row]) -> None:
        lengths = torch.tensor([len(row.prompt_ids) for row in rows], device=self._device)
        width = int(lengths.max())
        ids = torch.tensor(
            [[*row.prompt_ids, *[0] * (width - len(row.prompt_ids))] for row in rows], device=self._device
        )
        positions = torch.arange(width, device=self._device)
        self._slots.prefill(len(self.rows), len(rows), width)
        causal = positions[None, :] <= positions[:, None]
        hidden = self._forward(ids, positions.expand(len(rows), width), causal[None, None])
        tokens = self._choose(hidden[torch.arange(len(rows), device=self._device), lengths - 1], rows)
        self._tokens = torch.cat((self._tokens, torch.tensor(tokens, device=self._device)))
        self._positions = torch.cat((self._positions, lengths))
        self._longest = max(self._longest, width)
        self.rows += rows

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        verifier = self._verifier
        cache = {verifier.cache_argument: self._slots}
        out = verifier.decoder(input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=True, **cache)
        hidden: torch.Tensor = out.last_hidden_state
        return hidden

    def _choose(self, hidden: torch.Tensor, rows: Sequence[Row]) -> list[int]:
        tokens = choose(self._verifier.head(hidden), [row.sampling for row in rows], [row.generator for row in rows])
        for row, token in zip(rows, tokens):
            row.take(token, self._verifier.eos_ids)
        return tokens
