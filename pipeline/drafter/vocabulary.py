"""The draft vocabulary: which verifier token each draft id stands for.

Stored as in exported drafters: d2t int64 [Vd], offsets, target id = i + d2t[i]; t2d bool [V], True for tokens in it.
Imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from pipeline.drafter.config import DrafterError


@dataclass(frozen=True)
class DraftVocabulary:
    """tokens [Vd] int64: verifier ids, ascending; size: the verifier's vocabulary V."""

    tokens: Tensor
    size: int

    @property
    def d2t(self) -> Tensor:
        return self.tokens - torch.arange(len(self.tokens))

    @property
    def t2d(self) -> Tensor:
        inside = torch.zeros(self.size, dtype=torch.bool)
        inside[self.tokens] = True
        return inside

    @property
    def whole(self) -> bool:
        """Every verifier token can be drafted: engines then want neither table."""
        return len(self.tokens) == self.size

    @classmethod
    def from_tables(cls, d2t: Tensor, size: int, where: str) -> DraftVocabulary:
        """Checks the offsets: ids must lie within [0, size) and rise strictly. Raises DrafterError."""
        tokens = d2t.long() + torch.arange(len(d2t))
        if not len(tokens) or int(tokens.min()) < 0 or int(tokens.max()) >= size or bool((tokens.diff() <= 0).any()):
            raise DrafterError(f"{where}: d2t does not map into {size} tokens", "Run the vocab stage again")
        return cls(tokens, size)

    @classmethod
    def every(cls, size: int) -> DraftVocabulary:
        return cls(torch.arange(size), size)


def read_vocabulary(path: Path, size: int) -> DraftVocabulary:
    """The vocabulary that stage vocab wrote. Raises DrafterError when the file is missing, damaged or of another
    verifier.
    """
    try:
        tables = load_file(path)
    except FileNotFoundError:
        raise DrafterError(f"There is no {path}", "Run the vocab stage") from None
    except (OSError, SafetensorError) as error:
        raise DrafterError(f"{path} can't be read: {error}", "Run the vocab stage again") from None
    if "d2t" not in tables:
        raise DrafterError(f"{path} holds no d2t", "Run the vocab stage again")
    return DraftVocabulary.from_tables(tables["d2t"], size, str(path))
