"""What a drafter starts from: the verifier's last layer, chance, or another drafter.

From the verifier: the decoder layer, final norm and head rows are scaled copies of its last layer, final norm and
lm_head rows, and fc copies the high captured state, so that the untrained drafter already computes nearly what the
verifier does one token earlier. Imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from pipeline.drafter.config import DrafterConfig, DrafterError, is_latent, read_config, text_config
from pipeline.drafter.model import Drafter
from pipeline.drafter.vocabulary import DraftVocabulary

EMBEDDING_SHARE, LAYER_SHARE, NORM_SHARE = 0.5, 0.5, 0.5
"""Scales of the copies: the attention's embedding half; what the layer adds to the residual; the final norm. An exact
copy is sure of the token before the one to be drafted, and unlearning that costs the first steps: on SmolLM2 these
scales lowered the validation loss after 120 steps from 3.93 to 3.65, on the bundled verifier after 150 steps from
1.77 to 1.67.
"""
WEIGHTS, CONFIGS = "model.safetensors", ("config.json", "drafter.json")
SHAPE = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
    "attention_bias",
)  # fmt: skip
TAKEN_OVER = ("rope_theta", "rope_scaling", "rms_norm_eps")
"""What a drafter computes with, beside its weights."""


def random_drafter(config: DrafterConfig, seed: int) -> Drafter:
    """Normal weights of deviation 0.02, norms 1, from the seed alone."""
    generator = torch.Generator().manual_seed(seed)
    drafter = Drafter(config)
    with torch.no_grad():
        for parameter in drafter.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.02, generator=generator)
            elif parameter.shape != (config.hidden_size,):
                parameter.zero_()
    return drafter


@torch.no_grad()
def drafter_from_verifier(
    config: DrafterConfig, frozen: Mapping[str, Tensor], vocabulary: DraftVocabulary, seed: int
) -> tuple[Drafter, list[str]]:
    """(drafter, what could not be copied).

    frozen: lm_head [V, H], norm [H], embed_tokens [V, H] and layer.* of the verifier's last layer. A part whose shape
    does not fit (latent attention, experts) keeps its random start and is named.
    """
    drafter, missing = random_drafter(config, seed), []
    size = config.hidden_size

    def copy(target: Tensor, name: str, rows: Tensor | None = None, scale: float = 1.0) -> None:
        source = frozen.get(name)
        if source is not None and rows is not None:
            source = source[rows]
        if source is None or source.shape != target.shape:
            missing.append(name)
        else:
            target.copy_(source * scale)

    copy(drafter.norm.weight, "norm", scale=NORM_SHARE)
    copy(drafter.lm_head.weight, "lm_head", vocabulary.tokens)
    layer = drafter.midlayer
    copy(layer.hidden_norm.weight, "layer.input_layernorm.weight")
    copy(layer.post_attention_layernorm.weight, "layer.post_attention_layernorm.weight")
    for name in ("gate_proj", "up_proj"):
        copy(getattr(layer.mlp, name).weight, f"layer.mlp.{name}.weight")
    copy(layer.mlp.down_proj.weight, "layer.mlp.down_proj.weight", scale=LAYER_SHARE)
    copy(layer.self_attn.o_proj.weight, "layer.self_attn.o_proj.weight", scale=LAYER_SHARE)
    for name in ("q_proj", "k_proj", "v_proj"):
        weight = getattr(layer.self_attn, name).weight
        copy(weight[:, size:], f"layer.self_attn.{name}.weight")
        source = frozen.get(f"layer.self_attn.{name}.weight")
        if source is not None and source.shape == weight[:, size:].shape:
            weight[:, :size].copy_(EMBEDDING_SHARE * source)
    # The embedding half sees rows of unit scale, whatever the scale of the verifier's embeddings: the norm takes care
    # of it.
    drafter.fc.weight.zero_()
    drafter.fc.weight[:, 2 * size :] = torch.eye(size)
    return drafter, missing


@torch.no_grad()
def drafter_from_folder(
    folder: Path,
    config: DrafterConfig,
    frozen: Mapping[str, Tensor],
    vocabulary: DraftVocabulary,
    verifier: Mapping[str, Any],
) -> tuple[Drafter, list[str]]:
    """(drafter, sentences about what was taken over) of a checkpoint or an exported drafter to continue from.

    config: what this verifier needs; verifier: its config.json. Shape and captured layers must be those. Rotary
    positions and rms_norm_eps are taken over, since the weights were trained with them and both engines read them from
    the drafter's file. Head rows are matched by verifier token: tokens that the other drafter did not have start from
    the verifier's lm_head. Raises DrafterError.
    """
    theirs, weights, their_vocabulary = read_drafter(folder, is_latent(verifier))
    for name in SHAPE:
        if getattr(theirs, name) != getattr(config, name):
            raise DrafterError(
                f"The drafter in {folder} has {name} {getattr(theirs, name)}, not {getattr(config, name)} as this "
                "verifier needs",
                "Continue from a drafter of the same verifier, or set train.init to verifier",
            )
    layers = int(text_config(verifier)["num_hidden_layers"])
    if theirs.captured(layers) != config.captured(layers):
        raise DrafterError(
            f"The drafter in {folder} was trained on the states that enter layers {_listed(theirs.captured(layers))} "
            f"of its verifier, and those extracted here enter layers {_listed(config.captured(layers))}",
            "Continue from a drafter of these layers, or set train.init to verifier",
        )
    taken = [
        f"{name} is {getattr(theirs, name)} as in the drafter in {folder}, not {getattr(config, name)} as in the "
        "verifier: its weights were trained with that"
        for name in TAKEN_OVER
        if getattr(theirs, name) != getattr(config, name)
    ]
    config = replace(config, **{name: getattr(theirs, name) for name in TAKEN_OVER})
    head = frozen["lm_head"][vocabulary.tokens].float()
    row = torch.full((config.vocab_size,), -1)
    row[their_vocabulary.tokens] = torch.arange(len(their_vocabulary.tokens))
    known = row[vocabulary.tokens]
    head[known >= 0] = weights["lm_head.weight"].float()[known[known >= 0]]
    drafter = Drafter(config)
    drafter.load_state_dict({**weights, "lm_head.weight": head})
    return drafter, taken


def _listed(layers: tuple[int, int, int]) -> str:
    return "{}, {} and {}".format(*layers)


def read_drafter(folder: Path, latent: bool = False) -> tuple[DrafterConfig, dict[str, Tensor], DraftVocabulary]:
    """(config, parameters by their exported names, draft vocabulary) of a checkpoint or an exported folder.

    Reads both layer names in use (`midlayer.*`, `layers.0.*`). latent: the verifier's attention is. Raises DrafterError
    naming what is missing.
    """
    named = next((folder / name for name in CONFIGS if (folder / name).exists()), folder / CONFIGS[0])
    config = DrafterConfig.from_json(read_config(named), str(named), latent)
    path = folder / WEIGHTS
    try:
        tensors = load_file(path)
    except FileNotFoundError:
        raise DrafterError(f"There is no {path}", "Name the folder of an exported drafter or of a checkpoint") from None
    except (OSError, SafetensorError) as error:
        raise DrafterError(f"{path} can't be read: {error}", "Export the drafter again") from None
    weights = {name.replace("layers.0.", "midlayer.", 1): tensor for name, tensor in tensors.items()}
    d2t = weights.pop("d2t", None)
    weights.pop("t2d", None)
    weights.pop("embed_tokens.weight", None)
    if d2t is None and config.draft_vocab_size != config.vocab_size:
        raise DrafterError(f"{path} holds no d2t", "Its draft ids can't be mapped; export the drafter again")
    vocabulary = (
        DraftVocabulary.every(config.vocab_size)
        if d2t is None
        else DraftVocabulary.from_tables(d2t, config.vocab_size, str(path))
    )
    with torch.device("meta"):
        wanted = {name: parameter.shape for name, parameter in Drafter(config).named_parameters()}
    wrong = [name for name, shape in wanted.items() if name not in weights or weights[name].shape != shape]
    wrong += sorted(set(weights) - set(wanted))
    if wrong:
        raise DrafterError(f"{path} is no plain EAGLE-3 drafter: {', '.join(wrong[:4])}", "Export the drafter again")
    return config, weights, vocabulary


def load_drafter(folder: Path) -> tuple[Drafter, DraftVocabulary]:
    """A drafter ready to serve, in fp32. Raises DrafterError."""
    config, weights, vocabulary = read_drafter(folder)
    drafter = Drafter(config)
    drafter.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    return drafter.eval(), vocabulary
