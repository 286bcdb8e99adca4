"""Which token comes next: greedy, or drawn with a temperature and top-p, for all rows at once. Imports torch.

Each row draws from its own generator, so what it draws does not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import torch
from torch import Tensor

from pipeline.engine.row import Sampling

_NUCLEUS = 256
"""Likeliest tokens looked at first for top-p; all of the vocabulary only where their sum stays below it."""


def choose(logits: Tensor, samplings: Sequence[Sampling], generators: Sequence[Random]) -> list[int]:
    """The next token of each row of logits [rows, V]."""
    drawn = [row for row, sampling in enumerate(samplings) if sampling.temperature > 0]
    chosen: list[int] = logits.argmax(-1).tolist() if len(drawn) < len(samplings) else [0] * len(samplings)
    if drawn:
        device = logits.device
        picked = logits.float() if len(drawn) == len(samplings) else logits[torch.tensor(drawn, device=device)].float()
        heat = torch.tensor([samplings[row].temperature for row in drawn], device=device).unsqueeze(1)
        top_p = torch.tensor([samplings[row].top_p for row in drawn], device=device).unsqueeze(1)
        points = torch.tensor([generators[row].random() for row in drawn], device=device).unsqueeze(1)
        for row, token in zip(drawn, _draw((picked / heat).softmax(-1), top_p, points).tolist()):
            chosen[row] = token
    return chosen


def _draw(probabilities: Tensor, top_p: Tensor, points: Tensor) -> Tensor:
    """Inverse-distribution draw within the nucleus: the fewest likeliest tokens whose sum reaches top_p [rows, 1].

    probabilities [rows, V]; points [rows, 1] in [0, 1); result [rows].
    """
    if bool((top_p >= 1).all()):
        return _invert(probabilities, points)
    for count in (_NUCLEUS, probabilities.shape[1]):
        ordered, tokens = probabilities.topk(min(count, probabilities.shape[1]), dim=-1)
        if count >= probabilities.shape[1] or bool((ordered.sum(-1, keepdim=True) >= top_p).all()):
            break
    before = ordered.cumsum(-1) - ordered
    nucleus = ordered.masked_fill(before >= top_p, 0.0)
    return tokens.gather(1, _invert(nucleus, points).unsqueeze(1)).squeeze(1)


def _invert(weights: Tensor, points: Tensor) -> Tensor:
    """The first index where the running share of weights [rows, n] exceeds the point: never one of weight zero."""
    sums = weights.cumsum(-1)
    reached = sums <= points * sums[:, -1:]
    index = reached.sum(-1)
    last = (weights > 0).long().cumsum(-1).argmax(-1)
    return torch.minimum(index, last)
