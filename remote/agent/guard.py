"""A supervisor's look at the keepers of services: one that was killed is started again while nobody else is there.

A service's supervisor looks after its keeper, which looks after that supervisor; a stage's looks after the keepers of
the services that the stage needs, should both have been killed. Any number may start one: its lock lets one in, and it
takes the server as it is. Imports modules beside it; a supervisor has to stay small.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from pipeline.rundir import Attempt
from remote.agent.attempts import ServiceDir
from remote.agent.kernel import become_subreaper
from remote.agent.paths import CODE
from remote.agent.starting import command

LOOK_S, SELDOM_S = 5.0, 300.0


class Guard:
    """``now`` in seconds, monotonic. What doesn't help is tried ever more seldom."""

    def __init__(self, attempt: Attempt, now: float) -> None:
        self._services = tuple(_needed(attempt))
        self._wait_s = LOOK_S
        self._next = now + LOOK_S

    def look(self, now: float) -> list[str]:
        """The services whose keepers were started."""
        if not self._services or now < self._next:
            return []
        unkept: list[str] = []
        with contextlib.suppress(OSError):  # no process or descriptor is left just now
            for service in self._services:
                if service.unkept():
                    _start_apart(command("keep", "--service", str(service.path)), CODE)
                    unkept.append(service.path.name)
        self._wait_s = min(SELDOM_S, self._wait_s * 2) if unkept else LOOK_S
        self._next = now + self._wait_s
        return unkept


def _start_apart(argv: list[str], cwd: Path) -> None:
    """Runs a command as nobody's child, for a subreaper: what it started itself would be a member of its attempt.

    Nothing is waited for. Only in a process of one thread. Raises OSError.
    """
    # For a moment, a millisecond or two: what is orphaned then is found by its session, or was remembered.
    become_subreaper(False)
    try:
        first = os.fork()
        if not first:
            try:
                if not os.fork():
                    os.chdir(cwd)
                    null = os.open(os.devnull, os.O_RDWR)
                    for fd in (0, 1):
                        os.dup2(null, fd)
                    os.execv(argv[0], argv)
            finally:
                os._exit(0)
        os.waitpid(first, 0)
    finally:
        become_subreaper()


def _needed(attempt: Attempt) -> list[ServiceDir]:
    spec = attempt.spec()
    if "service" in spec:
        return [ServiceDir.of(_root_of(attempt), str(spec["service"]))]
    return [ServiceDir.of(_root_of(attempt), str(name)) for name in spec.get("services") or ()]


def _root_of(attempt: Attempt) -> Path:
    return attempt.stage.run.path.parent
