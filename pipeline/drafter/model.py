"""The EAGLE-3 drafter as SGLang and vLLM compute it (`LlamaForCausalLMEagle3`), and its forward pass for training.

fc over the three captured states, one Llama decoder layer whose attention reads [norm(embedding); norm(hidden)], a
final norm and a head over the draft vocabulary. The residual is the raw hidden state, and the state handed to the
next draft step is the one before the final norm. Parameter names are those of the exported file. Imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.drafter.attention import Block, ttt_attention
from pipeline.drafter.config import DrafterConfig
from pipeline.drafter.rope import rotary_tables, rotate


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension, computed and returned in fp32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, states: Tensor) -> Tensor:
        return F.rms_norm(states.float(), self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):
    """Projections of a grouped-query attention whose input is 2H wide."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        wide, bias = 2 * config.hidden_size, config.attention_bias
        self.q_proj = nn.Linear(wide, self.heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(wide, self.kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(wide, self.kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=bias)

    def query(self, states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """[N, 2H] -> [N, heads, head_dim], rotated."""
        q = self.q_proj(states)
        return rotate(q.unflatten(-1, (self.heads, self.head_dim)).float(), cosine, sine).to(q.dtype)

    def key_value(self, states: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
        """[N, 2H] -> keys (rotated) and values, each [N, kv_heads, head_dim]."""
        k = self.k_proj(states)
        key = rotate(k.unflatten(-1, (self.kv_heads, self.head_dim)).float(), cosine, sine).to(k.dtype)
        return key, self.v_proj(states).unflatten(-1, (self.kv_heads, self.head_dim))


class MLP(nn.Module):
    """Llama's gated MLP."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(states)) * self.up_proj(states))
        return out


class MidLayer(nn.Module):
    """The drafter's decoder layer."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(size, eps)
        self.hidden_norm = RMSNorm(size, eps)
        self.post_attention_layernorm = RMSNorm(size, eps)

    def attention_input(self, embeddings: Tensor, hidden: Tensor) -> Tensor:
        """[N, H] and [N, H] -> [N, 2H]."""
        return torch.cat((self.input_layernorm(embeddings), self.hidden_norm(hidden)), dim=-1)

    def finish(self, attended: Tensor, hidden: Tensor) -> Tensor:
        """Output projection, residual and MLP: [N, heads, head_dim] and the raw hidden [N, H] -> next hidden [N, H]
        fp32.
        """
        residual = hidden.float() + self.self_attn.o_proj(attended.flatten(1))
        out: Tensor = residual + self.mlp(self.post_attention_layernorm(residual))
        return out


class Drafter(nn.Module):
    """Trained parameters of a drafter. Embeddings are the verifier's and stay outside."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(config.fc_inputs, config.hidden_size, bias=False)
        self.midlayer = MidLayer(config)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self._tables: tuple[Tensor, Tensor] | None = None

    def rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [N, head_dim] of positions [N]."""
        needed = int(positions.max()) + 1 if positions.numel() else 1
        if self._tables is None or len(self._tables[0]) < needed or self._tables[0].device != positions.device:
            self._tables = rotary_tables(self.config, max(needed, 2048), positions.device)
        return self._tables[0][positions], self._tables[1][positions]

    def ttt_states(
        self,
        aux: Tensor,
        embeddings: Tensor,
        rows: Tensor,
        positions: Tensor,
        later: Sequence[Tensor],
        blocks: list[Block],
    ) -> list[Tensor]:
        """Hidden states before the final norm at every TTT step, each [S, H] fp32, of the S rows that are supervised.

        aux [T, 3H]: the verifier's captured states of all packed rows; embeddings [T, H] of each row's next token;
        rows [S] int64: the supervised rows; positions [T] int64 within each sequence; later: for step k = 1 … the
        embeddings [S, H] of token t+1+k; blocks: `plan_blocks` of the supervised positions.
        """
        layer, attention = self.midlayer, self.midlayer.self_attn
        combined = self.fc(aux)
        inputs = layer.attention_input(embeddings, combined)
        cosine, sine = self.rotary(positions)
        key, value = attention.key_value(inputs, cosine, sine)
        query = attention.query(inputs[rows], cosine[rows], sine[rows])
        hidden = layer.finish(ttt_attention(query, key, value, blocks), combined[rows])
        states, diagonal = [hidden], []
        for step, embedding in enumerate(later, 1):
            cosine, sine = self.rotary(positions[rows] + step)
            inputs = layer.attention_input(embedding, hidden)
            query = attention.query(inputs, cosine, sine)
            diagonal.append(attention.key_value(inputs, cosine, sine))
            hidden = layer.finish(ttt_attention(query, key, value, blocks, diagonal), hidden)
            states.append(hidden)
        return states
