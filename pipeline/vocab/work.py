"""The vocab stage: the draft vocabulary, the tokens that the verifier's answers use most.

May import numpy, safetensors, pipeline.stage, config, geometry; no torch.
Writes vocab.safetensors: d2t int64 [Vd], an offset (target id = draft id + d2t[draft id]), and t2d bool [V], as EAGLE-3
drafters carry them. Draft ids ascend with target ids.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from pipeline.config import VocabParams
from pipeline.geometry import GeometryError, read_geometry
from pipeline.hostpath import host_path
from pipeline.stage import StageError, StageRun, Stopped

VOCAB = "vocab.safetensors"
_TOGETHER = 256
"""Samples counted at once: a count of each alone would walk the whole vocabulary for a few hundred tokens."""


@dataclass(frozen=True)
class DraftVocabulary:
    """`ids` int64 [Vd]: the target ids, ascending. coverage: their share of the supervised tokens, 0 … 1."""

    ids: NDArray[np.int64]
    vocab_size: int
    coverage: float

    @property
    def d2t(self) -> NDArray[np.int64]:
        return self.ids - np.arange(len(self.ids), dtype=np.int64)

    @property
    def t2d(self) -> NDArray[np.bool_]:
        mask = np.zeros(self.vocab_size, dtype=np.bool_)
        mask[self.ids] = True
        return mask


def choose(counts: NDArray[np.int64], size: int, always: Collection[int]) -> DraftVocabulary:
    """The `size` most frequent of the V tokens counted in `counts` int64 [V] (V of them when V is smaller).

    Ties go to the lower id, so that the same samples always give the same vocabulary. `always` are ids that are in it
    whatever their count: a drafter that can't propose the end token wastes a verification on every answer.
    """
    total = int(counts.sum())
    if not total:
        raise ValueError("no token was counted")
    forced = np.zeros(len(counts), dtype=np.int64)
    forced[[token for token in always if 0 <= token < len(counts)]] = 1
    order = np.lexsort((np.arange(len(counts)), -counts, -forced))
    ids = np.sort(order[:size])
    return DraftVocabulary(ids.astype(np.int64), len(counts), float(counts[ids].sum()) / total)


def end_tokens(folder: Path) -> set[int]:
    """The ids that end an answer, from the verifier's generation_config.json and config.json."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        try:
            raw = json.loads((folder / name).read_text("utf-8"))
        except (OSError, ValueError):
            continue
        text = raw.get("text_config")
        for part in (raw, text if isinstance(text, dict) else {}):
            value = part.get("eos_token_id")
            found |= {token for token in (value if isinstance(value, list) else [value]) if isinstance(token, int)}
    return found


def count_supervised(stage: StageRun, path: Path, vocab_size: int) -> tuple[NDArray[np.int64], int]:
    """How often each token was generated, int64 [V], and how many samples there are. Raises StageError, Stopped."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise StageError(f"{path} is missing", "Run generate again to its end") from None
    total = ((stage.inputs["generate"].report() or {}).get("counts") or {}).get("samples")
    waiting: list[NDArray[np.int64]] = []
    samples = 0
    with file:
        for samples, line in enumerate(file, start=1):
            try:
                row = json.loads(line)
                ids = np.asarray(row["input_ids"], dtype=np.int64)[np.asarray(row["loss_mask"], dtype=np.bool_)]
            except (ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
                raise StageError(
                    f"{path} line {samples} is damaged ({error})", "Run generate again to its end"
                ) from None
            if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
                raise StageError(
                    f"{path} line {samples} has a token id beyond the verifier's vocabulary of {vocab_size}",
                    "The samples come from another model: correct verifier.path, or generate anew",
                )
            waiting.append(ids)
            if samples % _TOGETHER == 0:
                counts += np.bincount(np.concatenate(waiting), minlength=vocab_size)
                waiting.clear()
                stage.progress(samples, total, "samples")
                if stage.stopping():
                    raise Stopped
    if waiting:
        counts += np.bincount(np.concatenate(waiting), minlength=vocab_size)
    return counts, samples


def vocab(stage: StageRun) -> None:
    """The body of the stage. It takes seconds, so a stop simply drops what was counted."""
    params = stage.params
    assert isinstance(params, VocabParams)
    stage.progress(0, None, "samples")
    folder = host_path(stage.plan.verifier.path, stage.run.path)
    try:
        vocab_size = read_geometry(folder).vocab_size
    except GeometryError as error:
        raise StageError(error.message.rstrip("."), f"{error.remedy.rstrip('.')} (verifier.path)") from None
    counts, samples = count_supervised(stage, stage.inputs["generate"].path / "tokenized.jsonl", vocab_size)
    if not counts.any():
        raise StageError("The samples hold no generated token", "Look at generate's rejects")
    chosen = choose(counts, params.size, end_tokens(folder))
    distinct = int((counts > 0).sum())
    if len(chosen.ids) < params.size:
        stage.event("info", f"the draft vocabulary has {len(chosen.ids)} tokens: the verifier has no more")
    part = stage.output / f"{VOCAB}.part"
    save_file({"d2t": chosen.d2t, "t2d": chosen.t2d}, part)
    with part.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(part, stage.output / VOCAB)
    stage.progress(samples, samples, "samples", counts={"size": len(chosen.ids), "coverage": chosen.coverage})
    stage.log(f"{len(chosen.ids)} of {vocab_size} tokens cover {chosen.coverage:.2%} of {counts.sum()} generated ones")
    stage.finish(
        {"size": len(chosen.ids), "coverage": chosen.coverage, "tokens": int(counts.sum()), "distinct": distinct},
        hashlib.sha256(chosen.ids.tobytes() + vocab_size.to_bytes(8, "little")).hexdigest(),
    )
