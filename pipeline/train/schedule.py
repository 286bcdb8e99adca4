"""The learning rate as a pure function of the step. Imports nothing of ours."""

from __future__ import annotations

import math


def learning_rate(step: int, total: int, peak: float, warmup_ratio: float) -> float:
    """Rate of step 0 … total-1: rises linearly over the first share of the steps, then falls to 0 along a half
    cosine.
    """
    warmup = round(total * warmup_ratio)
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    progress = (step - warmup) / max(1, total - warmup)
    return peak * 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))
