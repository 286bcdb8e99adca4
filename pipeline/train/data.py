"""Batches for training: whole sequences packed one after the other, never padded, never crossing a sequence.

The order of an epoch is a permutation drawn from (seed, epoch) alone, and so is everything else here: a data position
is (epoch, batch) and needs no saved state. Imports torch, numpy and pipeline.shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pipeline.drafter.attention import Block, plan_blocks
from pipeline.shards import ShardStore
from pipeline.train.rows import serving_mask

KEPT_TOKENS = 4_000_000
"""Tokens whose pairs stay in memory (about 45 bytes each); those of further sequences are worked out when needed."""


@dataclass(frozen=True)
class Pairs:
    """The supervised (row, step) pairs of one sequence, as positions within it.

    rows [S] int64: rows that any step uses; teachers [U] int64: positions whose verifier distribution judges a pair;
    state [U, K] int64: index into rows of the pair judged by teacher u at step k (t = u-1-k), 0 where there is none;
    mask [U, K] bool.
    """

    rows: npt.NDArray[np.int64]
    teachers: npt.NDArray[np.int64]
    state: npt.NDArray[np.int64]
    mask: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Batch:
    """Packed sequences: T tokens, S supervised rows, U teacher rows, K TTT steps.

    aux [T, 3H] and last [U, H] in the store's dtype; following [T] ids of the next token (the last token's own id at a
    sequence's end, a row no pair uses); rows [S]; positions [T]; later [K-1, S] ids of token t+1+k; state, mask [U, K];
    argmax, logsumexp, token [U]: the verifier's argmax, log-sum-exp and the token that followed (-1 past the end);
    blocks of the attention; sequences: their numbers in the store; pieces: for each of them its slice of teachers.
    """

    aux: Tensor
    last: Tensor
    following: Tensor
    rows: Tensor
    positions: Tensor
    later: Tensor
    state: Tensor
    mask: Tensor
    argmax: Tensor
    logsumexp: Tensor
    token: Tensor
    blocks: list[Block]
    sequences: tuple[int, ...]
    pieces: tuple[slice, ...]
    tokens: int
    pairs: int


def find_pairs(generated: npt.NDArray[np.bool_], cut: bool, steps: int) -> Pairs:
    """The pairs of one sequence under the serving-exact mask."""
    mask = serving_mask(generated, cut, steps)
    rows = np.flatnonzero(mask[:, 0])
    number = np.zeros(len(generated) + 1, dtype=np.int64)
    number[rows] = np.arange(len(rows))
    used = np.zeros(len(generated) + 1 + steps, dtype=bool)
    for step in range(steps):
        used[np.flatnonzero(mask[:, step]) + 1 + step] = True
    teachers = np.flatnonzero(used)
    slots = teachers[:, None] - 1 - np.arange(steps)[None, :]
    inside = slots >= 0
    slots = np.where(inside, slots, 0)
    chosen = mask[slots, np.arange(steps)[None, :]] & inside
    return Pairs(rows, teachers, np.where(chosen, number[slots], 0), chosen)


class Corpus:
    """The sequences of a store that a training uses, with their pairs."""

    def __init__(
        self, store: ShardStore, steps: int, length: int, device: torch.device | str = "cpu", heads: int = 1
    ) -> None:
        self.store, self.steps, self.length, self.device, self.heads = store, steps, length, device, heads
        self.lengths = [min(one, length) for one in store.lengths()]
        self._pairs: dict[int, Pairs] = {}
        self._kept = 0

    def pairs(self, number: int) -> Pairs:
        found = self._pairs.get(number)
        if found is None:
            sequence = self.store.sequence(number)
            cut = sequence.truncated or len(sequence.input_ids) > self.length
            generated = sequence.loss_mask[: self.length].numpy().astype(bool)
            found = find_pairs(generated, cut, self.steps)
            self._kept += len(generated)
            if self._kept <= KEPT_TOKENS:
                self._pairs[number] = found
        return found

    def useful(self, numbers: Sequence[int]) -> list[int]:
        """The sequences that hold at least one pair."""
        return [number for number in numbers if len(self.pairs(number).rows)]

    def batch(self, numbers: Sequence[int]) -> Batch:
        """Packs sequences; each must hold a pair."""
        aux, last, following, rows, positions, later, state = [], [], [], [], [], [], []
        mask, argmax, logsumexp, token, asked, lengths, pieces = [], [], [], [], [], [], []
        first_token = first_row = first_teacher = 0
        for number in numbers:
            pairs, sequence = self.pairs(number), self.store.sequence(number)
            count = self.lengths[number]
            ids = sequence.input_ids[:count].long()
            beyond = sequence.input_ids[count : count + 1].long()  # known where the sequence was only cut for training
            aux.append(sequence.aux[:count].flatten(1))
            next_ids = torch.cat((ids[1:], ids[-1:]))
            following.append(next_ids)
            own_rows, teachers = torch.from_numpy(pairs.rows), torch.from_numpy(pairs.teachers)
            asked.append(own_rows)
            rows.append(own_rows + first_token)
            positions.append(torch.arange(count))
            steps_ahead = torch.arange(1, self.steps)[:, None] + own_rows[None, :]
            later.append(next_ids[steps_ahead.clamp(max=count - 1)])
            last.append(sequence.last[:count][teachers])
            argmax.append(sequence.argmax[:count][teachers].long())
            logsumexp.append(sequence.logsumexp[:count][teachers])
            known = torch.cat((ids, beyond if len(beyond) else torch.tensor([-1])))
            token.append(known[teachers + 1])
            state.append(torch.from_numpy(pairs.state) + first_row)
            mask.append(torch.from_numpy(pairs.mask))
            pieces.append(slice(first_teacher, first_teacher + len(teachers)))
            lengths.append(count)
            first_token, first_row, first_teacher = first_token + count, first_row + len(own_rows), pieces[-1].stop
        chosen = torch.cat(mask)
        device = self.device
        return Batch(
            aux=torch.cat(aux).to(device),
            last=torch.cat(last).to(device),
            following=torch.cat(following).to(device),
            rows=torch.cat(rows).to(device),
            positions=torch.cat(positions).to(device),
            later=torch.cat(later, dim=1).to(device),
            state=torch.cat(state).to(device),
            mask=chosen.to(device),
            argmax=torch.cat(argmax).to(device),
            logsumexp=torch.cat(logsumexp).to(device),
            token=torch.cat(token).to(device),
            blocks=plan_blocks(asked, lengths, self.heads, device),
            sequences=tuple(numbers),
            pieces=tuple(pieces),
            tokens=first_token,
            pairs=int(chosen.sum()),
        )


def pack(numbers: Sequence[int], lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Consecutive sequences up to batch_tokens a batch; a longer sequence stands alone."""
    batches: list[list[int]] = []
    room = 0
    for number in numbers:
        if not batches or lengths[number] > room:
            batches.append([])
            room = batch_tokens
        batches[-1].append(number)
        room -= lengths[number]
    return batches


def epoch_batches(
    numbers: Sequence[int], lengths: Sequence[int], batch_tokens: int, seed: int, epoch: int
) -> list[list[int]]:
    """The batches of one epoch, from (seed, epoch) alone."""
    order = np.random.default_rng((seed, epoch)).permutation(len(numbers))
    return pack([numbers[int(place)] for place in order], lengths, batch_tokens)


def validation_batches(corpus: Corpus, numbers: Sequence[int], batch_tokens: int) -> Iterator[Batch]:
    """Batches of the validation split, in a fixed order (by length, so that attention blocks waste little)."""
    ordered = sorted(numbers, key=lambda number: (corpus.lengths[number], number))
    for batch in pack(ordered, corpus.lengths, batch_tokens):
        yield corpus.batch(batch)
