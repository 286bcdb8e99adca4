"""Why stages are STALE, each cause once: where it lies, and what is stale for it. Pure, standard library only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from console.snapshot import StageView


@dataclass(frozen=True)
class Cause:
    """`stages` have the `reason` themselves; `others` are made from them and go with them."""

    stages: tuple[StageView, ...]
    reason: str
    others: tuple[StageView, ...] = ()

    def text(self) -> str:
        """`vocab STALE: vocab.size is 16000 now, was 32000; with it train, deploy`."""
        words = f"{', '.join(stage.name for stage in self.stages)} STALE" + (f": {self.reason}" if self.reason else "")
        if self.others:
            them = "it" if len(self.stages) == 1 else "them"
            words += f"; with {them} {', '.join(stage.name for stage in self.others)}"
        return words


def causes(stale: Iterable[StageView]) -> list[Cause]:
    """The causes of these stages' being STALE, in the stages' order."""
    stale = tuple(stale)
    names = {stage.name for stage in stale}
    firsts: dict[str, list[StageView]] = {}
    for stage in stale:
        if stage.stale_root == stage.name or stage.stale_root not in names:
            firsts.setdefault(stage.stale_reason, []).append(stage)
    found = []
    for reason, stages in firsts.items():
        roots = {stage.name for stage in stages}
        others = tuple(stage for stage in stale if stage.stale_root in roots and stage.name not in roots)
        found.append(Cause(tuple(stages), reason, others))
    return found
