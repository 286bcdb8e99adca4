"""Argmax and log-sum-exp of the verifier's logits, without ever holding [tokens, vocabulary]. Imports torch only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

ROWS = 1024
COLUMNS = 4096
"""Tile of logits in memory at a time: 16 MiB of float32."""


@torch.inference_mode()
def teach(last: Tensor, head: Tensor) -> tuple[Tensor, Tensor]:
    """What the verifier predicts after each token.

    last [N, H]: states after the final norm, as they are stored; head [V, H]: the lm_head's weight, same device.
    Gives argmax int32 [N] (the lowest id on a tie) and logsumexp float32 [N] of last @ head.T, computed in float32.
    """
    count = len(last)
    best = torch.full((count,), -torch.inf, device=last.device)
    argmax = torch.zeros(count, dtype=torch.int64, device=last.device)
    total = torch.zeros(count, device=last.device)
    exact = last.dtype == torch.bfloat16 and head.dtype == torch.bfloat16
    with _bfloat16_products(exact and last.device.type == "cpu"):
        for column in range(0, len(head), COLUMNS):
            part = head[column : column + COLUMNS]
            weight = part if exact and last.device.type == "cuda" else part.float()
            for row in range(0, count, ROWS):
                here = slice(row, row + ROWS)
                if exact and last.device.type == "cuda":
                    logits = torch.mm(last[here], weight.T, out_dtype=torch.float32)
                else:
                    logits = last[here].float() @ weight.T
                high, where = logits.max(dim=1)
                higher = high > best[here]
                top = torch.maximum(high, best[here])
                # Sums are kept relative to the highest logit so far, so that no exponential overflows.
                total[here] = total[here] * torch.exp(best[here] - top) + logits.sub_(top[:, None]).exp_().sum(dim=1)
                argmax[here] = torch.where(higher, where + column, argmax[here])
                best[here] = top
    return argmax.int(), best + total.log()


@contextmanager
def _bfloat16_products(allowed: bool) -> Iterator[None]:
    """Lets the CPU multiply float32 matrices through bfloat16 instructions, with float32 sums and results.

    When both operands came from bfloat16 nothing is lost by it, and AVX512-BF16 does it in half the time.
    """
    setting: Any = getattr(torch.backends.mkldnn, "matmul", None)
    if setting is None or not allowed:
        yield
        return
    before = setting.fp32_precision
    setting.fp32_precision = "bf16"
    try:
        yield
    finally:
        setting.fp32_precision = before
