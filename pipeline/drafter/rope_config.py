"""Rotary positions as a config.json names them, in the form of transformers 4 or 5. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KNOWN_ROPE = ("default", "linear", "llama3", "yarn")
"""Rotary types that SGLang 0.5.23, vLLM 0.32 and `pipeline.drafter.rope` compute alike for a Llama layer."""
ROPE_KEYS = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow"),
}


def rope_kind(config: Mapping[str, Any]) -> str:
    """The type of rotary positions that a config names, in the form of transformers 4 or 5."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    return str(scaling.get("rope_type") or scaling.get("type") or "default")


def read_rope(config: Mapping[str, Any]) -> tuple[float, dict[str, Any] | None]:
    """(theta, scaling) of a config in the form of transformers 4 or 5.

    A type outside KNOWN_ROPE gives no scaling: the drafter's positions need not be the verifier's, only the same in
    training and serving. Keys that the engines read differently (mscale and others) are left out for the same reason.
    """
    parameters = config.get("rope_parameters") or {}
    scaling = dict(config.get("rope_scaling") or parameters)
    theta = parameters.get("rope_theta", config.get("rope_theta", scaling.get("rope_theta")))
    kind = rope_kind(config)
    if kind not in ROPE_KEYS or "factor" not in scaling:
        return float(theta or 10000.0), None
    kept = {key: scaling[key] for key in ROPE_KEYS[kind] if scaling.get(key) is not None}
    if "original_max_position_embeddings" in ROPE_KEYS[kind]:
        kept.setdefault("original_max_position_embeddings", config.get("max_position_embeddings", 2048))
    return float(theta or 10000.0), {"rope_type": kind, **kept}
