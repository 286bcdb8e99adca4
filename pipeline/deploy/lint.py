"""What SGLang and vLLM would ignore, refuse or get wrong in an exported drafter.

Facts from the engines' sources: sglang 0.5.23 srt/models/llama_eagle3.py and llama.py; vllm 0.32.0
model_executor/models/llama_eagle3.py, v1/worker/gpu_model_runner.py and
v1/worker/gpu/spec_decode/eagle/eagle3_utils.py. Reads only the safetensors header, so it needs no torch. Imports
pipeline.drafter.config.

`python -m pipeline.deploy.lint FOLDER [--verifier FOLDER]` prints the findings; exit status 1 when one is wrong or
refused.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.drafter.captured import KEY, nested_ids, sglang_layers
from pipeline.drafter.config import ARCHITECTURE, default_aux_layers, is_latent, text_config
from pipeline.drafter.heads import GRANULE
from pipeline.drafter.rope_config import KNOWN_ROPE, rope_kind

SGLANG, VLLM, BOTH = "SGLang", "vLLM", "SGLang and vLLM"
ARCHITECTURES = (ARCHITECTURE, "Eagle3LlamaForCausalLM")
ENGINE_KEYS = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "rms_norm_eps",
    "vocab_size",
)


@dataclass(frozen=True)
class Finding:
    """kind: "refused" (does not load), "wrong" (loads and proposes nonsense), "ignored" (has no effect), "note"."""

    engine: str
    kind: str
    key: str
    message: str

    @property
    def bad(self) -> bool:
        return self.kind in ("refused", "wrong")


def lint(folder: Path, verifier: Mapping[str, Any] | None = None) -> list[Finding]:
    """Findings about a folder of config.json and model.safetensors; verifier: its config.json, for what must agree."""
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        shapes, d2t = read_header(folder / "model.safetensors")
    except (OSError, ValueError, KeyError, struct.error) as error:
        return [Finding(BOTH, "refused", "files", f"{folder} can't be read: {error}")]
    found = list(_config(config, folder))
    found += _aux_layers(config, verifier)
    if all(isinstance(config.get(key), int) for key in ENGINE_KEYS if key != "rms_norm_eps"):
        found += _tensors(config, shapes)
        found += _tables(config, shapes, d2t)
    if verifier is not None:
        found += _against(config, verifier)
    return found


def read_header(path: Path) -> tuple[dict[str, tuple[str, tuple[int, ...]]], list[int] | None]:
    """({name: (dtype, shape)}, the values of d2t when it is there) of a safetensors file."""
    with path.open("rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(size))
        header.pop("__metadata__", None)
        shapes = {name: (str(entry["dtype"]), tuple(entry["shape"])) for name, entry in header.items()}
        d2t = None
        if "d2t" in header and shapes["d2t"][0] == "I64":
            start, end = header["d2t"]["data_offsets"]
            file.seek(8 + size + start)
            d2t = list(struct.unpack(f"<{(end - start) // 8}q", file.read(end - start)))
    return shapes, d2t


def _config(config: Mapping[str, Any], folder: Path) -> Iterator[Finding]:
    named = config.get("architectures") or []
    if not any(one in ARCHITECTURES for one in named):
        yield Finding(BOTH, "refused", "architectures", f"{named} is none that they know; write [{ARCHITECTURE!r}]")
    if config.get("model_type") != "llama":
        yield Finding(BOTH, "refused", "model_type", f"{config.get('model_type')!r} is not llama")
    for key in ENGINE_KEYS:
        if key not in config:
            yield Finding(BOTH, "refused", key, "is missing")
    if "draft_vocab_size" not in config:
        yield Finding(SGLANG, "refused", "draft_vocab_size", "is read unguarded: the key must be there")
    if config.get("tie_word_embeddings", True):
        yield Finding(SGLANG, "wrong", "tie_word_embeddings", "true (or missing): the embedding is taken for the head")
    if config.get("norm_before_residual"):
        yield Finding(SGLANG, "ignored", "norm_before_residual", "SGLang's residual is always the raw hidden state")
    if config.get("attention_bias"):
        yield Finding(SGLANG, "ignored", "attention_bias", "SGLang builds q, k and v without bias and skips theirs")
    for key in ("norm_before_fc", "fc_norm", "norm_output"):
        if config.get(key):
            yield Finding(SGLANG, "note", key, "needs SGLang 0.5.23 or newer; 0.5.14 ignores it")
    if config.get("hidden_act", "silu") != "silu":
        yield Finding(BOTH, "refused", "hidden_act", f"{config['hidden_act']!r}: LlamaMLP knows only silu")
    if config.get("speculators_config") or config.get("speculators_model_type"):
        yield Finding(SGLANG, "refused", "speculators_config", "SGLang can't read the speculators format")
    yield from _heads(config)
    kind = rope_kind(config)
    if kind not in KNOWN_ROPE:
        yield Finding(BOTH, "note", "rope_parameters", f"{kind!r} is not computed alike by all engines and trainers")
    if config.get("num_hidden_layers") != 1:
        yield Finding(
            BOTH, "wrong", "num_hidden_layers", f"{config.get('num_hidden_layers')}: this drafter has 1 layer"
        )
    if "eagle3" not in str(folder.resolve()).lower():
        yield Finding(VLLM, "note", "folder", 'no "eagle3" in the path: pass "method": "eagle3" yourself')


def _heads(config: Mapping[str, Any]) -> Iterator[Finding]:
    """transformers 5 validates a LlamaConfig when either engine reads it (models/llama/configuration_llama.py)."""
    hidden, heads, keys = (config.get(key) for key in ("hidden_size", "num_attention_heads", "num_key_value_heads"))
    if not isinstance(hidden, int) or not isinstance(heads, int) or heads < 1:
        return
    if hidden % heads:
        message = f"{heads}: hidden_size {hidden} is no multiple of it, and transformers 5 refuses such a config"
        yield Finding(BOTH, "refused", "num_attention_heads", message)
    if isinstance(keys, int) and (keys < 1 or heads % keys):
        yield Finding(BOTH, "refused", "num_key_value_heads", f"{keys} does not divide the {heads} heads")
    size = config.get("head_dim") or hidden // heads
    if size % GRANULE:
        message = f"{size} is no multiple of {GRANULE}: attention kernels such as FlashAttention don't take it"
        yield Finding(BOTH, "note", "head_dim", message)


def _aux_layers(config: Mapping[str, Any], verifier: Mapping[str, Any] | None) -> Iterator[Finding]:
    """Whether both engines capture the same layers, as `pipeline.drafter.captured` says they name them."""
    inner, outer = nested_ids(config), config.get(KEY)
    if inner is None and outer is None:
        return
    layers = text_config(verifier).get("num_hidden_layers") if verifier else None
    default = list(default_aux_layers(layers)) if isinstance(layers, int) else None
    if inner is None and outer != default:
        yield Finding(SGLANG, "wrong", KEY, "stands at the top only: SGLang silently captures its default layers")
    if outer is None:
        yield Finding(VLLM, "wrong", KEY, "stands in eagle_config only: the newer runner captures its default layers")
    if inner is not None and outer is not None:
        seen = sglang_layers(inner, bool(verifier) and is_latent(verifier or {}))
        if seen != list(outer):
            yield Finding(BOTH, "wrong", KEY, f"SGLang would capture {seen}, vLLM {outer}")


def _tensors(config: Mapping[str, Any], shapes: Mapping[str, tuple[str, tuple[int, ...]]]) -> Iterator[Finding]:
    wanted = expected_shapes(config)
    names = {name.replace("layers.0.", "midlayer.", 1): name for name in shapes}
    for name, shape in wanted.items():
        if name not in names:
            if name == "lm_head.weight" and config.get("draft_vocab_size") in (None, config["vocab_size"]):
                continue  # both take the verifier's head then
            yield Finding(BOTH, "refused" if name != "lm_head.weight" else "wrong", name, "is missing")
        elif shapes[names[name]][1] != shape:
            yield Finding(BOTH, "refused", name, f"has shape {shapes[names[name]][1]}, the config says {shape}")
    for name, stored in names.items():
        if name in wanted or name in ("d2t", "t2d"):
            continue
        if name == "embed_tokens.weight":
            yield Finding(SGLANG, "ignored", name, "SGLang always takes the verifier's embeddings; vLLM keeps these")
        elif name.endswith("_proj.bias") and config.get("attention_bias"):
            continue
        else:
            yield Finding(SGLANG, "ignored", stored, "SGLang skips a name it does not know without a word")
            yield Finding(VLLM, "refused", stored, "vLLM has no parameter of that name")


def _tables(
    config: Mapping[str, Any], shapes: Mapping[str, tuple[str, tuple[int, ...]]], d2t: list[int] | None
) -> Iterator[Finding]:
    size, vocab = config.get("draft_vocab_size") or config["vocab_size"], config["vocab_size"]
    if "d2t" not in shapes:
        if size != vocab:
            yield Finding(BOTH, "wrong", "d2t", "is missing, so draft ids are proposed as if they were verifier ids")
        return
    if size == vocab:
        yield Finding(VLLM, "refused", "d2t", "has no place when the draft vocabulary is the verifier's: leave it out")
    if d2t is None or shapes["d2t"] != ("I64", (size,)):
        yield Finding(BOTH, "refused", "d2t", f"is {shapes['d2t']}, it must be int64 [{size}]")
        return
    targets = [index + offset for index, offset in enumerate(d2t)]
    if min(targets) < 0 or max(targets) >= vocab:
        yield Finding(BOTH, "wrong", "d2t", "leads outside the vocabulary: it must hold offsets (target id - draft id)")
    elif len(set(targets)) < len(targets):
        yield Finding(BOTH, "wrong", "d2t", "maps two draft ids to one token: it must hold offsets, not target ids")


def _against(config: Mapping[str, Any], verifier: Mapping[str, Any]) -> Iterator[Finding]:
    text = text_config(verifier)
    for key in ("vocab_size", "hidden_size"):
        if key in text and config.get(key) != text[key] and "target_hidden_size" not in config:
            yield Finding(BOTH, "refused", key, f"is {config.get(key)}, the verifier's is {text[key]}")
    served, covered = text.get("max_position_embeddings"), config.get("max_position_embeddings")
    if isinstance(served, int) and isinstance(covered, int) and covered < served:
        message = f"{covered} is below the verifier's {served}: vLLM sizes its rotary table by it and fails past it"
        yield Finding(VLLM, "wrong", "max_position_embeddings", message)


def expected_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of a plain EAGLE-3 drafter's tensors by name."""
    size, inner = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim") or size // config["num_attention_heads"]
    query, key = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    captured = (config.get("target_hidden_size") or size) * (config.get("num_aux_hidden_states") or 3)
    layer = "midlayer."
    return {
        "fc.weight": (size, captured),
        f"{layer}self_attn.q_proj.weight": (query, 2 * size),
        f"{layer}self_attn.k_proj.weight": (key, 2 * size),
        f"{layer}self_attn.v_proj.weight": (key, 2 * size),
        f"{layer}self_attn.o_proj.weight": (size, query),
        f"{layer}mlp.gate_proj.weight": (inner, size),
        f"{layer}mlp.up_proj.weight": (inner, size),
        f"{layer}mlp.down_proj.weight": (size, inner),
        f"{layer}input_layernorm.weight": (size,),
        f"{layer}hidden_norm.weight": (size,),
        f"{layer}post_attention_layernorm.weight": (size,),
        "norm.weight": (size,),
        "lm_head.weight": (config.get("draft_vocab_size") or config["vocab_size"], size),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipeline.deploy.lint", description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--verifier", type=Path, help="the verifier's folder")
    options = parser.parse_args(argv)
    verifier = None
    if options.verifier is not None:
        try:
            verifier = json.loads((options.verifier / "config.json").read_text("utf-8"))
        except (OSError, ValueError) as error:
            print(f"{options.verifier}/config.json can't be read: {error}", file=sys.stderr)
            return 1
    findings = lint(options.folder, verifier)
    for finding in findings:
        print(f"{finding.kind:8} {finding.engine:16} {finding.key}: {finding.message}")
    print(f"{len(findings)} findings" if findings else "nothing to object to")
    return int(any(finding.bad for finding in findings))


if __name__ == "__main__":
    sys.exit(main())
