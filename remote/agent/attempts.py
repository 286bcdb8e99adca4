"""Attempts as the host's processes see them: those of stages, and those of services, which have no run and no output.

Imports pipeline.rundir.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.rundir import Attempt, RunDir, RunError, StageDir, held, read_json, write_json

NOT_READY = "not ready in time"
"""Who asks for the stop of a service that doesn't answer in time: that is a failure."""
NOT_ANSWERING = "not answering"
"""Who asks for the kill of one that has stopped answering: a failure too, and one that it is restarted after."""


@dataclass(frozen=True)
class ServiceAttempt(Attempt):
    """One execution of a service, `services/NAME/attempts/000N`."""

    def begin(self) -> None:
        """A service has no output to open."""

    @property
    def ready(self) -> bool:
        return self.file("ready.json").exists()

    def mark_ready(self) -> None:
        """It has answered; the first time counts."""
        if not self.ready:
            write_json(self.file("ready.json"), {"t": time.time(), "url": self.spec().get("url")})

    @property
    def silence(self) -> dict[str, Any] | None:
        """Since when it has not been answering, and what it does instead: {"since", "message"}. None: it answers."""
        return read_json(self.file("silent.json"))

    @property
    def given_up(self) -> bool:
        """Whether its keeper has written down that this failure is left so."""
        return (read_json(self.stage.path / "keeper.json") or {}).get("attempt") == self.number

    @property
    def hung(self) -> bool:
        """Whether its keeper had it killed because it did not answer any longer."""
        # a full volume leaves a request without a name, and nobody else kills a service
        return (self.requested("kill") or {}).get("by") in (NOT_ANSWERING, "")

    def settled(self) -> bool:
        """Whether it has ended and nothing follows: it was asked to end, or a failure of it is left so."""
        ended = self.exit()
        if ended is None and (held(self.stage.lock_path) or self.living()):
            return False
        if self.stop_requested() or ((ended or {}).get("reason") in ("stopped", "killed") and not self.hung):
            return True
        spec = self.spec()
        return spec.get("restart") != "on-failure" or not (self.ready or spec.get("restarts")) or self.given_up


@dataclass(frozen=True)
class ServiceDir(StageDir):
    """The folder of a service: locks and attempts, like a stage's."""

    @classmethod
    def of(cls, root: Path, name: str) -> ServiceDir:
        services = root / "services"
        return cls(services / name, RunDir(services))

    def make(self) -> ServiceDir:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        super().make()
        return self

    @property
    def keeper_lock_path(self) -> Path:
        return self.path / "keeper.lock"

    def attempt(self, number: int) -> ServiceAttempt:
        return ServiceAttempt(super().attempt(number).path, self)

    def latest(self) -> ServiceAttempt | None:
        found = self.attempts()
        return self.attempt(found[-1]) if found else None

    def unkept(self) -> bool:
        """Whether it needs a keeper and none is there: it was killed."""
        if held(self.keeper_lock_path):
            return False
        attempt = self.latest()
        return attempt is not None and not attempt.settled()


def attempt_at(path: Path) -> Attempt:
    """The attempt whose folder is ``path``: ROOT/services/NAME/attempts/000N, or RUN/STAGE/attempts/000N."""
    folder = path.parent.parent
    if folder.parent.name == "services":
        return ServiceAttempt(path, ServiceDir(folder, RunDir(folder.parent)))
    return Attempt(path, StageDir(folder, RunDir(folder.parent)))


def completed(attempt: Attempt) -> bool:
    """Whether this attempt has completed its output: an older report isn't its own."""
    if "output" not in attempt.spec():
        return False
    try:
        output = attempt.output()
    except RunError:
        return False
    return output.complete and (output.report() or {}).get("attempt", attempt.number) == attempt.number
