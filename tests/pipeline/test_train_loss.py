"""The chunked loss against plain autograd over whole matrices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pipeline.train.loss import Teacher, head_loss, soft_targets

U, K, H, VD, V = 11, 3, 8, 20, 33


def problem(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Teacher, Tensor]:
    """states, head, weights, teacher, and the verifier's logits over its whole vocabulary."""
    torch.manual_seed(seed)
    whole = torch.randn(V, H)
    last = torch.randn(U, H)
    logits = last @ whole.t()
    teacher = Teacher(last, whole[:VD].clone(), logits.logsumexp(-1))
    weights = (torch.rand(U, K) > 0.3) * torch.rand(U, K)
    return torch.randn(U, K, H), torch.randn(VD, H), weights, teacher, logits


@pytest.mark.parametrize("budget", [1, 2 * K * VD, 1 << 22])
def test_loss_and_gradients_are_those_of_the_formula(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.train.loss.CPU_CHUNK", budget)
    states, head, weights, teacher, logits = problem()
    states.requires_grad_(), head.requires_grad_()
    loss, losses, predicted = head_loss(states, head, weights, teacher)
    (loss * 1.7).backward()
    found = states.grad, head.grad
    states.grad = head.grad = None
    probabilities = logits.softmax(-1)[:, :VD]  # of the whole vocabulary, not renormalised
    student = (states @ head.t()).log_softmax(-1)
    naive = -(probabilities.unsqueeze(1) * student).sum(-1)
    ((naive * weights).sum() * 1.7).backward()
    torch.testing.assert_close(losses, naive.detach())
    torch.testing.assert_close(loss.detach(), (naive * weights).sum().detach())
    torch.testing.assert_close(found[0], states.grad)
    torch.testing.assert_close(found[1], head.grad)
    assert torch.equal(predicted, (states @ head.t()).argmax(-1))


def test_bfloat16_products_stay_close() -> None:
    states, head, weights, teacher, _ = problem()
    exact, _, _ = head_loss(states, head, weights, teacher)
    low, _, _ = head_loss(states, head, weights, Teacher(teacher.last, teacher.head.bfloat16(), teacher.logsumexp))
    assert float(low) == pytest.approx(float(exact), rel=0.02)


def test_the_teacher_keeps_only_the_mass_of_the_draft_vocabulary() -> None:
    _, _, _, teacher, logits = problem()
    targets, mass = soft_targets(teacher, slice(0, U))
    torch.testing.assert_close(targets, logits.softmax(-1)[:, :VD])
    torch.testing.assert_close(mass, targets.sum(-1))
    # a log-sum-exp below the draft vocabulary's own can only come from rounding
    low = Teacher(teacher.last, teacher.head, teacher.logsumexp - 100)
    assert torch.allclose(soft_targets(low, slice(0, U))[0].sum(-1), torch.ones(U))


def test_validation_computes_no_gradient() -> None:
    states, head, weights, teacher, _ = problem()
    head.requires_grad_()
    with torch.no_grad():
        loss, _, _ = head_loss(states, head, weights, teacher)
    assert not loss.requires_grad
