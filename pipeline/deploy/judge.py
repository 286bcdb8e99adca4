"""The verifier in fp32 as the judge of where two answers part, where this host can load it so.

Whatever keeps it from judging is a sentence for the report, never the end of a deploy that has measured already.
Imports torch and transformers only to judge.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.config import size_text
from pipeline.deploy.lint import read_header
from pipeline.deploy.memory import free_bytes
from pipeline.failure import StageError

PLAIN_DTYPES = frozenset({"F64", "F32", "F16", "BF16"})
"""safetensors' dtypes of weights that are stored as they are; anything else is packed or quantised."""
FP32_BYTES = 4
ROOM = 1.2
"""Memory over the weights' own: what one forward pass and the loading take besides."""


class VerifierJudge:
    """The two likeliest next tokens of a verifier, on the CPU. It is loaded when the first question comes.

    `reason` says why it could not judge, "" while nothing kept it from that; from then on it is silent.
    """

    def __init__(self, folder: str, threads: int = 0) -> None:
        self._folder, self._threads = Path(folder), threads
        self._model: Any = None
        self.reason = ""

    def __call__(self, ids: Sequence[int]) -> list[tuple[int, float]]:
        """The two likeliest next tokens with their logits; nothing where it can't tell."""
        if self._model is None and not self.reason:
            self.reason = obstacle(self._folder)
        if self.reason:
            return []
        try:
            return self._likeliest(ids)
        except Exception as error:  # a verifier's own code may raise anything, and the measurements are made
            said = error.message if isinstance(error, StageError) else f"{type(error).__name__}: {error}"
            self.reason = " ".join(f"the verifier can't be run in float32 on this host ({said})".split())[:400]
            self._model = None
            return []

    def _likeliest(self, ids: Sequence[int]) -> list[tuple[int, float]]:
        import torch

        if self._model is None:
            from pipeline.extract.capture import load_verifier

            if self._threads:
                torch.set_num_threads(self._threads)
            self._model = load_verifier(self._folder, torch.float32).eval()
        with torch.inference_mode():
            logits = self._model(input_ids=torch.tensor([list(ids)]), logits_to_keep=1).logits[0, -1].float()
        values, tokens = logits.topk(2)
        return list(zip(tokens.tolist(), values.tolist()))


def obstacle(folder: Path) -> str:
    """Why the verifier in `folder` can't be loaded in fp32 here; "" where nothing speaks against it."""
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        text = config.get("text_config")
        if config.get("quantization_config") or (isinstance(text, dict) and text.get("quantization_config")):
            return "the verifier is quantised, and in float32 it would be another model"
        shapes = [entry for path in weight_files(folder) for entry in read_header(path)[0].values()]
    except (OSError, ValueError, KeyError, AttributeError, struct.error) as error:
        return f"the verifier's files can't be read ({error})"
    if not shapes:
        return f"{folder} holds no safetensors files, so what it takes in memory isn't known"
    packed = sorted({dtype for dtype, shape in shapes if dtype not in PLAIN_DTYPES and len(shape) > 1})
    if packed:
        return f"the verifier's weights are quantised ({', '.join(packed)}), and in float32 it would be another model"
    needed = int(FP32_BYTES * ROOM * sum(math.prod(shape) for _, shape in shapes))
    free = free_bytes()
    if free is not None and needed > free:
        return f"the verifier takes {size_text(needed)} in float32, and {size_text(free)} of memory are free"
    return ""


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that hold the weights: those of the index, or all there are."""
    try:
        index = json.loads((folder / "model.safetensors.index.json").read_text("utf-8"))
        return [folder / name for name in sorted(set(index["weight_map"].values()))]
    except FileNotFoundError:
        return sorted(folder.glob("*.safetensors"))
    except (KeyError, AttributeError) as error:
        raise ValueError(f"model.safetensors.index.json lacks {error}") from None
