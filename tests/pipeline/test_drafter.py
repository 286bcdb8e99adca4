"""The drafter against an independent, slow implementation of the same formulas."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pipeline.drafter.attention import plan_blocks, ttt_attention
from pipeline.drafter.config import DrafterConfig

CONFIG = DrafterConfig(
    hidden_size=24, intermediate_size=40, num_attention_heads=4, num_key_value_heads=2, head_dim=8, vocab_size=50,
    draft_vocab_size=30, max_position_embeddings=256,
)  # fmt: skip


def naive_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rows: list[tuple[int, int]],
    starts: list[int],
    diagonal: list[tuple[Tensor, Tensor]],
) -> Tensor:
    """One row and one head at a time: rows are (sequence, position)."""
    out = torch.zeros_like(q)
    groups = q.shape[1] // k.shape[1]
    for row, (sequence, position) in enumerate(rows):
        first = starts[sequence]
        for head in range(q.shape[1]):
            keys = [k[first + at, head // groups] for at in range(position + 1)]
            values = [v[first + at, head // groups] for at in range(position + 1)]
            keys += [key[row, head // groups] for key, _ in diagonal]
            values += [value[row, head // groups] for _, value in diagonal]
            scores = torch.stack([q[row, head] @ key for key in keys]) / math.sqrt(q.shape[-1])
            out[row, head] = torch.softmax(scores, 0) @ torch.stack(values)
    return out


@pytest.mark.parametrize("budget", [1 << 20, 64])
@pytest.mark.parametrize("steps", [0, 2])
def test_attention_and_its_gradients_match_a_row_by_row_one(
    steps: int, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.drafter.attention.CPU_BLOCK", budget)  # 64: long sequences are cut into pieces
    torch.manual_seed(0)
    lengths = [7, 3, 9, 8]
    asked = [[2, 3, 4, 5], [1], [0, 1, 5, 6, 7], [6]]
    starts = [0, 7, 10, 19]
    rows = [(sequence, position) for sequence, positions in enumerate(asked) for position in positions]
    tensors = [torch.randn(len(rows), 4, 8, dtype=torch.float64)]
    tensors += [torch.randn(27, 2, 8, dtype=torch.float64) for _ in range(2)]
    tensors += [torch.randn(len(rows), 2, 8, dtype=torch.float64) for _ in range(2 * steps)]
    blocks = plan_blocks([torch.tensor(one) for one in asked], lengths, heads=4)
    grad = torch.randn(len(rows), 4, 8, dtype=torch.float64)
    found, wanted = [], []
    for into, fast in ((found, True), (wanted, False)):
        leaves = [one.clone().requires_grad_() for one in tensors]
        diagonal = [(leaves[3 + 2 * step], leaves[4 + 2 * step]) for step in range(steps)]
        if fast:
            out = ttt_attention(leaves[0], leaves[1], leaves[2], blocks, diagonal)
        else:
            out = naive_attention(leaves[0], leaves[1], leaves[2], rows, starts, diagonal)
        out.backward(grad)
        into += [out.detach()] + [leaf.grad for leaf in leaves]
    for one, other in zip(found, wanted):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)


def test_blocks_cover_every_row_once_and_share_like_lengths() -> None:
    asked = [torch.arange(3, 3 + count) for count in (5, 6, 5, 40, 6)]
    blocks = plan_blocks(asked, [12, 12, 12, 60, 12], heads=2)
    rows = [block.rows.flatten() if block.filled is None else block.rows.flatten()[block.filled] for block in blocks]
    assert sorted(torch.cat(rows).tolist()) == list(range(62))
    assert len(blocks) == 2
