"""The training itself: steps, learning rate, data position; what a checkpoint holds and how one is taken up again.

Nothing here draws on global random state: order and noise follow from (seed, epoch) and (seed, step), so a resumed
training repeats an uninterrupted one bit for bit where the device computes alike. Imports torch and pipeline.drafter.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pipeline.config import TrainParams
from pipeline.drafter.initial import WEIGHTS
from pipeline.drafter.model import Drafter
from pipeline.drafter.vocabulary import DraftVocabulary
from pipeline.failure import StageError
from pipeline.train.data import Corpus, epoch_batches
from pipeline.train.objective import Frozen, Tally, run_batch
from pipeline.train.schedule import learning_rate

OPTIMIZER, STATE, CONFIG = "optimizer.pt", "trainer.json", "drafter.json"
BETAS = (0.9, 0.99)


@dataclass
class Position:
    """Where training stands: steps done, the epoch and the batch within it that come next, tokens and pairs seen so
    far.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    tokens: int = 0
    pairs: int = 0


@dataclass(frozen=True)
class Stepped:
    """What one step did. grad_norm before clipping; tokens: real tokens, all of them (nothing is padded)."""

    loss: float
    grad_norm: float
    lr: float
    tokens: int


class Diverged(StageError):
    """The loss or a gradient is not a number. Nothing of that step was applied."""


class Trainer:
    """Drafter, optimizer and data position of one training. The caller owns progress, metrics and the moments to
    save.
    """

    def __init__(
        self,
        params: TrainParams,
        drafter: Drafter,
        vocabulary: DraftVocabulary,
        frozen: Frozen,
        corpus: Corpus,
        numbers: list[int],
    ) -> None:
        self.params, self.drafter, self.vocabulary = params, drafter, vocabulary
        self.frozen, self.corpus, self.numbers = frozen, corpus, numbers
        self.position = Position()
        self.tally = Tally(params.ttt_steps)
        self.optimizer = torch.optim.AdamW(
            drafter.parameters(), lr=params.lr, betas=BETAS, weight_decay=params.weight_decay, fused=True
        )
        self._batches: list[list[int]] = []
        self._batches_of = -1
        counts = [len(self._epoch(epoch)) for epoch in range(params.epochs)]
        self.total = min(sum(counts), params.max_steps or sum(counts))

    @property
    def done(self) -> bool:
        return self.position.step >= self.total

    @property
    def epoch(self) -> float:
        """Epochs done, with the fraction of the one under way."""
        return self.position.epoch + self.position.batch / max(1, len(self._epoch(self.position.epoch)))

    def step(self) -> Stepped:
        """One batch: forward, backward, clip, update. Raises Diverged before anything is changed."""
        position, params = self.position, self.params
        batch = self.corpus.batch(self._epoch(position.epoch)[position.batch])
        lr = learning_rate(position.step, self.total, params.lr, params.warmup_ratio)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.zero_grad(set_to_none=True)
        loss, sums, _ = run_batch(self.drafter, self.frozen, batch, params.ttt_decay, self._noise(batch.aux))
        loss.backward()  # type: ignore[no-untyped-call]
        limit = params.grad_clip or math.inf
        norm = float(torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), limit))
        value = float(loss.detach())
        if not math.isfinite(value) or not math.isfinite(norm):
            raise Diverged(
                f"The loss became {value:g} and the gradient norm {norm:g} at step {position.step + 1}",
                "Training stopped before that step was applied, and the last checkpoint is good: lower train.lr, "
                "look for sequences with damaged hidden states, then resume",
            )
        self.optimizer.step()
        self.tally.add(sums)
        position.step += 1
        position.tokens += batch.tokens
        position.pairs += batch.pairs
        position.batch += 1
        if position.batch == len(self._epoch(position.epoch)):
            position.epoch, position.batch = position.epoch + 1, 0
        return Stepped(value, norm, lr, batch.tokens)

    def weights(self) -> dict[str, Tensor]:
        """A copy of the trained parameters on the CPU, fp32, by their exported names."""
        return {name: value.detach().to("cpu", copy=True) for name, value in self.drafter.named_parameters()}

    def state_bytes(self) -> int:
        """Bytes of a checkpoint: weights, the optimizer's two moments, and the best weights that may go with it."""
        return 4 * 4 * sum(parameter.numel() for parameter in self.drafter.parameters()) + (1 << 20)

    def save(self, folder: Path, extra: dict[str, Any]) -> None:
        """Writes a checkpoint's files: weights and tables, optimizer, position, drafter config. `extra` goes into the
        state.
        """
        save_weights(folder, self.drafter, self.weights(), self.vocabulary)
        torch.save(self.optimizer.state_dict(), folder / OPTIMIZER)
        tally = {"loss": self.tally.loss, "hits": self.tally.hits, "pairs": self.tally.pairs}
        state = {**extra, "position": asdict(self.position), "tally": tally, "total": self.total}
        (folder / STATE).write_text(json.dumps(state), "utf-8")

    def load(self, folder: Path) -> dict[str, Any]:
        """Takes up a checkpoint; gives back its `extra`. Raises StageError when it belongs to another drafter."""
        weights = load_file(folder / WEIGHTS)
        tables = {name: weights.pop(name, None) for name in ("d2t", "t2d")}
        own = self.vocabulary.d2t
        if tables["d2t"] is not None and not torch.equal(tables["d2t"], own):
            raise StageError(
                f"{folder} was trained on another draft vocabulary", "`eagledeck restart RUN train` begins anew"
            )
        try:
            self.drafter.load_state_dict(weights)
            state = torch.load(folder / OPTIMIZER, map_location="cpu", weights_only=True)
            self.optimizer.load_state_dict(state)
        except (RuntimeError, ValueError, KeyError) as error:
            line = str(error).splitlines()[0]
            raise StageError(
                f"{folder} does not fit this drafter ({line})", "`eagledeck restart RUN train` begins anew"
            ) from None
        found: dict[str, Any] = json.loads((folder / STATE).read_text("utf-8"))
        self.position = Position(**found.pop("position"))
        self.tally = Tally(self.params.ttt_steps, **found.pop("tally"))
        return found

    def _epoch(self, epoch: int) -> list[list[int]]:
        if self._batches_of != epoch:
            params = self.params
            self._batches = epoch_batches(self.numbers, self.corpus.lengths, params.batch_tokens, params.seed, epoch)
            self._batches_of = epoch
        return self._batches

    def _noise(self, aux: Tensor) -> Tensor | None:
        if not self.params.noise_std:
            return None
        generator = torch.Generator().manual_seed((self.params.seed << 32) + self.position.step)
        return (torch.randn(aux.shape, generator=generator) * self.params.noise_std).to(aux.device, aux.dtype)


def save_weights(folder: Path, drafter: Drafter, weights: dict[str, Tensor], vocabulary: DraftVocabulary) -> None:
    """Weights with their tables and the drafter's config: enough to serve, to export and to continue from."""
    save_file({**weights, "d2t": vocabulary.d2t, "t2d": vocabulary.t2d}, folder / WEIGHTS)
    (folder / CONFIG).write_text(json.dumps(drafter.config.to_json(), indent=2), "utf-8")
