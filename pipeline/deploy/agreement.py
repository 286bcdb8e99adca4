"""Does drafting change what the verifier says? Every difference between two greedy answers, judged by the verifier in
fp32.

Greedy decoding with and without a drafter runs different shapes through the same weights, so where the two likeliest
tokens are almost equal, rounding may pick the other one: from there on the answers differ without anything being wrong.
A difference counts as a near tie only when that is proven: at the first differing position the two tokens are the
verifier's top two in fp32, and their logits lie within the threshold. Imports torch and transformers only to judge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.deploy.client import Answer

NEAR_TIE = {"float32": 0.01, "bfloat16": 0.25}
"""Largest gap of two logits, by what the engine computes in. Sums in another order move an fp32 logit by some 1e-5 and
seldom 1e-3; a bf16 logit of 16 to 32 has a grid of 0.125, and both answers round on it once."""

Judge = Callable[[Sequence[int]], Sequence[tuple[int, float]]]
"""Token ids so far -> the two likeliest next tokens with their logits in fp32, best first; nothing where it can't
tell.
"""


@dataclass(frozen=True)
class Difference:
    """Where two answers part: position in the answer, the tokens (-1: the answer had ended), gap of the top two."""

    id: str
    position: int
    plain: int
    drafted: int
    gap: float | None
    near_tie: bool

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id, "position": self.position, "plain": self.plain, "drafted": self.drafted, "gap": self.gap,
            "near_tie": self.near_tie,
        }  # fmt: skip


@dataclass(frozen=True)
class Agreement:
    """identical + near ties + different = prompts; a difference that could not be judged counts as different."""

    prompts: int
    differences: tuple[Difference, ...]
    threshold: float

    def to_json(self) -> dict[str, Any]:
        near = [one for one in self.differences if one.near_tie]
        return {
            "prompts": self.prompts,
            "identical": self.prompts - len(self.differences),
            "near_ties": len(near),
            "different": len(self.differences) - len(near),
            "threshold": self.threshold,
            "differences": [one.to_json() for one in self.differences],
        }


def first_difference(plain: Sequence[int], drafted: Sequence[int]) -> int | None:
    """The first position where two answers differ (one may have ended); None when they are equal."""
    for position, (one, other) in enumerate(zip(plain, drafted)):
        if one != other:
            return position
    return None if len(plain) == len(drafted) else min(len(plain), len(drafted))


def compare(plain: Sequence[Answer], drafted: Sequence[Answer], threshold: float, judge: Judge) -> Agreement:
    """Compares answers to the same questions. `judge` is asked only where they differ."""
    found = []
    for one, other in zip(plain, drafted):
        position = first_difference(one.output_ids, other.output_ids)
        if one.prompt_ids != other.prompt_ids:
            found.append(Difference(one.id, 0, -1, -1, None, False))
            continue
        if position is None:
            continue
        tokens = [ids[position] if position < len(ids) else -1 for ids in (one.output_ids, other.output_ids)]
        gap, near = None, False
        if -1 not in tokens:
            likeliest = judge([*one.prompt_ids, *one.output_ids[:position]])
            if len(likeliest) >= 2:
                gap = likeliest[0][1] - likeliest[1][1]
                near = {token for token, _ in likeliest[:2]} == set(tokens) and gap <= threshold
        found.append(Difference(one.id, position, tokens[0], tokens[1], gap, near))
    return Agreement(len(plain), tuple(found), threshold)


class VerifierJudge:
    """The verifier in fp32 on the CPU, loaded when the first question comes; silent where it does not fit in memory."""

    def __init__(self, folder: str, threads: int = 0) -> None:
        self._folder, self._threads = folder, threads
        self._model: Any = None

    def __call__(self, ids: Sequence[int]) -> list[tuple[int, float]]:
        """The two likeliest next tokens with their logits. Raises StageError when the verifier can't be loaded."""
        if self._model is None and not self.fits():
            return []
        import torch

        if self._model is None:
            from pipeline.extract.capture import load_verifier

            if self._threads:
                torch.set_num_threads(self._threads)
            self._model = load_verifier(Path(self._folder), torch.float32).eval()
        with torch.inference_mode():
            logits = self._model(input_ids=torch.tensor([list(ids)]), logits_to_keep=1).logits[0, -1].float()
        values, tokens = logits.topk(2)
        return list(zip(tokens.tolist(), values.tolist()))

    def fits(self) -> bool:
        """Whether twice the bytes of the weights (of 16 bits) are free, by MemAvailable; True where that isn't told."""
        needed = 2 * sum(path.stat().st_size for path in Path(self._folder).glob("*.safetensors"))
        try:
            lines = Path("/proc/meminfo").read_text("ascii").splitlines()
            free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
        except (OSError, StopIteration, ValueError):
            return True
        return needed < free
