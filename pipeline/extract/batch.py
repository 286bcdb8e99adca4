"""One batch through the verifier: padded, captured, taught, checked and brought to the host.

May import torch, pipeline.shards and this folder.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.extract.capture import Capture
from pipeline.extract.sequences import Tokens
from pipeline.extract.teacher import teach
from pipeline.shards import Sequence


@dataclass(frozen=True)
class Computed:
    """The sequences of a batch that are finite, and for the others the names of the tensors that aren't, by id."""

    sequences: list[Sequence]
    bad: dict[str, str]


@torch.inference_mode()
def compute(batch: Items[Tokens], capture: Capture, dtype: torch.dtype) -> Computed:
    """The states of a batch in `dtype`, on the CPU; padding is gone."""
    lengths = [len(one.input_ids) for one in batch]
    padded = torch.zeros(len(batch), max(lengths), dtype=torch.int64)
    for row, one in enumerate(batch):
        padded[row, : lengths[row]] = torch.from_numpy(one.input_ids)
    real = torch.arange(padded.shape[1])[None, :] < torch.tensor(lengths)[:, None]
    states = capture.states(padded)
    real = real.to(states.last.device)
    aux, last = states.aux[real].to(dtype), states.last[real].to(dtype)
    argmax, logsumexp = teach(last, capture.head)
    finite = {
        "aux": aux.isfinite().flatten(1).all(1),
        "last": last.isfinite().all(1),
        "logsumexp": logsumexp.isfinite(),
    }
    whole = {
        name: [bool(part.all()) for part in tensor.cpu().split_with_sizes(lengths)] for name, tensor in finite.items()
    }
    parts = zip(
        batch,
        *(_to_host(tensor).split_with_sizes(lengths) for tensor in (aux, last, argmax, logsumexp)),
        strict=True,
    )
    sequences: list[Sequence] = []
    bad: dict[str, str] = {}
    for number, (one, a, s, m, z) in enumerate(parts):
        names = [name for name, flags in whole.items() if not flags[number]]
        if names:
            bad[one.id] = ", ".join(names)
            continue
        ids, mask = torch.from_numpy(one.input_ids), torch.from_numpy(one.loss_mask)
        sequences.append(Sequence(one.id, a, s, ids, mask, m, z, one.truncated))
    return Computed(sequences, bad)


def _to_host(tensor: Tensor) -> Tensor:
    """A copy on the CPU. From a GPU it goes through pinned memory, which torch keeps for the next batch."""
    if tensor.device.type != "cuda":
        return tensor.cpu()
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor)
    return host
