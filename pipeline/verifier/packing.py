"""Training rows: conversations as token ids, several packed in a row. Imports numpy and transformers."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.verifier.conversations import conversations
from pipeline.verifier.template import END_THINK, IM_END, render

ROW = 256
_OPEN_ROWS = 16
_CHUNK = 10_000

Array = npt.NDArray[np.int16]


@dataclass(frozen=True)
class Rows:
    """Packed rows, each [rows, ROW] int16.

    `ids` are token ids; `document` numbers the conversations of a row from 0, -1 is padding; `position` counts from 0
    in each conversation; `target` is the id to predict at that place, -1 where nothing is learnt.
    """

    ids: Array
    document: Array
    position: Array
    target: Array


def encode(tokenizer: Any, prompt: str, reasoning: str, answer: str, thinking: bool) -> tuple[list[int], list[int]]:
    """Token ids of a rendered prompt and of what the model should say after it, its end token included."""
    said = f"{reasoning}{END_THINK}{answer}{IM_END}" if thinking else f"{answer}{IM_END}"
    prompt_ids, said_ids = tokenizer([prompt, said], add_special_tokens=False)["input_ids"]
    return prompt_ids, said_ids


def _pack(documents: list[tuple[list[int], list[int]]], pad: int) -> Rows:
    full: list[list[tuple[list[int], list[int]]]] = []
    open_rows: list[tuple[int, list[tuple[list[int], list[int]]]]] = []
    for document in documents:
        length = len(document[0]) + len(document[1])
        if length > ROW:
            continue
        fitting = [i for i, (used, _) in enumerate(open_rows) if used + length <= ROW]
        if fitting:
            best = max(fitting, key=lambda i: open_rows[i][0])
            used, row = open_rows.pop(best)
            open_rows.append((used + length, [*row, document]))
        else:
            open_rows.append((length, [document]))
            if len(open_rows) > _OPEN_ROWS:
                fullest = max(range(len(open_rows)), key=lambda i: open_rows[i][0])
                full.append(open_rows.pop(fullest)[1])
    full += [row for _, row in open_rows]
    shape = (len(full), ROW)
    ids, numbers = np.full(shape, pad, np.int16), np.full(shape, -1, np.int16)
    position, target = np.zeros(shape, np.int16), np.full(shape, -1, np.int16)
    for r, row in enumerate(full):
        at = 0
        for number, (prompt, said) in enumerate(row):
            whole = prompt + said
            end = at + len(whole)
            ids[r, at:end], numbers[r, at:end], position[r, at:end] = whole, number, np.arange(len(whole))
            target[r, at + len(prompt) - 1 : end - 1] = said
            at = end
    return Rows(ids, numbers, position, target)


def _chunk(folder: str, seed: str, count: int) -> Rows:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    documents = [
        encode(tokenizer, render(c.messages, c.thinking), c.reasoning, c.answer, c.thinking)
        for c in conversations(seed, count)
    ]
    return _pack(documents, tokenizer.pad_token_id)


def build_rows(tokenizer_folder: Path, seed: int, count: int, processes: int) -> Rows:
    """`count` conversations of the training space as packed rows, the same for the same seed."""
    chunks = [(str(tokenizer_folder), f"{seed}/{i}", min(_CHUNK, count - i)) for i in range(0, count, _CHUNK)]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        parts = list(pool.map(_chunk, *zip(*chunks)))
    return Rows(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in ("ids", "document", "position", "target"))
    )
