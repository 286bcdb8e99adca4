"""Which attention heads a drafter gets: its verifier's, unless engines would refuse a Llama layer that has them.

The exported config says model_type llama, and transformers 5 (so SGLang and vLLM, which read it through transformers)
refuses a LlamaConfig whose hidden size is no multiple of its heads. GLM-4.5-Air (4096 wide, 96 heads) and
glm4_moe_lite (2048 wide, 20 heads, latent attention) are such verifiers. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass

WIDTHS = (128, 64)
"""Head sizes that every attention kernel of both engines has, the better one first."""
GRANULE = 8
"""Kernels want head sizes in multiples of it (FlashAttention: head_size % 8 == 0)."""


@dataclass(frozen=True)
class Heads:
    """Query heads, key heads and elements of a head."""

    query: int
    key: int
    size: int


def drafter_heads(hidden: int, heads: int, key_heads: int, head_dim: int, latent: bool) -> Heads | None:
    """Heads of the drafter of a verifier `hidden` elements wide; None when no head size divides that width.

    key_heads and head_dim are what the verifier's config says, 0 where it says nothing. A latent-attention verifier
    has no key heads of its own: one for each query head.
    """
    size = hidden // heads if latent else head_dim or hidden // heads
    if hidden % heads == 0 and not (latent and size % GRANULE):
        return Heads(heads, heads if latent else key_heads or heads, size)
    fitting = (width for width in (*WIDTHS, *range(WIDTHS[0], 0, -GRANULE)) if hidden % width == 0)
    width = next(fitting, 0)
    if not width:
        return None
    query = hidden // width
    wanted = query if latent else key_heads or query
    key = next(count for count in range(min(wanted, query), 0, -1) if query % count == 0)
    return Heads(query, key, width)
