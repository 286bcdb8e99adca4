"""What the person who pressed start or restart asked for. Imports pipeline.rundir and remote.agent.paths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.rundir import STAGES, RunDir, RunError, made_from
from remote.agent.paths import stage_name

STALE = ("refuse", "rerun", "keep")
"""What becomes of stages that are stale: halt there, make them anew, use them as they are."""


RERUN, KEEP = "--rerun-stale", "--keep-stale"


@dataclass(frozen=True)
class Errand:
    """``restart``: a stage that begins a new output. ``resume``: one that is gone on with; what is made from it is
    brought up to date whatever ``stale``, one of STALE, says about the others.
    """

    through: str = "deploy"
    first: str = "generate"
    restart: str = ""
    stale: str = "refuse"
    resume: str = ""
    run: str = "RUN"
    """The run's name, for the commands in remedies."""

    def stages(self) -> tuple[str, ...]:
        return STAGES[STAGES.index(self.first) : STAGES.index(self.through) + 1]

    def reruns(self, stage: str) -> bool:
        """Whether it makes that stage anew when it is stale."""
        return self.stale == "rerun" or bool(self.resume and stage in made_from(self.resume))

    def settles(self) -> list[str]:
        """Stages that it makes anew, or uses as they are, when they are stale: nobody is asked about them."""
        return [name for name in self.stages() if self.stale == "keep" or self.reruns(name)]

    def command(self, option: str) -> str:
        """This errand with another answer to what is stale, as a person types it."""
        if self.restart:
            words = ["restart", self.run, self.restart]
        else:
            # what is made anew before it leaves nothing to resume
            words = ["resume" if self.resume and option == KEEP else "start", self.run]
        return f"`{' '.join(['eagledeck', *words, option])}`"


def errand_of(run: RunDir, options: Mapping[str, str]) -> Errand:
    """The errand of a command line; `through` defaults to the plan's. Raises RunError for values that are none."""
    stale = options.get("stale") or "refuse"
    if stale not in STALE:
        raise RunError(f"stale = {stale!r} is not allowed", "it takes " + ", ".join(STALE))
    through = options.get("through") or run.plan().through
    first = options.get("from") or STAGES[0]
    restart, resume = options.get("restart") or "", options.get("resume") or ""
    for name in filter(None, (through, first, restart, resume)):
        stage_name(name)
    if STAGES.index(first) > STAGES.index(through):
        raise RunError(f"{first} comes after {through}", f"start from {through} or earlier, or go on through {first}")
    if restart and restart not in Errand(through, first).stages():
        raise RunError(
            f"{restart} lies beyond {through}, the last stage of the plan",
            f"`eagledeck set {run.name} through={restart}` moves it; then restart",
        )
    return Errand(through, first, restart, stale, resume, run.name)
