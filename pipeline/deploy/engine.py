"""An engine as a child process: started on a port of its own, waited for, and ended with everything it started.

The child gets its own process group, so that ending it by group id reaches its workers and nothing else; on Linux it
also dies with this process. Imports pipeline.config and pipeline.failure.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from pipeline.config import ServicePlan
from pipeline.failure import StageError

HOST = "127.0.0.1"
END_GRACE_S, KILL_GRACE_S = 10.0, 2.0
"""Seconds after SIGTERM, and after SIGKILL (a dead child that nobody waits for stays in the group)."""
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class EngineCommand:
    """What to start: argv with the port filled in, variables to set, where it answers when ready."""

    argv: tuple[str, ...]
    port: int
    health: str = "/health"
    ready_timeout_s: float = 600.0
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"


def bundled_command(
    verifier: str, dtype: str, threads: int, batch: int, drafter: Path | None = None, k: int = 0
) -> EngineCommand:
    """The bundled engine on a free port, with a drafter where one is given."""
    port = free_port()
    argv = [sys.executable, "-m", "pipeline.engine", "--model", verifier, "--host", HOST, "--port", str(port)]
    argv += ["--dtype", dtype, "--max-batch", str(batch), "--reasoning-parser", "none"]
    argv += ["--threads", str(threads)] if threads else []
    argv += ["--drafter", str(drafter), "--k", str(k)] if drafter is not None else []
    return EngineCommand(tuple(argv), port)


def service_command(service: ServicePlan, verifier: str, drafter: Path | None = None, k: int = 0) -> EngineCommand:
    """A service of the plan on a free port, with the words for drafting (`pipeline.command`) where a drafter is given.

    k: tokens drafted per verification.
    """
    port, words = free_port(), service.words(drafter is not None)
    places = {"{port}": str(port), "{host}": HOST, "{verifier}": verifier, "{drafter}": str(drafter)}
    places |= {"{python}": service.python or sys.executable, "{k}": str(k), "{k+1}": str(k + 1)}
    for place, value in places.items():
        words = [word.replace(place, value) for word in words]
    env = {name: os.environ[name] for name in service.env_allow if name in os.environ} | dict(service.env)
    return EngineCommand(tuple(words), port, service.health, service.ready_timeout_s, env)


def free_port() -> int:
    """A TCP port that nothing listens on now."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port


class Engine:
    """A started engine. Leaving the context ends its process group."""

    def __init__(self, command: EngineCommand, log: Path) -> None:
        """Starts the process; its output goes to `log`. Raises StageError when the program isn't there."""
        self.command, self.log = command, log
        environment = {**os.environ, **command.env}
        try:
            with log.open("ab") as file:
                self.process = subprocess.Popen(
                    command.argv,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    process_group=0,
                    preexec_fn=_die_with_parent if sys.platform == "linux" else None,
                )
        except OSError as error:
            raise StageError(
                f"The engine's program {command.argv[0]} can't be started ({error.strerror})",
                "Correct the service's command or python in the plan",
            ) from None

    @property
    def url(self) -> str:
        return self.command.url

    def wait_ready(self, stopping: Callable[[], bool]) -> bool:
        """Until the engine answers: True, or False when a stop was asked for first. Raises StageError when it ends or
        takes longer than its time.
        """
        deadline = time.monotonic() + self.command.ready_timeout_s
        while not stopping():
            code = self.process.poll()
            if code is not None:
                raise StageError(
                    f"The engine ended with status {code} before it answered: {self._last_line()}", self._advice()
                )
            try:
                with urllib.request.urlopen(self.url + self.command.health, timeout=2.0) as answer:
                    if answer.status == 200:
                        return True
            except (OSError, urllib.error.URLError):
                pass
            if time.monotonic() > deadline:
                raise StageError(
                    f"The engine did not answer within {self.command.ready_timeout_s:.0f} s: {self._last_line()}",
                    self._advice(),
                )
            time.sleep(0.1)
        return False

    def stop(self) -> None:
        """SIGTERM to the process group, SIGKILL once its time is over. Twice is fine."""
        for number, patience in ((signal.SIGTERM, END_GRACE_S), (signal.SIGKILL, KILL_GRACE_S)):
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                break
            deadline = time.monotonic() + patience
            while time.monotonic() < deadline and (self.process.poll() is None or _group_lives(self.process.pid)):
                time.sleep(0.02)
        self.process.wait()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _last_line(self) -> str:
        return last_line(self.log) or "it printed nothing"

    def _advice(self) -> str:
        return f"Look at {self.log}"


def last_line(log: Path) -> str:
    """The last line of a log that isn't empty, at most 300 characters."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 8192))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
