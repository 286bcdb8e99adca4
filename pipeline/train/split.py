"""Which sequences are kept for validation: by a hash of the sequence id, so that the split stays the same when
sequences are added or the order of the shards changes, and deploy can tell from the samples alone. Standard library
only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def split(ids: Sequence[str], fraction: float) -> tuple[list[int], list[int]]:
    """(training, validation) numbers: a sequence is validation if the hash of its id falls below the fraction.

    At least one of each where there are two sequences or more and the fraction is above 0.
    """
    ranks = [int.from_bytes(hashlib.sha256(one.encode()).digest()[:8], "big") / 2**64 for one in ids]
    held = [number for number, rank in enumerate(ranks) if rank < fraction]
    if fraction > 0 and len(ids) > 1 and not held:
        held = [min(range(len(ids)), key=ranks.__getitem__)]
    if fraction < 1 and len(held) == len(ids) and held:
        held.remove(max(held, key=ranks.__getitem__))
    chosen = set(held)
    return [number for number in range(len(ids)) if number not in chosen], held
