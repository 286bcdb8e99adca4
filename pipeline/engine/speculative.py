"""Chain speculative decoding, greedy and batched: the drafter proposes k tokens a row, one pass of the verifier
judges them.

Rows accept different numbers of drafts and stay in one batch: every row writes its own cache slots (slot = position),
so a rejected token's slot is simply written again. As in SGLang and vLLM the drafter's slot t holds (captured states
at t, embedding of x_{t+1}); its first pass covers the whole prompt, later ones catch up with the accepted tokens from
the verifier's true states. Imports torch and pipeline.drafter; the model is a transformers decoder handed in by the
engine.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.drafter.config import DrafterError
from pipeline.drafter.initial import load_drafter
from pipeline.drafter.serving import ServingDrafter, SlotCache, causal_mask

SHRINK = 0.75
"""Finished rows leave the batch once this share of it, or less, is still at work."""


@dataclass(frozen=True)
class Generated:
    """The answer to one prompt: token ids with the stop token, and "stop" or "length"."""

    ids: list[int]
    finish_reason: str


@dataclass
class Counters:
    """Sums since the start, counted as vLLM does: by verification, before an answer is cut at a stop token or its
    length.

    drafts: verifications; accepted_per_pos[i]: verifications that accepted the draft at position i.
    """

    drafts: int = 0
    draft_tokens: int = 0
    accepted: int = 0
    accepted_per_pos: list[int] = field(default_factory=list)


class SpeculativeDecoder:
    """A verifier with a drafter. `generate` may be called again and again, from one thread at a time."""

    def __init__(self, model: Any, drafter_dir: Path | str, k: int) -> None:
        """model: a transformers causal language model in evaluation mode. Raises DrafterError when the drafter does not
        fit it."""
        drafter, vocabulary = load_drafter(Path(drafter_dir))
        embed: Tensor = model.get_input_embeddings().weight
        if tuple(embed.shape) != (drafter.config.vocab_size, drafter.config.hidden_size):
            raise DrafterError(
                f"The drafter in {drafter_dir} is made for {drafter.config.vocab_size} tokens of width "
                f"{drafter.config.hidden_size}, the verifier has {tuple(embed.shape)}",
                "Serve the verifier that it was trained for",
            )
        if k < 1:
            raise DrafterError(f"{k} draft tokens are too few", "Draft at least 1")
        self.k = k
        self.counters = Counters(accepted_per_pos=[0] * k)
        text = model.config.get_text_config()
        self._verifier = _Verifier(model, drafter.config.captured(text.num_hidden_layers))
        longest = max(drafter.config.max_position_embeddings, text.max_position_embeddings)
        self._drafter = ServingDrafter(drafter, vocabulary.tokens, embed.detach(), longest + k + 1)

    @torch.inference_mode()
    def generate(
        self, prompts: Sequence[Sequence[int]], max_tokens: Sequence[int], stop_ids: set[int]
    ) -> list[Generated]:
        """Greedy answers to prompts of token ids, each of at most its max_tokens (at least 1)."""
        batch = _Batch(prompts, max_tokens, stop_ids, self._verifier.device)
        self._verifier.forget()
        self._drafter.forget()
        draft, ids, positions = self._prefill(batch)
        while batch.active:
            draft, ids, positions = self._shrink(batch, draft, ids, positions)
            draft, ids, positions = self._round(batch, draft, ids, positions)
        return [Generated(out, reason) for out, reason in zip(batch.outputs, batch.reasons)]

    def _prefill(self, batch: _Batch) -> tuple[Tensor, Tensor, Tensor]:
        """(first draft [B], the verifier's token before it [B], position of that token [B]); its state is kept."""
        ids, positions, lengths = batch.prompt_ids, batch.prompt_positions, batch.lengths
        width = ids.shape[1]
        last, aux = self._verifier.forward(ids, batch.rows, positions, width)
        ends = (batch.rows.squeeze(1), lengths - 1)
        given = self._verifier.judge(last[ends])
        following = torch.cat((ids[:, 1:], ids[:, :1]), 1)
        following[ends] = given
        hidden = self._drafter.forward(self._drafter.combine(aux), following, batch.rows, positions, width)
        self._state = hidden[ends]
        batch.take(given.unsqueeze(1).tolist(), [0] * len(batch.active))
        return self._drafter.propose(self._state), given, lengths

    def _round(self, batch: _Batch, draft: Tensor, given: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Drafts the rest of the chain, verifies it, catches up. given [B] is the newest token, at positions [B]."""
        k, rows, drafter = self.k, batch.rows, self._drafter
        reach = int(positions.max()) + k + 1
        chain, state = [given, draft], self._state.unsqueeze(1)
        for step in range(k - 1):
            at = (positions + step).unsqueeze(1)
            state = drafter.forward(state, chain[-1].unsqueeze(1), rows, at, reach)
            chain.append(drafter.propose(state[:, 0]))
        offered = torch.stack(chain, 1)  # [B, k+1]
        places = positions.unsqueeze(1) + batch.steps(k + 1)
        last, aux = self._verifier.forward(offered, rows, places, reach)
        judged = self._verifier.judge(last)  # [B, k+1]: what follows each of the offered tokens
        accepted = (judged[:, :-1] == offered[:, 1:]).int().cumprod(1).sum(1)
        hidden = drafter.forward(drafter.combine(aux), judged, rows, places, reach)
        ends = (rows.squeeze(1), accepted)
        self._state = hidden[ends]
        counts = accepted.tolist()
        self._count([count for count, row in zip(counts, batch.slots) if batch.open[row]])
        batch.take(judged.tolist(), counts)
        return drafter.propose(self._state), judged[ends], positions + accepted + 1

    def _shrink(self, batch: _Batch, draft: Tensor, given: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Drops finished rows from the caches once there are enough of them."""
        if len(batch.active) > SHRINK * len(batch.slots):
            return draft, given, positions
        kept = batch.shrink()
        for cache in (*self._verifier.caches, self._drafter.cache):
            cache.keep(kept)
        self._state = self._state[kept]
        return draft[kept], given[kept], positions[kept]

    def _count(self, accepted: list[int]) -> None:
        counters = self.counters
        counters.drafts += len(accepted)
        counters.draft_tokens += self.k * len(accepted)
        counters.accepted += sum(accepted)
        for position in range(self.k):
            counters.accepted_per_pos[position] += sum(count > position for count in accepted)


class _Batch:
    """The rows at work. slots: the prompt's number of each row in the batch; open: whether a prompt still needs
    tokens.
    """

    def __init__(
        self, prompts: Sequence[Sequence[int]], max_tokens: Sequence[int], stop_ids: set[int], device: torch.device
    ) -> None:
        self.limits, self.stop_ids = list(max_tokens), stop_ids
        self.outputs: list[list[int]] = [[] for _ in prompts]
        self.reasons = [""] * len(prompts)
        self.slots = list(range(len(prompts)))
        self.open = [True] * len(prompts)
        self.lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        width = int(self.lengths.max()) if len(prompts) else 0
        self.prompt_ids = torch.tensor([[*prompt, *[0] * (width - len(prompt))] for prompt in prompts], device=device)
        self.prompt_positions = torch.arange(width, device=device).expand(len(prompts), width)
        self.rows = torch.arange(len(prompts), device=device).unsqueeze(1)
        self._steps: Tensor | None = None

    @property
    def active(self) -> list[int]:
        return [row for row, slot in enumerate(self.slots) if self.open[slot]]

    def steps(self, count: int) -> Tensor:
        if self._steps is None:
            self._steps = torch.arange(count, device=self.rows.device)
        return self._steps

    def take(self, judged: list[list[int]], accepted: list[int]) -> None:
        """Adds each row's accepted tokens and the one after them, up to a stop token or the prompt's limit."""
        for tokens, count, slot in zip(judged, accepted, self.slots):
            if not self.open[slot]:
                continue
            output, limit = self.outputs[slot], self.limits[slot]
            for token in tokens[: count + 1]:
                output.append(token)
                if token in self.stop_ids or len(output) >= limit:
                    self.open[slot] = False
                    self.reasons[slot] = "stop" if token in self.stop_ids else "length"
                    break

    def shrink(self) -> Tensor:
        """Keeps the open rows; gives their former numbers."""
        kept = self.active
        self.slots = [self.slots[row] for row in kept]
        self.rows = torch.arange(len(kept), device=self.rows.device).unsqueeze(1)
        return torch.tensor(kept, device=self.rows.device)


class _Verifier:
    """A transformers decoder over slot caches, with the captured states of its last pass."""

    def __init__(self, model: Any, aux_layers: Sequence[int]) -> None:
        self._decoder, self._head = model.get_decoder(), model.get_output_embeddings()
        self.device: torch.device = self._head.weight.device
        self._dtype: torch.dtype = self._head.weight.dtype
        # transformers 5.24 renamed the argument
        names = inspect.signature(inspect.unwrap(type(self._decoder).forward)).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._aux: dict[int, Tensor] = {}
        for layer in aux_layers:
            self._decoder.layers[layer].register_forward_pre_hook(self._keep(layer), with_kwargs=True)
        self.aux_layers = tuple(aux_layers)
        self.forget()

    def _keep(self, layer: int) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._aux[layer] = args[0] if args else kwargs["hidden_states"]

        return hook

    def forget(self) -> None:
        self.caches = [SlotCache() for _ in self._decoder.layers]

    def forward(self, ids: Tensor, rows: Tensor, positions: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """ids [B, n] at positions [B, n] below length: (last states after the final norm [B, n, H], aux [B, n, 3H])."""
        out = self._decoder(
            input_ids=ids,
            position_ids=positions,
            attention_mask=causal_mask(positions, length, self._dtype),
            use_cache=True,
            **{self._cache_name: _Slots(self.caches, rows, positions, length)},
        )
        return out.last_hidden_state, torch.cat([self._aux.pop(layer) for layer in self.aux_layers], -1)

    def judge(self, last: Tensor) -> Tensor:
        """The verifier's likeliest next tokens [...] of states [..., H]."""
        tokens: Tensor = self._head(last).argmax(-1)
        return tokens


class _Slots:
    """What transformers' attention layers see as their cache during one pass."""

    is_compileable = False

    def __init__(self, caches: list[SlotCache], rows: Tensor, positions: Tensor, length: int) -> None:
        self._caches, self._place = caches, (rows, positions, length)

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        return self._caches[layer_idx].write(key, value, *self._place)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._place[2]
