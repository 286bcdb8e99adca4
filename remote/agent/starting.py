"""Starting what detaches itself: a stage's supervisor, a conductor, a service's keeper, the recorder.

Imports pipeline.rundir and modules beside it. The stage's lock is taken here and handed on to the supervisor, so that
of any number of starts exactly one wins, and none of them leaves half an attempt behind.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.rundir import Attempt, Lock, RunError, StageDir, held, write_json
from remote.agent.detach import start_detached
from remote.agent.paths import CODE

GONE_S = 5.0


def command(*words: str) -> list[str]:
    """The argv of a subcommand of this package, run from the same code by the same Python."""
    return [sys.executable, "-S", "-B", "-u", "-m", "remote.agent", *words]


def start_stage(
    stage: StageDir,
    *,
    restart: bool = False,
    environment: Mapping[str, str] | None = None,
    allow: tuple[str, ...] = (),
    needs: tuple[str, ...] = (),
    by: str = "",
) -> Attempt:
    """Opens an attempt and starts its supervisor. Raises RunError: it runs already, inputs are missing, it can't start.

    ``environment`` is added to what the plan sets (the URLs of the services), ``allow`` to what it allows; ``needs``
    are the services whose keepers its supervisor looks after.
    """
    label = f"{stage.run.name}/{stage.stage}"
    with locked(stage, label) as lock:
        attempt = stage.new_attempt(restart=restart, cwd=str(CODE), by=by)
        if environment or allow or needs:
            spec = attempt.spec()
            spec["services"] = list(needs)
            spec["env"] = {**spec.get("env", {}), **(environment or {})}
            spec["env_allow"] = [*spec.get("env_allow", ()), *allow]
            write_json(attempt.file("spec.json"), spec)
        launch(attempt, lock, label)
        return attempt


@contextlib.contextmanager
def locked(stage: StageDir, label: str) -> Iterator[Lock]:
    """Holds the lock of a stage or service. Raises RunError when somebody has it."""
    end = time.monotonic() + GONE_S
    while True:
        lock = Lock.acquire(stage.make().lock_path)
        if lock is not None:
            break
        # A supervisor that has written exit.json holds its lock until it is gone, a moment later.
        latest = stage.latest()
        if latest is None or latest.exit() is None or time.monotonic() > end:
            raise RunError(f"{label} runs already", "watch it, or stop it first")
        time.sleep(0.02)
    with lock:
        latest = stage.latest()
        if latest is not None and latest.exit() is not None:
            # The kernel frees a dying supervisor's lock a moment before its pid is gone.
            while latest.living() and time.monotonic() < end:
                time.sleep(0.02)
        yield lock


def launch(attempt: Attempt, lock: Lock, label: str) -> dict[str, Any]:
    """Starts the supervisor of an opened attempt and hands it the lock. Raises RunError with its first word."""
    argv = command("supervise", "--attempt", str(attempt.path), "--lock-fd", str(lock.fd))
    return _said(start_detached(argv, CODE, (lock.fd,)), label)


def adopt(attempt: Attempt, label: str) -> dict[str, Any]:
    """Starts a supervisor for an attempt that lost its own. Raises RunError."""
    return _said(start_detached(command("supervise", "--attempt", str(attempt.path), "--adopt"), CODE), label)


def start_conductor(run: Path, options: Mapping[str, str]) -> dict[str, Any]:
    """Starts the conductor of a run. Raises RunError with its reason."""
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    return _said(start_detached(command("conduct", "--run", str(run), *words), CODE), run.name)


def keep_recorded(root: Path) -> None:
    """Makes sure that the host's telemetry is recorded; nothing happens when it is already."""
    if not held(root / "telemetry" / "lock"):
        start_detached(command("record", "--root", str(root)), CODE)


def start_keeper(service: Path) -> None:
    """Makes sure that a service is kept; nothing happens when it is already."""
    start_detached(command("keep", "--service", str(service)), CODE)


def _said(word: dict[str, Any], label: str) -> dict[str, Any]:
    if not word.get("ok"):
        raise RunError(f"{label}: {word.get('message', '')}", str(word.get("remedy", "")))
    return word
