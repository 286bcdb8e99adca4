"""Does drafting change what the verifier says? Every difference between two greedy answers, judged by the verifier in
fp32.

Greedy decoding with and without a drafter runs different shapes through the same weights, so where the two likeliest
tokens are almost equal, rounding may pick the other one: from there on the answers differ without anything being wrong.
A difference counts as a near tie only when that is proven: at the first differing position the two tokens are the
verifier's top two in fp32, and their logits lie within the threshold. Imports this room's client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
