"""What an output counts so far, whichever of its attempts wrote it down.

Standard library only (Python >= 3.9). Imports pipeline.rundir.
"""

from __future__ import annotations

from typing import Any

from pipeline.rundir import StageDir


def counted(stage: StageDir, output: int | None) -> dict[str, Any]:
    """The newest progress of an output of the stage that has counts (`counts`, `bytes`, …); {} without one.

    An attempt begins without counts while it loads, and may fail like that: then the one before still says what the
    output holds.
    """
    for number in reversed(stage.attempts() if output is not None else []):
        attempt = stage.attempt(number)
        if attempt.spec().get("output") != output:
            continue
        progress = attempt.progress()
        if progress and progress.get("counts"):
            return progress
    return {}
