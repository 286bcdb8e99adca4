"""How a shard lies on disk. Imports torch only.

A shard is one safetensors file (https://github.com/huggingface/safetensors#format): eight bytes of header length, a
JSON header, then the tensors back to back. With T tokens in S sequences and hidden size H:

    aux [T, 3, H], last [T, H]                         in the store's dtype (bfloat16)
    offsets int64 [S + 1]                              sequence i is the rows offsets[i] … offsets[i + 1] of the others
    logsumexp float32 [T]; argmax, input_ids int32 [T]; loss_mask uint8 [T]; truncated uint8 [S]

and `ids`, a JSON list of the sequences' ids, in the header's metadata. `index.json` beside the shards lists those that
count: a shard is in it only once it is whole on disk.
"""

from __future__ import annotations

import json
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

INDEX = "index.json"
HEAD = "head.safetensors"
VERIFIER_CONFIG = "verifier_config.json"
SCHEMA = 1
DTYPES = {"bfloat16": torch.bfloat16}
NAMES = {
    torch.bfloat16: "BF16", torch.float32: "F32", torch.int64: "I64", torch.int32: "I32", torch.uint8: "U8",
}  # fmt: skip
"""safetensors' names of the dtypes used here."""

Shapes = list[tuple[str, torch.dtype, list[int]]]


@dataclass(frozen=True)
class Sequence:
    """The tokens of one sample with what the verifier computed at each of them (T tokens, hidden size H).

    aux [T, 3, H] and last [T, H] in the store's dtype; input_ids, argmax int32 [T]; loss_mask uint8 [T] (1: generated);
    logsumexp float32 [T]; truncated: the answer was cut. In a store these are views of the mapped file.
    """

    id: str
    aux: Tensor
    last: Tensor
    input_ids: Tensor
    loss_mask: Tensor
    argmax: Tensor
    logsumexp: Tensor
    truncated: bool


def shard_name(number: int) -> str:
    return f"shard-{number:05d}.safetensors"


def shard_number(name: str) -> int:
    return int(name.removeprefix("shard-").partition(".")[0])


def token_bytes(hidden_size: int, dtype: torch.dtype) -> int:
    """Bytes of one token in a shard: four states, argmax, log-sum-exp, id and mask."""
    return 4 * hidden_size * dtype.itemsize + 3 * 4 + 1


def shapes(tokens: int, sequences: int, hidden_size: int, dtype: torch.dtype) -> Shapes:
    """Tensors of a shard in file order: the large ones first, so that a smaller shard moves only the second."""
    return [
        ("aux", dtype, [tokens, 3, hidden_size]),
        ("last", dtype, [tokens, hidden_size]),
        ("offsets", torch.int64, [sequences + 1]),
        ("logsumexp", torch.float32, [tokens]),
        ("argmax", torch.int32, [tokens]),
        ("input_ids", torch.int32, [tokens]),
        ("loss_mask", torch.uint8, [tokens]),
        ("truncated", torch.uint8, [sequences]),
    ]


def header(tensors: Shapes, ids: Items[str]) -> bytes:
    """The JSON header of a shard, without its length and padding."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt", "ids": json.dumps(list(ids), separators=(",", ":"))}}
    end = 0
    for name, dtype, shape in tensors:
        size = dtype.itemsize
        for side in shape:
            size *= side
        entries[name] = {"dtype": NAMES[dtype], "shape": shape, "data_offsets": [end, end + size]}
        end += size
    return json.dumps(entries, separators=(",", ":")).encode("ascii")
