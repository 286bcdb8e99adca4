"""Which attempt a following log reads next."""

from __future__ import annotations

import argparse
from typing import Any

from console.command.logs import _Logs


def following(stages: dict[str, dict[str, Any]], stage: str | None = None) -> tuple[str, int] | None:
    reader = _Logs(None, "r1", argparse.Namespace(stage=stage, lines=10))  # type: ignore[arg-type]
    reader.push = {"run": "r1", "stages": stages}
    return reader._next()


DONE = {"state": "DONE", "attempt": 1, "started": 100.0}


def test_an_attempt_that_has_not_started_yet_comes_after_one_that_has_ended() -> None:
    assert following({"generate": DONE, "extract": {"state": "RUNNING", "attempt": 1, "started": None}}) == (
        "generate",
        1,
    )


def test_the_earlier_start_comes_first_and_a_named_stage_alone() -> None:
    stages = {"generate": {**DONE, "attempt": 3, "started": 300.0}, "extract": {**DONE, "started": 200.0}}
    assert following(stages) == ("extract", 1)
    assert following(stages, "generate") == ("generate", 3)
    assert following({}) is None
