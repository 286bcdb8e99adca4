"""Soft cross-entropy between verifier and drafter on the draft vocabulary, in chunks that never hold [rows, Vd] at
once.

The teacher of a row is the verifier's own distribution, p(v) = exp(logit_v) / sum over the whole vocabulary, kept for
the draft vocabulary only and not renormalised: loss = -sum over Vd of p(v) log q(v). What the verifier gives to
tokens outside the draft vocabulary can't be drafted, so such rows weigh as much as the part that can. The whole
vocabulary enters through the stored log-sum-exp. Imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CPU_CHUNK, GPU_CHUNK = 1 << 22, 1 << 27
"""Logits held at once."""


@dataclass(frozen=True)
class Teacher:
    """The verifier's side of one batch: last [U, H] final-norm states, head [Vd, H] (rows of the draft vocabulary) in
    the compute dtype, logsumexp [U] fp32 over the whole vocabulary.
    """

    last: Tensor
    head: Tensor
    logsumexp: Tensor


def soft_targets(teacher: Teacher, part: slice) -> tuple[Tensor, Tensor]:
    """([rows of part, Vd] fp32 probabilities, their sums [rows]: the mass of the draft vocabulary, at most 1)."""
    logits = (teacher.last[part].to(teacher.head.dtype) @ teacher.head.t()).float()
    highest = logits.amax(-1)
    shares = logits.sub_(highest.unsqueeze(-1)).exp_()
    total = shares.sum(-1)
    # Rounded states can put the mass a little above 1: then the distribution is just normalised.
    mass = torch.exp(highest + total.log() - teacher.logsumexp[part].float()).clamp_(max=1.0)
    return shares.mul_((mass / total).unsqueeze(-1)), mass


class _HeadLoss(torch.autograd.Function):
    """The gradients are made in the forward pass, chunk by chunk, and scaled in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, head: Tensor, weights: Tensor, teacher: Teacher, wanted: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        rows, steps, size = states.shape
        dtype = teacher.head.dtype
        low_head = head.to(dtype)
        budget = CPU_CHUNK if states.device.type == "cpu" else GPU_CHUNK
        chunk = max(1, min(rows, budget // (steps * head.shape[0])))
        losses = torch.zeros(rows, steps, device=states.device)
        predicted = torch.empty(rows, steps, dtype=torch.int64, device=states.device)
        dstates = torch.empty(rows, steps, size, dtype=dtype, device=states.device) if wanted else None
        dhead = torch.zeros(head.shape, dtype=torch.float32, device=head.device) if wanted else None
        for start in range(0, rows, chunk):
            part = slice(start, min(start + chunk, rows))
            target, mass = soft_targets(teacher, part)
            own = states[part].to(dtype).flatten(0, 1)
            logits = (own @ low_head.t()).float().view(-1, steps, len(head))  # [u, steps, Vd]
            highest, predicted[part] = logits.max(-1)
            agreed = torch.bmm(logits, target.unsqueeze(-1)).squeeze(-1)
            shares = logits.sub_(highest.unsqueeze(-1)).exp_()
            total = shares.sum(-1)
            losses[part] = mass.unsqueeze(-1) * (highest + total.log()) - agreed
            if dstates is None or dhead is None:
                continue
            weight = weights[part].unsqueeze(-1)
            shares.mul_(weight * (mass.unsqueeze(-1) / total).unsqueeze(-1))
            slope = shares.sub_(target.unsqueeze(1) * weight).to(dtype).flatten(0, 1)
            dstates[part] = (slope @ low_head).view(-1, steps, size)
            dhead += slope.t() @ own
        if dstates is not None and dhead is not None:
            ctx.save_for_backward(dstates, dhead)
        ctx.mark_non_differentiable(losses, predicted)
        return (losses * weights).sum(), losses, predicted

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        dstates, dhead = ctx.saved_tensors
        return dstates * grads[0].to(dstates.dtype), dhead * grads[0], None, None, None


def head_loss(states: Tensor, head: Tensor, weights: Tensor, teacher: Teacher) -> tuple[Tensor, Tensor, Tensor]:
    """(weighted sum of the losses, losses [U, K] detached, argmax [U, K] as draft ids).

    states [U, K, H]: normed drafter states, row u of step k judged by teacher row u; head [Vd, H]; weights [U, K]
    fp32, 0 where there is no pair. A row outside the mask costs a product but adds nothing.
    """
    wanted = torch.is_grad_enabled()
    result: tuple[Tensor, Tensor, Tensor] = _HeadLoss.apply(states, head, weights, teacher, wanted)  # type: ignore[no-untyped-call]
    return result
