"""The shape of a drafter, as its config.json says it to SGLang and vLLM, and how one follows from a verifier's
config.json.

Imports pipeline.failure and pipeline.geometry; no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.drafter.captured import KEY, written_layers
from pipeline.drafter.heads import drafter_heads
from pipeline.drafter.rope_config import KNOWN_ROPE, read_rope, rope_kind
from pipeline.failure import StageError
from pipeline.geometry import AUX_STATES

ARCHITECTURE = "LlamaForCausalLMEagle3"


class DrafterError(StageError):
    """A drafter or a verifier's config can't be used: what and where, and what to do."""


@dataclass(frozen=True)
class DrafterConfig:
    """Sizes of one EAGLE-3 drafter. Widths in elements, `rope_scaling` None for plain rotary positions.

    `aux_layers` are the verifier's layers whose input is captured (the residual stream entering layer k); None: those
    that both engines capture when the file says nothing.
    """

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    max_position_embeddings: int
    aux_layers: tuple[int, int, int] | None = None
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, Any] | None = None
    attention_bias: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | tuple[int, ...] | None = None

    def captured(self, verifier_layers: int) -> tuple[int, int, int]:
        """The captured layers of a verifier with that many layers."""
        return self.aux_layers or default_aux_layers(verifier_layers)

    @property
    def fc_inputs(self) -> int:
        return AUX_STATES * self.hidden_size

    def to_json(self) -> dict[str, Any]:
        """config.json as both engines read it.

        The rotary parameters stand twice: `rope_parameters` is read by transformers 5 and engines built on it,
        `rope_theta` and `rope_scaling` by those built on transformers 4.
        """
        scaling = dict(self.rope_scaling) if self.rope_scaling else None
        eos = list(self.eos_token_id) if isinstance(self.eos_token_id, tuple) else self.eos_token_id
        config: dict[str, Any] = {
            "architectures": [ARCHITECTURE],
            "model_type": "llama",
            "num_hidden_layers": 1,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",  # both engines build LlamaMLP, which knows no other
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "rope_scaling": scaling,
            "rope_parameters": {"rope_type": "default", **(scaling or {}), "rope_theta": self.rope_theta},
            "max_position_embeddings": self.max_position_embeddings,
            "vocab_size": self.vocab_size,
            "draft_vocab_size": self.draft_vocab_size,
            "tie_word_embeddings": False,
            "attention_bias": self.attention_bias,
            "mlp_bias": False,
            "bos_token_id": self.bos_token_id,
            "eos_token_id": eos,
        }
        if self.aux_layers is not None:
            config[KEY] = list(self.aux_layers)
            config["eagle_config"] = {"use_aux_hidden_state": True, KEY: [layer - 1 for layer in self.aux_layers]}
        return config

    @classmethod
    def from_json(
        cls, config: Mapping[str, Any], where: str = "the drafter's config.json", latent: bool = False
    ) -> DrafterConfig:
        """Reads what `to_json` wrote, and the config.json of other trainers as far as it fits a plain EAGLE-3
        drafter. latent: the verifier's attention is, which changes how captured layers are named.
        """
        hidden, heads = _count(config, "hidden_size", where), _count(config, "num_attention_heads", where)
        vocab = _count(config, "vocab_size", where)
        theta, scaling = read_rope(config)
        if rope_kind(config) not in KNOWN_ROPE:
            raise DrafterError(
                f"{where}: rotary positions of the type {rope_kind(config)!r}", f"Known here: {', '.join(KNOWN_ROPE)}"
            )
        aux = _captured(config, where, latent)
        for flag in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"):
            if config.get(flag):
                raise DrafterError(f"{where} sets {flag}", "Only plain EAGLE-3 drafters (without it) can be loaded")
        if config.get("hidden_act") not in (None, "silu"):
            raise DrafterError(f"{where}: hidden_act is {config['hidden_act']!r}", "Both engines know only silu here")
        if config.get("target_hidden_size") not in (None, hidden):
            raise DrafterError(f"{where}: target_hidden_size differs from hidden_size", "Use a drafter of equal width")
        return cls(
            hidden_size=hidden,
            intermediate_size=_count(config, "intermediate_size", where),
            num_attention_heads=heads,
            num_key_value_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or hidden // heads),
            vocab_size=vocab,
            draft_vocab_size=int(config.get("draft_vocab_size") or vocab),
            max_position_embeddings=int(config.get("max_position_embeddings") or 2048),
            aux_layers=aux,
            rms_norm_eps=float(config.get("rms_norm_eps") or 1e-6),
            rope_theta=theta,
            rope_scaling=scaling,
            attention_bias=bool(config.get("attention_bias")),
            bos_token_id=_token(config.get("bos_token_id")),
            eos_token_id=_tokens(config.get("eos_token_id")),
        )

    @classmethod
    def for_verifier(
        cls, verifier: Mapping[str, Any], draft_vocab_size: int, aux_layers: tuple[int, int, int] | None = None
    ) -> DrafterConfig:
        """The drafter that belongs to a verifier: its width, heads, MLP and rotary positions, one layer.

        Never with attention biases, even where the verifier has them: SGLang 0.5.23 builds the drafter's q, k and v
        without (models/llama_eagle3.py) and would skip them. Latent-attention verifiers (Kimi, DeepSeek) get a plain
        Llama layer with one key head a query head; verifiers whose heads no Llama config may have get others
        (`pipeline.drafter.heads`). Raises DrafterError.
        """
        where, text, latent = "the verifier's config.json", text_config(verifier), is_latent(verifier)
        hidden, heads = _count(text, "hidden_size", where), _count(text, "num_attention_heads", where)
        layers = _count(text, "num_hidden_layers", where)
        if layers < 4:
            raise DrafterError(
                f"The verifier has {layers} layers", "EAGLE-3 captures three layers; it needs at least 4"
            )
        key_heads, head_dim = int(text.get("num_key_value_heads") or 0), int(text.get("head_dim") or 0)
        own = drafter_heads(hidden, heads, key_heads, head_dim, latent)
        if own is None:
            raise DrafterError(
                f"The verifier is {hidden} wide with {heads} heads, and no head size divides that width",
                "SGLang and vLLM can't load a Llama drafter of such a width",
            )
        theta, scaling = read_rope(text)
        return cls(
            hidden_size=hidden,
            intermediate_size=int(text.get("intermediate_size") or 4 * hidden),
            num_attention_heads=own.query,
            num_key_value_heads=own.key,
            head_dim=own.size,
            vocab_size=_count(text, "vocab_size", where),
            draft_vocab_size=draft_vocab_size,
            max_position_embeddings=int(text.get("max_position_embeddings") or 2048),
            aux_layers=None if aux_layers == default_aux_layers(layers) else aux_layers,
            rms_norm_eps=float(text.get("rms_norm_eps") or 1e-6),
            rope_theta=theta,
            rope_scaling=scaling,
            bos_token_id=_token(verifier.get("bos_token_id", text.get("bos_token_id"))),
            eos_token_id=_tokens(verifier.get("eos_token_id", text.get("eos_token_id"))),
        )


def text_config(verifier: Mapping[str, Any]) -> Mapping[str, Any]:
    """The text part of a verifier's config.json; multimodal ones nest it."""
    nested = verifier.get("text_config")
    return nested if isinstance(nested, dict) else verifier


def is_latent(verifier: Mapping[str, Any]) -> bool:
    """Whether a verifier has the latent attention of DeepSeek and Kimi."""
    return "kv_lora_rank" in text_config(verifier)


def default_aux_layers(verifier_layers: int) -> tuple[int, int, int]:
    """What SGLang and vLLM capture by default."""
    return (2, verifier_layers // 2, verifier_layers - 3)


def read_config(path: Path) -> dict[str, Any]:
    """A JSON object from a file; DrafterError when it is missing or is none."""
    try:
        config = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise DrafterError(f"There is no {path}", "Name the folder of an exported drafter or of a checkpoint") from None
    except (OSError, ValueError) as error:
        raise DrafterError(f"{path} can't be read: {error}", "Export the drafter again") from None
    if not isinstance(config, dict):
        raise DrafterError(f"{path} holds no JSON object", "Export the drafter again")
    return config


def _captured(config: Mapping[str, Any], where: str, latent: bool) -> tuple[int, int, int] | None:
    """The captured layers a config.json names; None where both engines take their default."""
    try:
        found = written_layers(config, latent)
    except ValueError as error:
        raise DrafterError(f"{where}: {error}", f"It takes {AUX_STATES} numbers of layers") from None
    for layers in found:
        if len(layers) != AUX_STATES:
            raise DrafterError(f"{where} names {len(layers)} captured layers", f"A drafter here has {AUX_STATES}")
    if len(found) > 1:
        raise DrafterError(
            f"{where} lets vLLM capture layers {found[0]}, SGLang {found[1]}",
            f"Leave in {KEY} (top level, or in eagle_config one less) the layers that it was trained on",
        )
    return (found[0][0], found[0][1], found[0][2]) if found else None


def _count(config: Mapping[str, Any], key: str, where: str) -> int:
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise DrafterError(f"{where}: {key} is {value!r}", "It must be a whole number above 0")
    return value


def _token(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _tokens(value: Any) -> int | tuple[int, ...] | None:
    return tuple(int(one) for one in value) if isinstance(value, list | tuple) else _token(value)
