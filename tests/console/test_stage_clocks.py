"""Clocks go on between pushes, stand still without a link, and never run for a stage that is not at work."""

from __future__ import annotations

from typing import Any

from console.screens.stage_clocks import StageClocks


def test_a_clock_goes_on_from_the_last_word_of_the_host(scenes: Any) -> None:
    clocks = StageClocks()
    stages = scenes.stages("DONE", extract=scenes.stage("extract", "RUNNING", elapsed_s=10.0))
    assert clocks.tick(stages, True, 100.0)[1].elapsed_s == 10.0
    assert clocks.tick(stages, True, 107.0)[1].elapsed_s == 17.0
    later = scenes.stages("DONE", extract=scenes.stage("extract", "RUNNING", elapsed_s=18.5))
    assert clocks.tick(later, True, 108.0)[1].elapsed_s == 18.5
    assert clocks.tick(later, True, 109.0)[1].elapsed_s == 19.5


def test_a_clock_stands_still_while_the_link_is_away(scenes: Any) -> None:
    clocks = StageClocks()
    stages = scenes.stages(train=scenes.stage("train", "RUNNING", elapsed_s=10.0))
    clocks.tick(stages, True, 100.0)
    assert clocks.tick(stages, True, 105.0)[3].elapsed_s == 15.0
    assert clocks.tick(stages, False, 500.0)[3].elapsed_s == 15.0


def test_stages_that_rest_keep_their_time(scenes: Any) -> None:
    clocks = StageClocks()
    stages = scenes.stages(
        train=scenes.stage("train", "DONE", elapsed_s=10.0), extract=scenes.stage("extract", "RUNNING")
    )
    clocks.tick(stages, True, 100.0)
    found = clocks.tick(stages, True, 200.0)
    assert (found[3].elapsed_s, found[1].elapsed_s) == (10.0, None)
