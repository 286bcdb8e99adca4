"""How a drafter's config.json names the captured layers to each engine. Standard library only.

Layer k means here the residual stream that enters layer k. vLLM reads the top-level key and means the same; SGLang
reads the one nested in eagle_config, which names layers by their output, so k - 1 (sglang 0.5.23 models/llama.py,
qwen3.py: ids + 1). For DeepSeek-class verifiers, whose attention is latent, SGLang adds 1 only where the first id is 1
and takes the ids as they are otherwise (models/deepseek_v2.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

KEY = "eagle_aux_hidden_state_layer_ids"


def nested_ids(config: Mapping[str, Any]) -> Any:
    """What SGLang reads, as it stands in the file; None where nothing does."""
    nested = config.get("eagle_config")
    return nested.get(KEY) if isinstance(nested, dict) else None


def sglang_layers(ids: Sequence[int], latent: bool) -> list[int]:
    """The layers that SGLang captures for nested ids."""
    shift = 1 if not latent or list(ids[:1]) == [1] else 0
    return [one + shift for one in ids]


def written_layers(config: Mapping[str, Any], latent: bool) -> list[list[int]]:
    """What the two engines would capture by a config.json: nothing (both take their default), one list, or two that
    differ. latent: whether the verifier's attention is. Raises ValueError for ids that are no whole numbers.
    """
    outer, inner = config.get(KEY), nested_ids(config)
    for ids in (outer, inner):
        if ids is not None and not (isinstance(ids, list) and all(type(one) is int for one in ids)):
            raise ValueError(f"{KEY} is {ids!r}")
    found = [list(outer)] if outer else []
    seen = sglang_layers(inner, latent) if inner else []
    return found + ([seen] if seen and seen not in found else [])
