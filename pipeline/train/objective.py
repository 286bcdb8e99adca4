"""One batch through the drafter: loss, hits and, for validation, the serving walk. Imports torch and
pipeline.drafter.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.drafter.model import Drafter
from pipeline.shards import ShardStore
from pipeline.train.data import Batch, Corpus, validation_batches
from pipeline.train.loss import Teacher, head_loss
from pipeline.train.rows import serving_walk


@dataclass(frozen=True)
class Frozen:
    """What training needs of the verifier: embed_tokens [V, H], the head's rows of the draft vocabulary [Vd, H] in the
    compute dtype, tokens [Vd] int64 the verifier id of each draft id."""

    embed_tokens: Tensor
    head: Tensor
    tokens: Tensor
    compute: torch.dtype


@dataclass
class Tally:
    """Sums over the pairs of some batches; losses and hits are kept by TTT step."""

    steps: int
    loss: list[float] = field(default_factory=list)
    hits: list[float] = field(default_factory=list)
    pairs: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        for sums in (self.loss, self.hits, self.pairs):
            sums.extend([0.0] * (self.steps - len(sums)))

    def add(self, sums: Tensor) -> None:
        """sums [3, K]: losses, hits and pairs of a batch."""
        for into, values in zip((self.loss, self.hits, self.pairs), sums.tolist()):
            for step, value in enumerate(values):
                into[step] += value

    def values(self, kind: str) -> dict[str, float]:
        """{"train/loss": mean over all pairs, "train/acc_0": …} for kind train or val."""
        count = sum(self.pairs)
        found = {f"{kind}/loss": sum(self.loss) / count} if count else {}
        for step, (hits, pairs) in enumerate(zip(self.hits, self.pairs)):
            if pairs:
                found[f"{kind}/acc_{step}"] = hits / pairs
        return found


def run_batch(
    drafter: Drafter, frozen: Frozen, batch: Batch, decay: float, noise: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """(loss to minimise, sums [3, K] of losses, hits and pairs, proposed [U, K] verifier ids).

    The loss is the mean over the pairs, step k weighted by decay^k (and the weights' sum divided out). A hit is a
    proposal equal to the verifier's stored argmax over its whole vocabulary, so an argmax outside the draft
    vocabulary is a miss.
    noise: as aux, added to the captured states.
    """
    steps = batch.mask.shape[1]
    device = batch.aux.device.type
    aux = batch.aux if noise is None else batch.aux + noise
    with torch.autocast(device, dtype=torch.bfloat16, enabled=frozen.compute == torch.bfloat16):
        if frozen.compute != torch.bfloat16:
            aux = aux.float()
        embedded = F.embedding(batch.following, frozen.embed_tokens)
        later = [F.embedding(ids, frozen.embed_tokens) for ids in batch.later]
        states = drafter.ttt_states(aux, embedded, batch.rows, batch.positions, later, batch.blocks)
        # [K, S, H] -> [U, K, H]: the states that one teacher row judges lie side by side
        normed = drafter.norm(torch.cat(states))
    offsets = torch.arange(steps, device=batch.state.device) * len(batch.rows)
    gathered = normed.index_select(0, (batch.state + offsets).flatten()).view(*batch.state.shape, -1)
    scale = torch.tensor([decay**step for step in range(steps)], device=gathered.device)
    weights = batch.mask * scale
    weights = weights / weights.sum()
    teacher = Teacher(batch.last, frozen.head, batch.logsumexp)
    loss, losses, drafted = head_loss(gathered, drafter.lm_head.weight, weights, teacher)
    proposed = frozen.tokens[drafted]
    hits = (proposed == batch.argmax.unsqueeze(1)) & batch.mask
    sums = torch.stack(((losses * batch.mask).sum(0), hits.sum(0).float(), batch.mask.sum(0).float()))
    return loss, sums, proposed


@dataclass(frozen=True)
class Validation:
    """Means over the validation split. acceptance_length: 1 + accepted drafts per verification of the simulated
    serving.
    """

    tally: Tally
    verifications: int
    accepted: tuple[int, ...]

    @property
    def acceptance_length(self) -> float | None:
        return 1.0 + sum(self.accepted) / self.verifications if self.verifications else None

    def values(self) -> dict[str, float]:
        found = self.tally.values("val")
        if self.acceptance_length is not None:
            found["val/acceptance_length"] = self.acceptance_length
            for step, count in enumerate(self.accepted):
                found[f"val/rate_{step}"] = count / self.verifications
        return found


@torch.no_grad()
def validate(
    drafter: Drafter, frozen: Frozen, corpus: Corpus, numbers: list[int], batch_tokens: int, decay: float
) -> Validation:
    """Loss, accuracy and the serving walk over the validation sequences, against the server's own tokens."""
    tally, rounds, accepted = Tally(corpus.steps), 0, np.zeros(corpus.steps, dtype=np.int64)
    for batch in validation_batches(corpus, numbers, batch_tokens):
        _, sums, proposed = run_batch(drafter, frozen, batch, decay)
        tally.add(sums)
        right = ((proposed == batch.token.unsqueeze(1)) & batch.mask).cpu().numpy()
        for number, piece in zip(batch.sequences, batch.pieces):
            count, by_position = walk(corpus, number, right[piece])
            rounds += count
            accepted += by_position
    return Validation(tally, rounds, tuple(int(one) for one in accepted))


def walk(corpus: Corpus, number: int, right: np.ndarray) -> tuple[int, np.ndarray]:
    """The serving walk of one sequence: right [U, K] says whether the proposal judged by teacher u at step k was
    x_{u+1}.
    """
    pairs, sequence = corpus.pairs(number), corpus.store.sequence(number)
    count = corpus.lengths[number]
    hits = np.zeros((count, corpus.steps), dtype=bool)
    for step in range(corpus.steps):
        chosen = pairs.mask[:, step]
        hits[pairs.teachers[chosen] - 1 - step, step] = right[chosen, step]
    generated = sequence.loss_mask[:count].numpy().astype(bool)
    cut = sequence.truncated or len(sequence.input_ids) > count
    return serving_walk(hits, generated, cut)


def frozen_parts(
    store: ShardStore, tokens: Tensor, compute: torch.dtype, device: torch.device | str
) -> tuple[Frozen, dict[str, Tensor]]:
    """(what every step reads, on the device; all frozen tensors of the store)."""
    tensors = store.frozen()
    head = tensors["lm_head"][tokens].to(device, compute)
    return Frozen(tensors["embed_tokens"].to(device), head, tokens.to(device), compute), tensors
