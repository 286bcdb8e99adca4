"""What training needs of the verifier, copied beside the shards: embedding, head, norm, last layer, configuration.

May import torch, safetensors, pipeline.shards and pipeline.rundir. So train needs no verifier folder.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from pipeline.rundir import write_json
from pipeline.shards import HEAD, VERIFIER_CONFIG

_LLAMA_LAYER = re.compile(
    r"(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj|input_layernorm|post_attention_layernorm)\.(weight|bias)"
)


def write_head(out: Path, *, embed: Tensor, head: Tensor, norm: Tensor, layer: nn.Module) -> bool:
    """Writes head.safetensors: embed_tokens [V, H], lm_head [V, H], norm [H] and the last decoder layer as `layer.*`.

    Gives False when the layer isn't of Llama's type; its tensors are left out then.
    """
    layer_tensors = {
        f"layer.{name}": tensor for name, tensor in layer.state_dict().items() if _LLAMA_LAYER.fullmatch(name)
    }
    llama = len([name for name in layer_tensors if name.endswith(".weight")]) == 9
    tensors = {"embed_tokens": embed, "lm_head": head, "norm": norm, **(layer_tensors if llama else {})}
    # clone: tied embeddings share their memory, which safetensors refuses
    copies = {name: compact(tensor.detach()).cpu().clone().contiguous() for name, tensor in tensors.items()}
    part = out / f"{HEAD}.part"
    save_file(copies, part, metadata={"format": "pt"})
    with part.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(part, out / HEAD)
    return llama


def compact(tensor: Tensor) -> Tensor:
    """The tensor in bfloat16 where that loses nothing (weights that were bfloat16 on disk), or as it is."""
    half = tensor.bfloat16()
    return half if torch.equal(half.to(tensor.dtype), tensor) else tensor


def write_verifier_config(out: Path, folder: Path) -> None:
    """Writes verifier_config.json: the text part of the verifier's config.json, with the outer part's token ids."""
    raw: Mapping[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
    text = raw.get("text_config")
    outer = {key: raw[key] for key in ("bos_token_id", "eos_token_id", "tie_word_embeddings") if key in raw}
    write_json(out / VERIFIER_CONFIG, {**outer, **text} if isinstance(text, dict) else dict(raw))
