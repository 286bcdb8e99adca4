"""Attention of training-time test: causal over the first step's keys, plus each row's own keys of the later steps.

At TTT step k the query of row t sees the step-0 keys of rows 0 … t of its own sequence and, on the diagonal, the keys
of steps 1 … k of row t itself. That is what a drafter sees while serving: true slots up to t in its cache, then its
own drafts. Sequences are packed without padding; only the score blocks are padded, among sequences of like length.
Imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CPU_BLOCK, GPU_BLOCK = 1 << 20, 1 << 26
"""Score elements (heads x queries x keys) handled at once: what fits a core's cache, and 256 MiB of fp32."""
WASTE = 1.3
"""Padded over real score elements that one block may reach."""


@dataclass(frozen=True)
class Block:
    """Queries and keys of some sequences, padded to a rectangle. Padding repeats index 0 and is masked.

    rows [D, Q] int64 into the query rows; keys [D, L] int64 into all rows; hidden [D, 1, 1, Q, L] bool, True where a
    query may not look; filled [D*Q] bool (None: no padding among the queries).
    """

    rows: Tensor
    keys: Tensor
    hidden: Tensor
    filled: Tensor | None


def plan_blocks(
    queries: Sequence[Tensor], lengths: Sequence[int], heads: int, device: torch.device | str = "cpu"
) -> list[Block]:
    """Groups sequences into blocks.

    queries: for each sequence the positions (int64, ascending, within the sequence) that ask; their rows are numbered
    in this order. lengths: tokens of each sequence, packed one after the other.
    """
    budget = CPU_BLOCK if torch.device(device).type == "cpu" else GPU_BLOCK
    starts, first_rows, key, row = [], [], 0, 0
    for asked, length in zip(queries, lengths):
        starts.append(key)
        first_rows.append(row)
        key, row = key + length, row + len(asked)
    pieces: list[tuple[int, Tensor, Tensor]] = []  # keys needed, positions, rows
    for index, asked in enumerate(queries):
        rows = torch.arange(first_rows[index], first_rows[index] + len(asked))
        at = 0
        while at < len(asked):
            size = max(1, budget // (heads * (int(asked[-1]) + 1)))
            part = asked[at : at + size]
            pieces.append((index, part, rows[at : at + size]))
            at += size
    pieces.sort(key=lambda piece: (int(piece[1][-1]), len(piece[1])))
    blocks: list[Block] = []
    group: list[tuple[int, Tensor, Tensor]] = []
    real = 0
    for piece in pieces:
        area = len(piece[1]) * (int(piece[1][-1]) + 1)
        members = group + [piece]
        padded = len(members) * max(len(m[1]) for m in members) * (int(piece[1][-1]) + 1)
        if group and (padded * heads > budget or padded > WASTE * (real + area)):
            blocks.append(_block(group, starts, device))
            group, real = [], 0
        group.append(piece)
        real += area
    if group:
        blocks.append(_block(group, starts, device))
    return blocks


def _block(group: list[tuple[int, Tensor, Tensor]], starts: list[int], device: torch.device | str) -> Block:
    asking, keys = max(len(piece[1]) for piece in group), max(int(piece[1][-1]) for piece in group) + 1
    positions = torch.full((len(group), asking), -1)
    rows = torch.zeros(len(group), asking, dtype=torch.int64)
    index = torch.zeros(len(group), keys, dtype=torch.int64)
    for number, (sequence, asked, own) in enumerate(group):
        positions[number, : len(asked)] = asked
        rows[number, : len(asked)] = own
        reach = int(asked[-1]) + 1
        index[number, :reach] = torch.arange(starts[sequence], starts[sequence] + reach)
    hidden = torch.arange(keys) > positions[:, :, None]
    filled = positions.flatten() >= 0
    return Block(
        rows.to(device),
        index.to(device),
        hidden[:, None, None].to(device),
        None if bool(filled.all()) else filled.to(device),
    )


class _UnrolledAttention(torch.autograd.Function):
    """Forward and backward by blocks. Only the log-sum-exp is kept; the scores are computed again in the backward pass,
    so memory never grows with queries x keys (FlashAttention's backward, arXiv 2205.14135, with the diagonal merged
    in).
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, blocks: list[Block], scale: float, *diagonal: Tensor
    ) -> Tensor:
        size, heads = q.shape[:2]
        groups = heads // k.shape[1]
        out = torch.empty_like(q)
        own = _own_scores(q, diagonal[0::2], scale)  # [S, heads, J] fp32
        lse = torch.empty(size, heads, dtype=torch.float32, device=q.device)
        for block in blocks:
            query, key = _queries(q, block, k.shape[1]), _keys(k, block)
            scores = _scores(query, key, block, scale)
            merged = torch.logsumexp(scores, -1)
            if own.shape[-1]:
                mine = _queries(own, block, k.shape[1])
                merged = torch.logsumexp(torch.cat((merged.unsqueeze(-1), mine), -1), -1)
            merged = merged.clamp_(min=-1e30)  # a padded query sees nothing: keep -inf minus -inf away
            weights = scores.sub_(merged.unsqueeze(-1)).exp_().to(q.dtype)
            _put(out, torch.bmm(weights, _keys(v, block)), block, groups)
            _put(lse, merged.unsqueeze(-1), block, groups)
        for step, value in enumerate(diagonal[1::2]):
            weight = (own[..., step] - lse).exp_().to(q.dtype)
            out.addcmul_(weight.unsqueeze(-1), value.repeat_interleave(groups, 1))
        ctx.save_for_backward(q, k, v, out, lse, own, *diagonal)
        ctx.blocks, ctx.scale = blocks, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse, own, *diagonal = ctx.saved_tensors
        scale, kv, groups = ctx.scale, k.shape[1], q.shape[1] // k.shape[1]
        grad = grads[0].contiguous()
        delta = (grad.float() * out).sum(-1)  # [S, heads]
        dq = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        dk, dv = (torch.zeros(one.shape, dtype=torch.float32, device=q.device) for one in (k, v))
        for block in ctx.blocks:
            query, key, value = _queries(q, block, kv), _keys(k, block), _keys(v, block)
            given = _queries(grad, block, kv)
            share = _queries(delta.unsqueeze(-1), block, kv)
            if block.filled is not None:  # padded queries repeat row 0: they must add nothing
                empty = _padding(block, kv, groups)
                given, share = given.masked_fill(empty, 0), share.masked_fill(empty, 0)
            weights = _scores(query, key, block, scale).sub_(_queries(lse.unsqueeze(-1), block, kv)).exp_()
            low = weights.to(q.dtype)
            dscore = torch.bmm(given, value.transpose(1, 2)).float().sub_(share).mul_(weights).mul_(scale).to(q.dtype)
            _put(dq, torch.bmm(dscore, key).float(), block, groups)
            _add(dk, torch.bmm(dscore.transpose(1, 2), query), block)
            _add(dv, torch.bmm(low.transpose(1, 2), given), block)
        rest: list[Tensor] = []
        shape = (len(q), kv, groups, -1)
        grouped_q, grouped_grad = q.view(shape).float(), grad.view(shape).float()
        for step in range(len(diagonal) // 2):
            one_key, one_value = diagonal[2 * step].float().unsqueeze(2), diagonal[2 * step + 1].float().unsqueeze(2)
            weight = (own[..., step] - lse).exp_().view(shape)
            dvalue = (weight * grouped_grad).sum(2)
            share = delta.view(shape)
            dscore = weight * ((grouped_grad * one_value).sum(-1, keepdim=True) - share) * scale
            dq += (dscore * one_key).flatten(1, 2)
            rest += [(dscore * grouped_q).sum(2).to(q.dtype), dvalue.to(q.dtype)]
        return (dq.to(q.dtype), dk.to(q.dtype), dv.to(q.dtype), None, None, *rest)


def ttt_attention(
    q: Tensor, k: Tensor, v: Tensor, blocks: list[Block], diagonal: Sequence[tuple[Tensor, Tensor]] = ()
) -> Tensor:
    """Attention output [S, heads, head_dim] of S query rows.

    q [S, heads, head_dim]; k, v [T, kv_heads, head_dim] of step 0; diagonal: (key, value) of steps 1 … k, each
    [S, kv_heads, head_dim]; all of one dtype, rotary positions applied. Scores are divided by sqrt(head_dim).
    """
    flat = [one for pair in diagonal for one in pair]
    result: Tensor = _UnrolledAttention.apply(q, k, v, blocks, q.shape[-1] ** -0.5, *flat)  # type: ignore[no-untyped-call]
    return result


def _own_scores(q: Tensor, keys: Sequence[Tensor], scale: float) -> Tensor:
    if not keys:
        return torch.empty(*q.shape[:2], 0, device=q.device)
    grouped = q.view(len(q), keys[0].shape[1], -1, q.shape[-1]).float()
    return torch.stack([(grouped * key.float().unsqueeze(2)).sum(-1).flatten(1, 2) * scale for key in keys], -1)


def _queries(rows: Tensor, block: Block, kv: int) -> Tensor:
    """[S, heads, d] -> [D*kv, groups*Q, d]: the query heads of one key head side by side."""
    sequences, asking = block.rows.shape
    taken = rows.index_select(0, block.rows.flatten()).view(sequences, asking, kv, -1, rows.shape[-1])
    return taken.permute(0, 2, 3, 1, 4).reshape(sequences * kv, -1, rows.shape[-1])


def _keys(rows: Tensor, block: Block) -> Tensor:
    """[T, kv, d] -> [D*kv, L, d]."""
    sequences, keys = block.keys.shape
    taken = rows.index_select(0, block.keys.flatten()).view(sequences, keys, -1, rows.shape[-1])
    return taken.transpose(1, 2).reshape(-1, keys, rows.shape[-1])


def _scores(query: Tensor, key: Tensor, block: Block, scale: float) -> Tensor:
    """[D*kv, groups*Q, L] fp32, -inf where hidden."""
    scores = torch.bmm(query, key.transpose(1, 2)).float().mul_(scale)
    sequences, asking, keys = block.hidden.shape[0], block.hidden.shape[3], block.hidden.shape[4]
    scores.view(sequences, -1, scores.shape[1] // asking, asking, keys).masked_fill_(block.hidden, float("-inf"))
    return scores


def _rows_of(states: Tensor, block: Block, groups: int) -> Tensor:
    """[D*kv, groups*Q, d] -> [D*Q, kv*groups, d]."""
    sequences, asking = block.rows.shape
    apart = states.view(sequences, -1, groups, asking, states.shape[-1])
    return apart.permute(0, 3, 1, 2, 4).reshape(sequences * asking, -1, states.shape[-1])


def _put(into: Tensor, states: Tensor, block: Block, groups: int) -> None:
    found, rows = _rows_of(states, block, groups), block.rows.flatten()
    if block.filled is not None:
        found, rows = found[block.filled], rows[block.filled]
    into.index_copy_(0, rows, found.view(-1, *into.shape[1:]))


def _add(into: Tensor, states: Tensor, block: Block) -> None:
    """Padded keys repeat row 0, and their states are 0 because no query sees them."""
    sequences, keys = block.keys.shape
    found = states.float().view(sequences, -1, keys, states.shape[-1]).transpose(1, 2)
    into.index_add_(0, block.keys.flatten(), found.reshape(sequences * keys, *into.shape[1:]))


def _padding(block: Block, kv: int, groups: int) -> Tensor:
    """[D*kv, groups*Q, 1] bool, True for padded queries."""
    assert block.filled is not None
    empty = (~block.filled).view(block.rows.shape[0], 1, 1, -1)
    return empty.expand(-1, kv, groups, -1).reshape(block.rows.shape[0] * kv, -1, 1)
