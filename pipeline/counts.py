"""What an output counts so far, whichever of its attempts wrote it down.

Standard library only (Python >= 3.9). Imports pipeline.rundir.
"""

from __future__ import annotations

from typing import Any

from pipeline.rundir import RunError, StageDir, checkpoint_meta, newest_checkpoint


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


def worked_s(stage: StageDir, output: int | None, before: int) -> float:
    """Seconds that the attempts of an output before this one took, as far as their ends are known."""
    seconds = 0.0
    for number in stage.attempts() if output is not None else []:
        attempt = stage.attempt(number)
        if number >= before or attempt.spec().get("output") != output:
            continue
        started, ended = attempt.state().get("started"), (attempt.exit() or {}).get("ended")
        if isinstance(started, (int, float)) and isinstance(ended, (int, float)):
            seconds += max(0.0, ended - started)
    return seconds


def saved_step(stage: StageDir, output: int | None) -> int | None:
    """The step of the newest checkpoint of an output, its hashes unread; None without one that can be read."""
    try:
        found = newest_checkpoint(stage.output(output).path / "checkpoints") if output is not None else None
        step = checkpoint_meta(found).get("step") if found else None
    except RunError:
        return None
    return step if isinstance(step, int) else None
