"""Servers that stages need: supervised like stages under ROOT/services/NAME, shared by runs, ready when they answer.

Imports pipeline.rundir, pipeline.config and modules beside it. A service that runs with the same definition is used as
it is; one that another run uses is never stopped or replaced under it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pipeline.config import Plan
from pipeline.rundir import Lock, RunDir, RunError, held, read_json, valid_name, write_json
from remote.agent.attempts import NOT_READY, ServiceAttempt, ServiceDir
from remote.agent.health import HOST, answers, free_port, healthy
from remote.agent.paths import CODE
from remote.agent.service_view import Definition, ServiceView, define, describe, users, uses, view
from remote.agent.stagelog import last_line
from remote.agent.starting import adopt, launch, locked, start_keeper

GRACE_S = 30.0
POLL_S = 0.5
STOP_S = 120.0
"""Longer than the ladder of its supervisor: then something sits in the kernel and can't be killed."""
KEPT_ATTEMPTS = 20
ADOPTIONS = 3


def ensure(
    run: RunDir, plan: Plan, name: str, stage: str, cancelled: Callable[[], bool], say: Callable[[str], None]
) -> str:
    """The URL of a service that is ready, started when need be; blocks for up to its ready timeout.

    One that isn't answering is waited for, and what its keeper makes of it. Raises RunError: it can't start, isn't
    ready in time, doesn't answer again, another run uses it with another definition, or ``cancelled``.
    """
    definition, said = define(run, plan, name), ""
    while True:
        said = _have_up(run, definition, stage, cancelled, say, said)
        url = wait_ready(run.root, definition, cancelled)
        if url:
            return url


def _have_up(
    run: RunDir,
    definition: Definition,
    stage: str,
    cancelled: Callable[[], bool],
    say: Callable[[str], None],
    said: str,
) -> str:
    """Starts it unless it is up. What was said of one that doesn't answer, which ``said`` keeps from being repeated."""
    root, name = run.root, definition.name
    with using(root, name):
        folder = root / "services" / name / "users"
        folder.mkdir(mode=0o700, exist_ok=True)
        write_json(folder / f"{run.name}.json", {"run": run.name, "stage": stage, "since": time.time()})
        seen = view(root, name)
        if seen.state == "LOST":
            seen = _found_again(root, name)
        if seen.up and seen.fingerprint != definition.fingerprint:
            others = users(root, name, but=run.name)
            if others:
                raise RunError(
                    f"service {name} runs with another definition and {', '.join(others)} uses it",
                    f"wait for it, or give the service another name in the plan of {run.name}",
                )
            say(f"service {name} is started anew: its definition has changed")
            _stop(root, name, "its definition has changed")
            seen = view(root, name)
        while seen.state == "STOPPING":
            _pause(cancelled, name)
            seen = view(root, name)
        if not seen.up:
            say(f"service {name} is started")
            start(root, definition, by=f"{run.name}/{stage}")
        elif ServiceDir.of(root, name).unkept():
            start_keeper(ServiceDir.of(root, name).path)
    if seen.state == "SILENT" and not said:
        said = f"service {name} is waited for: it isn't answering ({seen.message})"
        say(said)
    return said


def _found_again(root: Path, name: str) -> ServiceView:
    """A service that lost its supervisor, once it has one again. Raises RunError when none stays."""
    service = ServiceDir.of(root, name)
    for _ in range(ADOPTIONS):
        attempt = service.latest()
        if attempt is not None and not held(service.lock_path):
            adopt(attempt, f"service {name}")
        seen = view(root, name)
        if seen.state != "LOST":
            return seen
        time.sleep(POLL_S)
    raise RunError(
        f"service {name} runs without a supervisor, and {ADOPTIONS} that were started for it are gone again",
        f"look into {service.path}, end its processes, then start the run again",
    )


def start(root: Path, definition: Definition, by: str) -> ServiceAttempt:
    """Opens and supervises a new attempt, and has it kept. Raises RunError: it runs already, its port is taken, …"""
    service, name, plan = ServiceDir.of(root, definition.name), definition.name, definition.plan
    port = plan.port or free_port()
    attempt = open_attempt(
        service,
        {
            "schema": 1,
            "service": name,
            "argv": definition.command(str(port)),
            "cwd": str(CODE),
            "gpus": plan.gpus,
            "env_allow": list(plan.env_allow),
            "env": dict(plan.env),
            "grace_s": GRACE_S,
            "url": f"http://{HOST}:{port}",
            "port": port,
            "any_port": not plan.port,
            "health": plan.health,
            "ready_timeout_s": plan.ready_timeout_s,
            "answer_timeout_s": plan.answer_timeout_s,
            "fingerprint": definition.fingerprint,
            "restart": plan.restart,
            "restarts": 0,
            "by": by,
        },
    )
    start_keeper(service.path)
    return attempt


def open_attempt(service: ServiceDir, spec: dict[str, Any]) -> ServiceAttempt:
    """A new attempt of ``spec``, supervised. Raises RunError: it runs already, its port is taken, it can't start."""
    name, port = str(spec["service"]), int(spec["port"])
    with locked(service, f"service {name}") as lock:
        latest = service.latest()
        if held(service.writer_lock_path) or (latest is not None and latest.living()):
            raise RunError(f"processes of service {name} still live", "stop or kill them first")
        if not spec["any_port"] and answers(port):
            raise RunError(
                f"service {name} can't have port {port}: something else listens there",
                f"stop it, or set services.{name}.port to another port (0: any free one)",
            )
        number = max(service.attempts(), default=0) + 1
        attempt = service.attempt(number)
        for folder in (attempt.path.parent, attempt.path, attempt.path / "control"):
            folder.mkdir(mode=0o700, exist_ok=folder == attempt.path.parent)
        write_json(attempt.file("spec.json"), {**spec, "attempt": number, "created": time.time()})
        launch(attempt, lock, f"service {name}")
        _drop_old(service)
        return attempt


def wait_ready(root: Path, definition: Definition, cancelled: Callable[[], bool]) -> str:
    """Blocks until the newest attempt answers its health path, and marks it ready. Raises RunError as `ensure` does.

    "" for one that was ready, stopped answering and has ended since.
    """
    name, plan = definition.name, definition.plan
    attempt = ServiceDir.of(root, name).latest()
    assert attempt is not None
    spec, log = attempt.spec(), attempt.file("stage.log")
    end = time.monotonic() + plan.ready_timeout_s
    while True:
        late = (attempt.requested("stop") or {}).get("by") == NOT_READY
        silence = attempt.silence
        if not late and (attempt.exit() is not None or not held(attempt.stage.lock_path)):
            if silence is not None and not attempt.stop_requested():
                return ""
            said = last_line(log)
            message = str((attempt.exit() or {}).get("message") or "it ended")
            if said and said not in message:
                message = f"{message}: {said}"
            raise RunError(f"service {name} ended before it was ready: {message}", f"look into {log}")
        if silence is None and (attempt.ready or healthy(int(spec["port"]), plan.health)):
            attempt.mark_ready()
            return str(spec["url"])
        if silence is not None:
            if plan.restart == "never" and time.time() - float(silence["since"]) > plan.answer_timeout_s:
                raise RunError(
                    f"service {name} isn't answering ({silence['message']}), and by its plan it is never restarted",
                    f"look into {log}, stop the service, then start the run again",
                )
        elif late or time.monotonic() > end:
            attempt.request("stop", NOT_READY)
            raise RunError(
                f"service {name} was not ready within {plan.ready_timeout_s:.0f} s; its last line: {last_line(log)!r}",
                f"look into {log}, or raise services.{name}.ready_timeout_s",
            )
        _pause(cancelled, name)


def used_by(run: RunDir) -> list[str]:
    """The services that a run has said it uses, whatever its plan says by now, and those of its plan."""
    said = {path.parent.parent.name for path in (run.root / "services").glob(f"*/users/{run.name}.json")}
    try:
        said |= set(run.plan().services)
    except RunError:
        pass  # stop and kill need no plan
    return sorted(name for name in said if valid_name(name))


def kept_by(run: RunDir, name: str) -> bool:
    """Whether the plan has a service stay up when the run needs it no longer; not without a readable plan."""
    try:
        service = run.plan().services.get(name)
    except RunError:
        return False
    return service is not None and service.keep


def release(run: RunDir, name: str, keep: bool = False, wait: bool = True) -> bool:
    """This run needs the service no longer: stopped (True) unless another run uses it or it is to be kept (False).

    A stage of this run that still lives, whatever became of its conductor, keeps it as well.
    """
    root = run.root
    if not (root / "services" / name).is_dir():
        return False
    with using(root, name):
        said = root / "services" / name / "users" / f"{run.name}.json"
        stage = str((read_json(said) or {}).get("stage") or "")
        if stage and held(run.path / stage / "lock"):
            return False
        said.unlink(missing_ok=True)
        if users(root, name, but=run.name) or keep:
            return False
        return _stop(root, name, f"{run.name} needs it no longer", wait)


def start_alone(run: RunDir, name: str, by: str) -> bool:
    """Starts a service of a run's plan without a stage; True when it is up already. Waits for nothing.

    Raises RunError: it is up with another definition, still stopping, or can't start.
    """
    root, definition = run.root, define(run, run.plan(), name)
    with using(root, name):
        seen = view(root, name)
        if seen.up and seen.fingerprint == definition.fingerprint:
            if ServiceDir.of(root, name).unkept():
                start_keeper(ServiceDir.of(root, name).path)
            return True
        if seen.up:
            raise RunError(
                f"service {name} runs with another definition than the plan's of {run.name}",
                f"`eagledeck service stop {run.name} {name}` ends it; then start it again",
            )
        if seen.state == "STOPPING":
            raise RunError(f"service {name} is being stopped", "start it again once it has ended")
        start(root, definition, by)
        return False


def told_of(root: Path, name: str) -> dict[str, Any]:
    """What is told of a service: its view, RUN/STAGE of what uses it, how often it was restarted in a row, and why."""
    attempt = ServiceDir.of(root, name).latest()
    spec = attempt.spec() if attempt else {}
    restarts = int(spec.get("restarts") or 0)
    why = str(spec.get("why") or "") if restarts else ""
    return {**describe(view(root, name)), "uses": uses(root, name), "restarts": restarts, "why": why}


def stop(root: Path, name: str, despite: tuple[str, ...] = ()) -> str:
    """Asks a service to end; its state before. Raises RunError while a stage uses it that ``despite`` doesn't name.

    ``despite`` holds RUN/STAGE of the uses that a person has been told of. Nothing is waited for.
    """
    with using(root, name):
        before = view(root, name).state
        used = [use for use in uses(root, name) if use not in despite]
        if used:
            run, _, stage = used[0].partition("/")
            raise RunError(
                f"service {name} isn't stopped: {', '.join(used)} uses it",
                f"`eagledeck stop {run}` saves and ends {stage} first; "
                f"`eagledeck service stop {run} {name} --yes` stops the service under it, and what asks it fails",
            )
        _stop(root, name, "a person", wait=False)
        return before


def _stop(root: Path, name: str, why: str, wait: bool = True) -> bool:
    seen, service = view(root, name), ServiceDir.of(root, name)
    attempt = service.latest()
    if attempt is None:
        return False
    if seen.state == "FAILED":
        attempt.request("stop", why)  # so that its keeper restarts it no more
    if not (seen.up or seen.state == "STOPPING"):
        return False
    if seen.state == "LOST":
        adopt(attempt, f"service {name}")
    attempt.request("stop", why)
    end = time.monotonic() + STOP_S
    while wait and held(service.lock_path):
        if time.monotonic() > end:
            raise RunError(
                f"service {name} can't be stopped: some of its processes can't be killed", "restart the host"
            )
        time.sleep(0.1)
    return True


@contextlib.contextmanager
def using(root: Path, name: str) -> Iterator[None]:
    """One at a time decides about a service, so that nobody stops what another has just decided to use."""
    service = ServiceDir.of(root, name).make()
    end = time.monotonic() + 120.0
    while True:
        lock = Lock.acquire(service.path / "use.lock")
        if lock is not None:
            break
        if time.monotonic() > end:
            raise RunError(f"service {name} is being started or stopped by another run", "try again in a minute")
        time.sleep(0.1)
    with lock:
        yield


def _pause(cancelled: Callable[[], bool], name: str) -> None:
    if cancelled():
        raise RunError(f"the wait for service {name} was cancelled", "start the run again")
    time.sleep(POLL_S)


def _drop_old(service: ServiceDir) -> None:
    for number in service.attempts()[:-KEPT_ATTEMPTS]:
        path = service.attempt(number).path
        for file in (*path.glob("control/*"), *path.glob("*")):
            if file.is_file():
                os.unlink(file)
        for folder in (path / "control", path):
            with contextlib.suppress(OSError):
                folder.rmdir()
