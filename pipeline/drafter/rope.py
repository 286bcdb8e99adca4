"""Rotary positions of the drafter: the same cosines and sines that SGLang and vLLM compute for a Llama layer.

Imports torch. Formulas: RoFormer (arXiv 2104.09864), "llama3" of Llama 3.1's reference code, YaRN (arXiv 2309.00071).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pipeline.drafter.config import DrafterConfig


def inverse_frequencies(config: DrafterConfig) -> tuple[Tensor, float]:
    """([head_dim/2] fp32 radians a position, factor on cosine and sine)."""
    dim, base = config.head_dim, config.rope_theta
    plain = 1.0 / base ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    scaling = config.rope_scaling
    if scaling is None:
        return plain, 1.0
    kind, factor = scaling["rope_type"], float(scaling["factor"])
    if kind == "linear":
        return plain / factor, 1.0
    if kind == "llama3":
        return _llama3(plain, scaling), 1.0
    return _yarn(plain, scaling, dim, base), 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0


def rotary_tables(config: DrafterConfig, positions: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Cosines and sines of positions 0 … positions-1: two [positions, head_dim] fp32 tables."""
    frequencies, factor = inverse_frequencies(config)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    angles = torch.cat((angles, angles), dim=-1)
    return (angles.cos() * factor).to(device), (angles.sin() * factor).to(device)


def rotate(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Applies rotary positions to [..., heads, head_dim] with tables [..., head_dim] of the same leading shape.

    The two halves of a head are paired (GPT-NeoX style, as Llama checkpoints are stored).
    """
    half = states.shape[-1] // 2
    turned = torch.cat((-states[..., half:], states[..., :half]), dim=-1)
    return states * cosine.unsqueeze(-2) + turned * sine.unsqueeze(-2)


def _llama3(plain: Tensor, scaling: Mapping[str, Any]) -> Tensor:
    factor, original = float(scaling["factor"]), float(scaling["original_max_position_embeddings"])
    low, high = float(scaling.get("low_freq_factor", 1.0)), float(scaling.get("high_freq_factor", 4.0))
    wavelength = 2 * math.pi / plain
    smooth = (original / wavelength - low) / (high - low)
    between = (1 - smooth) * plain / factor + smooth * plain
    scaled = torch.where(wavelength > original / low, plain / factor, between)
    return torch.where(wavelength < original / high, plain, scaled)


def _yarn(plain: Tensor, scaling: Mapping[str, Any], dim: int, base: float) -> Tensor:
    factor, original = float(scaling["factor"]), float(scaling["original_max_position_embeddings"])
    fast, slow = float(scaling.get("beta_fast", 32.0)), float(scaling.get("beta_slow", 1.0))

    def dimension(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(math.floor(dimension(fast)), 0), min(math.ceil(dimension(slow)), dim - 1)
    ramp = (torch.arange(dim // 2, dtype=torch.float32) - low) / max(high - low, 1e-3)
    keep = 1 - ramp.clamp(0, 1)
    return plain / factor * (1 - keep) + plain * keep
