"""The drafter while serving: batched forward passes over its own key-value cache, rows of different lengths side by
side.

A slot's index in the cache is its position, so writing a slot again replaces what a rejected draft left there, and
"keys up to my own position" is the whole mask: nothing ever has to be rolled back. Imports torch and pipeline.drafter.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.drafter.model import Drafter
from pipeline.drafter.rope import rotary_tables

GROWTH = 128
"""Slots that a cache grows by at least."""


class SlotCache:
    """Keys and values of one layer: [B, kv_heads, slots, head_dim], written at each row's own positions."""

    def __init__(self) -> None:
        self.keys = self.values = torch.empty(0)

    def write(self, key: Tensor, value: Tensor, rows: Tensor, positions: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Stores key, value [B, kv_heads, n, head_dim] at positions [B, n] (rows [B, 1] counts them); gives all slots
        below length. Slots that were never written hold zeros."""
        if self.keys.dim() < 4 or self.keys.shape[2] < length:
            batch, heads, _, size = key.shape
            room = -(-length // GROWTH) * GROWTH + GROWTH
            grown = torch.zeros(2, batch, heads, room, size, dtype=key.dtype, device=key.device)
            if self.keys.dim() == 4:
                grown[0, :, :, : self.keys.shape[2]] = self.keys
                grown[1, :, :, : self.values.shape[2]] = self.values
            self.keys, self.values = grown[0], grown[1]
        self.keys[rows, :, positions] = key.transpose(1, 2)
        self.values[rows, :, positions] = value.transpose(1, 2)
        return self.keys[:, :, :length], self.values[:, :, :length]

    def keep(self, rows: Tensor) -> None:
        """Drops all rows but these."""
        self.keys, self.values = self.keys[rows], self.values[rows]


def causal_mask(positions: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """[B, 1, n, length] to add to scores: 0 for slots up to the query's own position [B, n], the lowest number
    beyond.
    """
    beyond = torch.arange(length, device=positions.device) > positions[:, None, :, None]
    return torch.zeros(beyond.shape, dtype=dtype, device=positions.device).masked_fill_(beyond, torch.finfo(dtype).min)


class ServingDrafter:
    """A drafter's weights fused for decoding, in the verifier's dtype and on its device.

    embed_tokens [V, H]: the verifier's embeddings; tokens [Vd]: the verifier's id of each draft id.
    """

    def __init__(self, drafter: Drafter, tokens: Tensor, embed_tokens: Tensor, positions: int) -> None:
        dtype, device = embed_tokens.dtype, embed_tokens.device
        config, layer = drafter.config, drafter.midlayer
        attention = layer.self_attn

        def take(*parameters: Tensor) -> Tensor:
            return torch.cat([parameter.detach().to(device, dtype) for parameter in parameters])

        self.embed_tokens, self.tokens = embed_tokens, tokens.to(device)
        self.heads, self.kv_heads, self.head_dim = attention.heads, attention.kv_heads, attention.head_dim
        self.eps, self.size = config.rms_norm_eps, config.hidden_size
        self.fc, self.head = take(drafter.fc.weight), take(drafter.lm_head.weight)
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        self.qkv = take(*(one.weight for one in projections))
        self.qkv_bias = take(*(one.bias for one in projections)) if config.attention_bias else None
        self.out, self.out_bias = take(attention.o_proj.weight), None
        if config.attention_bias:
            self.out_bias = take(attention.o_proj.bias)
        self.gate_up, self.down = (
            take(layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight),
            take(layer.mlp.down_proj.weight),
        )
        self.norms = tuple(
            take(norm.weight)
            for norm in (layer.input_layernorm, layer.hidden_norm, layer.post_attention_layernorm, drafter.norm)
        )
        cosine, sine = rotary_tables(config, positions, device)
        # The second half of a head turns the other way: its sign goes into the table.
        half = self.head_dim // 2
        self.cosine = cosine.to(dtype)
        self.sine = torch.cat((-sine[:, :half], sine[:, half:]), -1).to(dtype)
        self.cache = SlotCache()

    def forget(self) -> None:
        """Starts a new batch."""
        self.cache = SlotCache()

    def combine(self, aux: Tensor) -> Tensor:
        """Captured states [..., 3H] -> the drafter's hidden input [..., H]."""
        return F.linear(aux, self.fc)

    def forward(self, hidden: Tensor, ids: Tensor, rows: Tensor, positions: Tensor, length: int) -> Tensor:
        """One pass over n slots a row: hidden, [B, n, H], and ids [B, n] of the next tokens, at positions [B, n] below
        length. Gives the states before the final norm [B, n, H]."""
        batch, count = ids.shape
        embedded, hidden_norm, after, _ = self.norms
        inputs = torch.cat(
            (
                F.rms_norm(F.embedding(ids, self.embed_tokens), (self.size,), embedded, self.eps),
                F.rms_norm(hidden, (self.size,), hidden_norm, self.eps),
            ),
            -1,
        )
        qkv = F.linear(inputs, self.qkv, self.qkv_bias).view(batch, count, -1, self.head_dim)
        turning = self.heads + self.kv_heads
        states, value = qkv[:, :, :turning], qkv[:, :, turning:]
        cosine, sine = self.cosine[positions].unsqueeze(2), self.sine[positions].unsqueeze(2)
        states = states * cosine + states.roll(self.head_dim // 2, -1) * sine
        key, value = self.cache.write(
            states[:, :, self.heads :].transpose(1, 2), value.transpose(1, 2), rows, positions, length
        )
        attended = F.scaled_dot_product_attention(
            states[:, :, : self.heads].transpose(1, 2),
            key,
            value,
            attn_mask=causal_mask(positions, length, hidden.dtype),
            enable_gqa=True,
        )
        hidden = hidden + F.linear(attended.transpose(1, 2).reshape(batch, count, -1), self.out, self.out_bias)
        gate, up = F.linear(F.rms_norm(hidden, (self.size,), after, self.eps), self.gate_up).chunk(2, -1)
        return hidden + F.linear(F.silu(gate) * up, self.down)

    def propose(self, hidden: Tensor) -> Tensor:
        """States before the final norm [..., H] -> the verifier's ids [...] of the likeliest draft tokens."""
        normed = F.rms_norm(hidden, (self.size,), self.norms[3], self.eps)
        return self.tokens[F.linear(normed, self.head).argmax(-1)]
