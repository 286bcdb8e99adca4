"""The clocks of stages at work: the host sends no news when only time has passed. No I/O, no Textual."""

from __future__ import annotations

from dataclasses import replace

from console.snapshot import StageView
from console.widgets.looks import ACTIVE


class StageClocks:
    """Lets the elapsed time of a stage at work go on from the host's last word about it, while the link is live."""

    def __init__(self) -> None:
        self._told: dict[str, float | None] = {}
        self._since: dict[str, float] = {}
        self._live_until = 0.0

    def tick(self, stages: tuple[StageView, ...], live: bool, now: float) -> tuple[StageView, ...]:
        """The stages with their clocks at `now` (seconds of any clock); without a live link these stand still."""
        if live:
            self._live_until = now
        return tuple(self._at(stage, now) for stage in stages)

    def _at(self, stage: StageView, now: float) -> StageView:
        if stage.name not in self._told or self._told[stage.name] != stage.elapsed_s:
            self._told[stage.name], self._since[stage.name] = stage.elapsed_s, now
        if stage.state not in ACTIVE or stage.elapsed_s is None:
            return stage
        return replace(stage, elapsed_s=stage.elapsed_s + max(0.0, self._live_until - self._since[stage.name]))
