"""The exported drafter: a folder that SGLang and vLLM load as it stands.

`embed_tokens` is left out (both engines share the verifier's), d2t and t2d are left out when the draft vocabulary is
the verifier's whole one (vLLM refuses them then). Imports torch, safetensors and pipeline.drafter.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from pipeline.drafter.config import text_config
from pipeline.drafter.initial import read_drafter
from pipeline.rundir import write_json

FOLDER = "drafter-eagle3"
"""vLLM guesses the method from "eagle3" in the path."""
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def verifier_dtype(config: Mapping[str, Any]) -> str:
    """The dtype a verifier's config.json names; bfloat16 where it names none or a quantised one."""
    text = text_config(config)
    named = str(text.get("dtype") or text.get("torch_dtype") or config.get("dtype") or config.get("torch_dtype") or "")
    return named if named in DTYPES else "bfloat16"


def export_drafter(checkpoint: Path, out: Path, dtype: str) -> Path:
    """Writes out/drafter-eagle3 from a checkpoint, replacing what is there, and returns it.

    Weights are rounded to dtype. The folder appears whole or not at all. Raises DrafterError for a damaged checkpoint.
    """
    config, weights, vocabulary = read_drafter(checkpoint)
    tensors = {name: tensor.to(DTYPES[dtype]).contiguous() for name, tensor in weights.items()}
    if not vocabulary.whole:
        tensors |= {"d2t": vocabulary.d2t, "t2d": vocabulary.t2d}
    build, final = out / f".{FOLDER}.tmp", out / FOLDER
    for leftover in (build, final):
        shutil.rmtree(leftover, ignore_errors=True)
    build.mkdir(parents=True)
    save_file(tensors, build / "model.safetensors", metadata={"format": "pt"})
    write_json(build / "config.json", {**config.to_json(), "dtype": dtype, "torch_dtype": dtype})
    for path in build.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    os.replace(build, final)
    return final


def read_json_object(path: Path) -> dict[str, Any]:
    """A verifier's config.json. Raises OSError, ValueError."""
    found = json.loads(path.read_text("utf-8"))
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds no JSON object")
    return found
