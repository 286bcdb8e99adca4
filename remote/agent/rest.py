"""What a person can do with a run or stage that is not at work, as commands. Imports pipeline.rundir and conducted."""

from __future__ import annotations

from pipeline.rundir import RunDir, RunError, StageState, on_disk, run_status
from remote.agent.conducted import conductor_view


def at_rest(run: RunDir, stage: str = "") -> tuple[str, str]:
    """(message, remedy) for who wants to end what doesn't run: ``stage``, or the whole run."""
    if not stage:
        return f"nothing of {run.name} runs", ways_on(run)
    state = on_disk(run.stage(stage)).state.value
    at_work = conductor_view(run)
    if at_work["pid"]:
        where = f", which is at {at_work['stage']}" if at_work["stage"] else ""
        return f"nothing of {stage} runs: it is {state}", f"`eagledeck stop {run.name}` stops the run{where}"
    return f"nothing of {stage} runs: it is {state}", ways_on(run, stage)


def ways_on(run: RunDir, stage: str = "") -> str:
    """The commands that go on with a run, or with one of its stages; what is wrong with its plan, where it is that."""
    try:
        states = run_status(run)
    except RunError as error:
        return str(error)
    left = [name for name, seen in states.items() if seen.state is not StageState.DONE]
    resume = [name for name in left if states[name].resumable and stage in ("", name)]
    if resume:
        return f"`eagledeck resume {run.name} {resume[0]}` goes on with it"
    if not stage:
        return (
            f"`eagledeck start {run.name}` starts it" if left else f"`eagledeck status {run.name}` shows what it made"
        )
    if stage in left:
        return f"`eagledeck start {run.name}` goes from stage to stage"
    anew = f"`eagledeck restart {run.name} {stage}` makes a new output"
    return f"`eagledeck start {run.name}` goes on after it; {anew}" if left else anew
