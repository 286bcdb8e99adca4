"""The shape of a verifier, read from its config.json: what the budget, the extractor and the drafter must agree on.

Standard library only (Python >= 3.9), so that the laptop can read it too. Imports pipeline.drafter.heads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.drafter.heads import Heads, drafter_heads

AUX_STATES = 3
"""Hidden states that EAGLE-3 captures from the middle of the verifier; the last one comes on top."""


class GeometryError(ValueError):
    """A verifier's config.json is missing, unreadable or lacks a key. `remedy` says what to do."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(f"{message} {remedy}")
        self.message = message
        self.remedy = remedy


@dataclass(frozen=True)
class Geometry:
    """Sizes of a verifier's text model, and the attention heads that its drafter gets. All counts, no bytes."""

    hidden_size: int
    num_hidden_layers: int
    vocab_size: int
    intermediate_size: int
    heads: Heads

    @property
    def aux_layers(self) -> tuple[int, int, int]:
        """The captured layers: k is the residual stream entering layer k. The default of SGLang and of vLLM."""
        layers = self.num_hidden_layers
        return (2, layers // 2, layers - 3)

    def drafter_parameters(self, draft_vocab: int) -> int:
        """Trained parameters of an EAGLE-3 drafter of this width: fc, one decoder layer on 2H, norms, head [Vd, H]."""
        h, q, kv = self.hidden_size, self.heads.query * self.heads.size, self.heads.key * self.heads.size
        attention = 2 * h * (q + 2 * kv) + q * h
        return AUX_STATES * h * h + attention + 3 * h * self.intermediate_size + 4 * h + draft_vocab * h


def from_hidden_size(hidden_size: int, vocab_size: int = 163_840, num_hidden_layers: int = 61) -> Geometry:
    """A geometry for arithmetic before a verifier is at hand.

    The MLP is Llama's 8/3 of the width rounded up to 256, heads are 128 wide with one key head for eight queries;
    these only move the size of a checkpoint, never the bytes of a token.
    """
    if hidden_size < 1:
        raise GeometryError(f"A hidden size of {hidden_size} is no width.", "Give the verifier's, e.g. 7168.")
    head_dim = min(128, hidden_size)
    heads = max(1, hidden_size // head_dim)
    intermediate = (8 * hidden_size // 3 + 255) // 256 * 256
    return Geometry(
        hidden_size, num_hidden_layers, vocab_size, intermediate, Heads(heads, max(1, heads // 8), head_dim)
    )


def read_geometry(verifier: str | Path) -> Geometry:
    """The geometry of the verifier in a folder (or of a config.json given by path).

    Multimodal verifiers (Kimi-K2.5 and others) nest the text model under `text_config`; that part is read then.
    Raises GeometryError naming the file and the key.
    """
    path = Path(verifier)
    if path.is_dir() or path.suffix != ".json":
        path = path / "config.json"
    try:
        raw = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise GeometryError(f"There is no {path}.", "Name the folder that holds the verifier's config.json.") from None
    except (OSError, ValueError) as error:
        raise GeometryError(f"{path} can't be read: {error}.", "Fetch the verifier's config.json again.") from None
    if not isinstance(raw, dict):
        raise GeometryError(f"{path} holds no JSON object.", "Fetch the verifier's config.json again.")
    text: dict[str, Any] = raw["text_config"] if isinstance(raw.get("text_config"), dict) else raw
    hidden = _count(text, "hidden_size", path)
    heads = _count(text, "num_attention_heads", path)
    key_heads, head_dim = (_count(text, key, path, 0) for key in ("num_key_value_heads", "head_dim"))
    own = drafter_heads(hidden, heads, key_heads, head_dim, latent="kv_lora_rank" in text)
    return Geometry(
        hidden_size=hidden,
        num_hidden_layers=_count(text, "num_hidden_layers", path),
        vocab_size=_count(text, "vocab_size", path),
        intermediate_size=_count(text, "intermediate_size", path, 4 * hidden),
        # a width that no head size divides is refused when it comes to training; its budget can be told all the same
        heads=own or Heads(heads, heads, max(1, hidden // heads)),
    )


def _count(config: Mapping[str, Any], key: str, path: Path, default: int | None = None) -> int:
    value = config.get(key)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        shown = "missing" if value is None else repr(value)
        raise GeometryError(
            f"{path}: {key} is {shown}; it must be a whole number above 0.",
            "Check that the folder holds a language model's config.json (text_config is read where there is one).",
        )
    return value
