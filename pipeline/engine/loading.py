"""Loads a model folder: weights, tokenizer, end tokens, limits. Imports torch and transformers, both inside."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

THINK, END_THINK = "<think>", "</think>"
PARSERS = ("auto", "kimi", "none")


class LoadError(Exception):
    """The engine can't serve what it was given; the text says why and what to do."""


@dataclass(frozen=True)
class Verifier:
    """A loaded model. `decoder` and `head` are its parts up to and after the last hidden state."""

    name: str
    path: str
    model: Any
    decoder: Any
    head: Any
    cache_argument: str
    tokenizer: Any
    eos_ids: frozenset[int]
    max_length: int
    temperature: float
    top_p: float
    think_id: int | None
    end_think_id: int | None
    parser: str

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens left out."""
        text: str = self.tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=True)
        return text


def check_folder(folder: Path) -> None:
    """Raises LoadError where there is plainly no model, before anything heavy is imported."""
    if not (folder / "config.json").is_file():
        raise LoadError(f"{folder} is no model folder: it has no config.json. Name a folder in Hugging Face layout.")


def load(folder: Path, name: str, dtype: str, parser: str) -> Verifier:
    """Loads a transformers causal language model in evaluation mode. Raises LoadError."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(
            str(folder), dtype=getattr(torch, dtype), attn_implementation="sdpa", local_files_only=True
        ).eval()
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise LoadError(
            f"{folder} does not load: {reason}. Check that the folder is whole and in Hugging Face layout."
        ) from error
    kinds = set(getattr(model.config.get_text_config(), "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise LoadError(
            f"{folder} is a model with {', '.join(sorted(kinds))} layers; this engine knows full attention alone. "
            "Serve it with vLLM or SGLang."
        )
    if tokenizer.chat_template is None:
        raise LoadError(
            f"The tokenizer in {folder} has no chat template, so chat requests can't be rendered. Serve a chat model."
        )
    if torch.cuda.is_available():
        model = model.to("cuda")
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    names = inspect.signature(inspect.unwrap(type(decoder).forward)).parameters
    generation = _generation_config(folder)
    vocabulary = tokenizer.get_vocab()
    think, end_think = vocabulary.get(THINK), vocabulary.get(END_THINK)
    if parser == "kimi" and end_think is None:
        raise LoadError(
            f"The reasoning parser kimi needs a token {END_THINK}, which the tokenizer in {folder} lacks. "
            "Use --reasoning-parser none."
        )
    if parser == "auto":
        parser = "kimi" if end_think is not None and THINK in str(tokenizer.chat_template) else "none"
    return Verifier(
        name=name,
        path=str(folder),
        model=model,
        decoder=decoder,
        head=head,
        # transformers 5.24 renamed the argument
        cache_argument="cache" if "cache" in names else "past_key_values",
        tokenizer=tokenizer,
        eos_ids=_eos_ids(generation, model.config, tokenizer),
        max_length=int(model.config.get_text_config().max_position_embeddings),
        temperature=float(generation.get("temperature") or 1.0),
        top_p=float(generation.get("top_p") or 1.0),
        think_id=think,
        end_think_id=end_think,
        parser=parser,
    )


def _generation_config(folder: Path) -> dict[str, Any]:
    try:
        values = json.loads((folder / "generation_config.json").read_text())
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _eos_ids(generation: dict[str, Any], config: Any, tokenizer: Any) -> frozenset[int]:
    found: set[int] = set()
    for value in (generation.get("eos_token_id"), config.get_text_config().eos_token_id, tokenizer.eos_token_id):
        found.update(value if isinstance(value, list) else [] if value is None else [value])
    return frozenset(found)
