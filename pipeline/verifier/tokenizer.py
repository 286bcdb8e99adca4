"""Makes the bundled verifier's tokenizer: byte-level BPE with single digits, fitted on its own tasks.

Imports tokenizers and transformers, both inside the functions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.verifier.conversations import conversations
from pipeline.verifier.template import IM_END, JINJA, PAD, SPECIAL_TOKENS

VOCABULARY = 2048
CONTEXT = 1024


def _texts(seed: int, count: int) -> Iterator[str]:
    for conversation in conversations(seed, count):
        yield from (message["content"] for message in conversation.messages)
        yield conversation.reasoning
        yield conversation.answer


def make_tokenizer(folder: Path, seed: int, count: int, vocabulary: int = VOCABULARY) -> Any:
    """Fits the tokenizer on `count` conversations, saves it under `folder` with its chat template, and returns it.

    Digits are one token each (arithmetic is learnt digit by digit); the vocabulary is exactly `vocabulary` tokens, the
    special tokens last, filled up with reserved ones where the text holds fewer merges.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(seed, count), trainer)
    missing = vocabulary - len(SPECIAL_TOKENS) - tokenizer.get_vocab_size()
    tokenizer.add_special_tokens([f"<|reserved_{i}|>" for i in range(missing)] + list(SPECIAL_TOKENS))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=IM_END,
        pad_token=PAD,
        additional_special_tokens=[token for token in SPECIAL_TOKENS if token not in (IM_END, PAD)],
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
        chat_template=JINJA,
    )
    folder.mkdir(parents=True, exist_ok=True)
    fast.save_pretrained(folder)
    _name_for_older_readers(folder / "tokenizer_config.json")
    return fast


def _name_for_older_readers(path: Path) -> None:
    """transformers 5 writes names into the configuration that transformers 4, which SGLang may bring, does not know."""
    config = json.loads(path.read_text("utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    config["additional_special_tokens"] = config.pop("extra_special_tokens")
    config.pop("backend", None)
    path.write_text(json.dumps(config, indent=2) + "\n", "utf-8")
