"""What the stage does: sets a training up, runs it step by step, writes curves and checkpoints, stops and resumes.

Output: checkpoints/step-NNNNNN (weights, optimizer, position, drafter.json), best/step-NNNNNN (weights of the epoch
with the longest simulated acceptance), report.json. Imports torch, pipeline.stage and the rest of this room.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipeline.config import TrainParams
from pipeline.drafter.config import DrafterConfig
from pipeline.drafter.initial import drafter_from_folder, drafter_from_verifier, random_drafter
from pipeline.drafter.model import Drafter
from pipeline.drafter.vocabulary import DraftVocabulary, read_vocabulary
from pipeline.hostpath import host_path
from pipeline.rundir import fingerprint, latest_checkpoint, read_json, write_checkpoint
from pipeline.shards import ShardStore
from pipeline.stage import StageError, StageRun, Stopped
from pipeline.train.data import Corpus
from pipeline.train.objective import Tally, Validation, frozen_parts, validate
from pipeline.train.precision import compute_dtype, pick_device
from pipeline.train.split import split
from pipeline.train.trainer import Trainer, save_weights

CHECKPOINTS, BEST = "checkpoints", "best"
VALIDATION_TOKENS = 4096


@dataclass
class Best:
    """The best validation so far. `weights` are held in memory until they are on disk (`saved`)."""

    step: int = -1
    value: float = 0.0
    values: dict[str, float] | None = None
    weights: dict[str, Tensor] | None = None
    saved: bool = False


def train(stage: StageRun) -> None:
    """The body of stage train. Raises StageError, Stopped."""
    params = stage.params
    assert isinstance(params, TrainParams)
    stage.progress(0, None, "steps", phase="loading", force=True)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise StageError("train runs in one process, and torchrun started several", "Start it without torchrun")
    if params.threads:
        torch.set_num_threads(params.threads)
    device = pick_device(params.device)
    dtype = compute_dtype(params.precision, device)
    store = ShardStore(stage.inputs["extract"].path)
    vocabulary = read_vocabulary(stage.inputs["vocab"].path / "vocab.safetensors", store.index.vocab_size)
    frozen, tensors = frozen_parts(store, vocabulary.tokens, dtype, device)
    drafter = _start(params, store, vocabulary, tensors, stage).to(device)
    corpus = Corpus(store, params.ttt_steps, params.length, device, drafter.config.num_attention_heads)
    training, validation = split(store.ids(), params.val_fraction)
    training, validation = corpus.useful(training), corpus.useful(validation)
    if not training:
        raise StageError(
            "No sequence has a generated token that a drafter could propose",
            "Generate samples with longer answers, or raise train.length",
        )
    trainer = Trainer(params, drafter, vocabulary, frozen, corpus, training)
    _Loop(stage, params, trainer, validation).run()


def _start(
    params: TrainParams, store: ShardStore, vocabulary: DraftVocabulary, tensors: dict[str, Tensor], stage: StageRun
) -> Drafter:
    low, middle, high = store.index.aux_layers
    verifier = store.verifier_config()
    config = DrafterConfig.for_verifier(verifier, len(vocabulary.tokens), (low, middle, high))
    if params.init == "random":
        return random_drafter(config, params.seed)
    if params.init != "verifier":
        drafter, taken = drafter_from_folder(
            host_path(params.init, stage.run.path), config, tensors, vocabulary, verifier
        )
        for sentence in taken:
            stage.event("warning", sentence)
        return drafter
    drafter, missing = drafter_from_verifier(config, tensors, vocabulary, params.seed)
    if missing:
        stage.event(
            "warning", f"started at random where the verifier's last layer has another shape: {', '.join(missing)}"
        )
    return drafter


class _Loop:
    """The steps of one attempt."""

    def __init__(self, stage: StageRun, params: TrainParams, trainer: Trainer, validation: list[int]) -> None:
        self.stage, self.params, self.trainer, self.validation = stage, params, trainer, validation
        self.best = Best()
        self.last: dict[str, float] = {}
        self.saved_at, self.saved_step = time.monotonic(), -1

    def run(self) -> None:
        stage, trainer = self.stage, self.trainer
        self._resume()
        corpus = trainer.corpus
        trained = sum(parameter.numel() for parameter in trainer.drafter.parameters())
        stage.log(
            f"{len(trainer.numbers)} sequences to train on, {len(self.validation)} to validate; {trained:,} trained "
            f"parameters, {trainer.frozen.compute} on {corpus.device}; {trainer.total} steps"
        )
        if trainer.position.step == 0:
            self._validate()
        since, tokens, epoch = time.monotonic(), 0, trainer.position.epoch
        while not trainer.done:
            if stage.stopping():
                self._save()
                raise Stopped
            if self._due() or stage.checkpoint_requested():
                self._save()
            stepped = trainer.step()
            tokens += stepped.tokens
            position = trainer.position
            self._progress("running")
            if position.step % self.params.log_every == 0 or trainer.done:
                speed = tokens / max(1e-9, time.monotonic() - since)
                values = {**trainer.tally.values("train"), "lr": stepped.lr, "grad_norm": stepped.grad_norm}
                stage.metric(position.step, trainer.epoch, {**values, "tokens_per_s": speed})
                trainer.tally = Tally(self.params.ttt_steps)
                since, tokens = time.monotonic(), 0
            if position.epoch != epoch or trainer.done:
                epoch = position.epoch
                pause = time.monotonic()
                self._validate()
                since += time.monotonic() - pause
        self._save()
        self._finish()

    def _due(self) -> bool:
        every = self.params.checkpoint_every_s
        return bool(every) and time.monotonic() - self.saved_at >= every

    def _resume(self) -> None:
        stage, trainer = self.stage, self.trainer
        found = latest_checkpoint(stage.output / CHECKPOINTS) if stage.resumed else None
        if found is not None:
            extra = trainer.load(found)
            self.saved_step = trainer.position.step
            self.best = Best(**extra["best"], saved=extra["best"]["step"] >= 0)
            self.last = extra["last"]
            if trainer.position.step > trainer.total:
                raise StageError(
                    f"This output is trained for {trainer.position.step} steps, the plan asks for {trainer.total}",
                    f"`eagledeck restart {stage.run.name} train` begins a new output; or set train.epochs back",
                    resumable=False,
                )
            stage.event("info", f"resumed at step {trainer.position.step}", step=trainer.position.step)
        if stage.resumed:
            stage.resumed_at(trainer.position.step)

    def _validate(self) -> None:
        if not self.validation:
            return
        stage, trainer = self.stage, self.trainer
        self._progress("validating")
        budget = max(VALIDATION_TOKENS, self.params.batch_tokens)
        result: Validation = validate(
            trainer.drafter, trainer.frozen, trainer.corpus, self.validation, budget, self.params.ttt_decay
        )
        self.last = values = result.values()
        stage.metric(trainer.position.step, trainer.epoch, dict(values))
        length = result.acceptance_length
        said = f"validation loss {values.get('val/loss', 0):.3f}, acceptance length "
        said += "unknown" if length is None else f"{length:.3f}"
        stage.log(f"step {trainer.position.step}, epoch {trainer.epoch:.2f}: {said}")
        value = length if length is not None else -values.get("val/loss", 0.0)
        if trainer.position.step and (self.best.step < 0 or value >= self.best.value):
            self.best = Best(trainer.position.step, value, dict(values), trainer.weights())

    def _save(self) -> None:
        """A checkpoint of now, unless there is one; the best weights first, since a checkpoint refers to them."""
        stage, trainer = self.stage, self.trainer
        step = trainer.position.step
        if step == self.saved_step:
            return
        self._progress("saving")
        stage.check_space(trainer.state_bytes())
        self._save_best()
        extra = {
            "best": {"step": self.best.step, "value": self.best.value, "values": self.best.values},
            "last": self.last,
        }
        with stage.saving():
            write_checkpoint(
                stage.output / CHECKPOINTS,
                f"step-{step:06d}",
                lambda folder: trainer.save(folder, extra),
                {"step": step, "epoch": trainer.epoch},
                keep=self.params.keep_checkpoints,
            )
        self.saved_at, self.saved_step = time.monotonic(), step
        stage.event("checkpoint", f"checkpoint at step {step}", step=step)
        self._progress("running")

    def _save_best(self) -> None:
        best = self.best
        if best.weights is None or best.saved:
            return
        weights = best.weights
        write_checkpoint(
            self.stage.output / BEST,
            f"step-{best.step:06d}",
            lambda folder: save_weights(folder, self.trainer.drafter, weights, self.trainer.vocabulary),
            {"step": best.step, "values": best.values},
            keep=1,
        )
        best.saved, best.weights = True, None

    def _finish(self) -> None:
        stage, trainer, position = self.stage, self.trainer, self.trainer.position
        if self.best.step < 0:  # nothing to validate on: the last weights are the best there are
            self.best = Best(position.step, 0.0, None, trainer.weights())
            self._save_best()
        values = self.best.values or {}
        parameters = sum(parameter.numel() for parameter in trainer.drafter.parameters())
        counts = {"steps": position.step, "tokens": position.tokens, "pairs": position.pairs, "parameters": parameters}
        counts |= {"sequences": len(trainer.numbers), "validation": len(self.validation)}
        report: dict[str, Any] = {
            "val_loss": values.get("val/loss"),
            "acceptance_length": values.get("val/acceptance_length"),
            "best_step": self.best.step,
            "last": self.last,
            "epochs": round(trainer.epoch, 4),
            "drafter": f"{BEST}/step-{self.best.step:06d}",
        }
        found = latest_checkpoint(stage.output / BEST)
        if found is None:
            raise StageError(f"{stage.output / BEST} holds no whole drafter", "Check the volume, then resume train")
        stage.finish(counts, fingerprint(read_json(found / "manifest.json")), **report)

    def _progress(self, phase: str) -> None:
        position = self.trainer.position
        counts = {"epoch": round(self.trainer.epoch, 3), "tokens": position.tokens}
        self.stage.progress(position.step, self.trainer.total, "steps", counts=counts, phase=phase)
