"""Attempts as the host's processes see them: those of stages, and those of services, which have no run and no output.

Imports pipeline.rundir.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from pipeline.rundir import Attempt, RunDir, RunError, StageDir, write_json


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
