"""Servers that stages need: supervised like stages under ROOT/services/NAME, shared by runs, ready when they answer.

Imports pipeline.rundir, pipeline.config and modules beside it. A service that runs with the same definition is used as
it is; one that another run uses is never stopped or replaced under it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pipeline.config import Plan
from pipeline.rundir import Lock, RunDir, RunError, held, read_json, write_json
from remote.agent.attempts import ServiceAttempt, ServiceDir
from remote.agent.paths import CODE
from remote.agent.service_view import HOST, Definition, define, users, view
from remote.agent.stagelog import last_line
from remote.agent.starting import adopt, launch, locked

GRACE_S = 30.0
RESTARTS = 3
STEADY_S = 600.0
"""A service that was up this long has its restarts counted anew."""
POLL_S = 0.5
STOP_S = 120.0
"""Longer than the ladder of its supervisor: then something sits in the kernel and can't be killed."""
KEPT_ATTEMPTS = 20


class AddressTaken(RunError):
    """A service that failed can't come back where the stage asks it: something else listens there by now."""


def ensure(
    run: RunDir, plan: Plan, name: str, stage: str, cancelled: Callable[[], bool], say: Callable[[str], None]
) -> str:
    """The URL of a service that is ready, started when need be; blocks for up to its ready timeout.

    Raises RunError: it can't start, isn't ready in time, another run uses it with another definition, or ``cancelled``.
    """
    root, definition = run.root, define(run, plan, name)
    with _using(root, name):
        folder = root / "services" / name / "users"
        folder.mkdir(mode=0o700, exist_ok=True)
        write_json(folder / f"{run.name}.json", {"run": run.name, "stage": stage, "since": time.time()})
        seen = view(root, name)
        if seen.state == "LOST":
            attempt = ServiceDir.of(root, name).latest()
            if attempt is not None:
                adopt(attempt, f"service {name}")
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
        while seen.state == "STOPPING" or (seen.state == "LOST" and not held(ServiceDir.of(root, name).lock_path)):
            _pause(cancelled, name)
            seen = view(root, name)
        if not seen.up:
            say(f"service {name} is started")
            start(root, definition, by=f"{run.name}/{stage}")
    return wait_ready(root, definition, cancelled)


def start(root: Path, definition: Definition, by: str, restarts: int = 0, port: int = 0) -> ServiceAttempt:
    """Opens and supervises a new attempt. Raises RunError: it runs already, its port is taken, it can't start.

    ``port`` is where it is to listen when the plan takes any free one (0: any free one indeed).
    """
    service, name, plan = ServiceDir.of(root, definition.name), definition.name, definition.plan
    with locked(service, f"service {name}") as lock:
        latest = service.latest()
        if held(service.writer_lock_path) or (latest is not None and latest.living()):
            raise RunError(f"processes of service {name} still live", "stop or kill them first")
        port = plan.port or port or _free_port()
        if plan.port and _answers(port):
            raise RunError(
                f"service {name} can't have port {port}: something else listens there",
                f"stop it, or set services.{name}.port to another port (0: any free one)",
            )
        number = max(service.attempts(), default=0) + 1
        attempt = service.attempt(number)
        for folder in (attempt.path.parent, attempt.path, attempt.path / "control"):
            folder.mkdir(mode=0o700, exist_ok=folder == attempt.path.parent)
        write_json(
            attempt.file("spec.json"),
            {
                "schema": 1,
                "service": name,
                "attempt": number,
                "argv": definition.command(str(port)),
                "cwd": str(CODE),
                "gpus": plan.gpus,
                "env_allow": list(plan.env_allow),
                "env": dict(plan.env),
                "grace_s": GRACE_S,
                "url": f"http://{HOST}:{port}",
                "port": port,
                "health": plan.health,
                "fingerprint": definition.fingerprint,
                "restart": plan.restart,
                "restarts": restarts,
                "by": by,
                "created": time.time(),
            },
        )
        launch(attempt, lock, f"service {name}")
        _drop_old(service)
        return attempt


def wait_ready(root: Path, definition: Definition, cancelled: Callable[[], bool]) -> str:
    """Blocks until the newest attempt answers its health path, and marks it ready. Raises RunError as `ensure` does."""
    name, plan = definition.name, definition.plan
    attempt = ServiceDir.of(root, name).latest()
    assert attempt is not None
    spec, log = attempt.spec(), attempt.file("stage.log")
    end = time.monotonic() + plan.ready_timeout_s
    while True:
        if attempt.exit() is not None or not held(attempt.stage.lock_path):
            said = last_line(log)
            message = str((attempt.exit() or {}).get("message") or "it ended")
            if said and said not in message:
                message = f"{message}: {said}"
            raise RunError(f"service {name} ended before it was ready: {message}", f"look into {log}")
        if attempt.file("ready.json").exists():
            return str(spec["url"])
        if healthy(int(spec["port"]), plan.health):
            write_json(attempt.file("ready.json"), {"t": time.time(), "url": spec["url"]})
            return str(spec["url"])
        if time.monotonic() > end:
            attempt.request("stop", "not ready in time")
            raise RunError(
                f"service {name} was not ready within {plan.ready_timeout_s:.0f} s; its last line: {last_line(log)!r}",
                f"look into {log}, or raise services.{name}.ready_timeout_s",
            )
        _pause(cancelled, name)


def keep_up(run: RunDir, plan: Plan, name: str) -> str:
    """Restarts a service that failed after it was ready, at most RESTARTS times in a row; what it did, or "".

    It comes back where it was, since the stage goes on asking there. Raises AddressTaken when a port that was any free
    one has been taken by something else: the next start of the run gives it another one, and the stage its address.
    """
    root = run.root
    attempt, seen = ServiceDir.of(root, name).latest(), view(root, name)
    if attempt is None:
        return ""
    spec, why = attempt.spec(), seen.message
    if seen.state == "STARTING" and healthy(int(spec["port"]), str(spec["health"])):
        write_json(attempt.file("ready.json"), {"t": time.time(), "url": spec["url"]})
        return f"service {name} is ready"
    if seen.state != "FAILED":
        return ""
    ready = read_json(attempt.file("ready.json"))
    if spec.get("restart") != "on-failure" or ready is None:
        return ""
    ended = (attempt.exit() or {}).get("ended") or time.time()
    count = 0 if ended - ready["t"] > STEADY_S else int(spec.get("restarts") or 0)
    if count >= RESTARTS:
        return ""
    with _using(root, name):
        if view(root, name).state != "FAILED":
            return ""
        definition, port = define(run, plan, name), int(spec["port"])
        if not definition.plan.port and _answers(port):
            raise AddressTaken(
                f"service {name} failed ({why}) and can't come back: something else listens on its port {port} by now",
                "start the run again: the service takes another port then, and the stage goes on with it",
            )
        start(root, definition, by=f"{run.name}: {why}"[:200], restarts=count + 1, port=port)
    return f"service {name} failed ({why}) and is restarted, {count + 1} of {RESTARTS}"


def release(run: RunDir, plan: Plan, name: str, wait: bool = True) -> bool:
    """This run needs the service no longer: stopped (True) unless another run uses it or the plan keeps it (False)."""
    root = run.root
    if not (root / "services" / name).is_dir():
        return False
    with _using(root, name):
        (root / "services" / name / "users" / f"{run.name}.json").unlink(missing_ok=True)
        service = plan.services.get(name)
        if users(root, name, but=run.name) or (service is not None and service.keep):
            return False
        return _stop(root, name, f"{run.name} needs it no longer", wait)


def stop(root: Path, name: str, why: str, used_or_not: bool = False) -> list[str]:
    """Asks a service to end, unless stages use it; these, as RUN/STAGE. ``used_or_not``: stopped all the same.

    Raises RunError when it doesn't run.
    """
    if not (root / "services" / name).is_dir():
        raise RunError(f"there is no service {name} in {root}", "see the services of the run's plan")
    with _using(root, name):
        seen = view(root, name)
        if not seen.up:
            raise RunError(f"service {name} is {seen.state}", "there is nothing to stop")
        used = []
        for run in users(root, name):
            record = read_json(root / "services" / name / "users" / f"{run}.json") or {}
            used.append(f"{run}/{record['stage']}" if record.get("stage") else run)
        if not used or used_or_not:
            _stop(root, name, why, wait=False)
        return used


def _stop(root: Path, name: str, why: str, wait: bool = True) -> bool:
    seen, service = view(root, name), ServiceDir.of(root, name)
    attempt = service.latest()
    if attempt is None or not (seen.up or seen.state == "STOPPING"):
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
def _using(root: Path, name: str) -> Iterator[None]:
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


def healthy(port: int, path: str, timeout: float = 2.0) -> bool:
    """Whether GET ``path`` on the loopback answers 200. Raw, because http.client costs a conductor two megabytes."""
    try:
        with socket.create_connection((HOST, port), timeout) as link:
            link.settimeout(timeout)
            link.sendall(f"GET {path} HTTP/1.1\r\nHost: {HOST}:{port}\r\nConnection: close\r\n\r\n".encode())
            head = link.recv(64)
            while head and b"\r\n" not in head and len(head) < 64:
                piece = link.recv(64)
                if not piece:
                    break
                head += piece
    except OSError:
        return False
    words = head.split(b"\r\n", 1)[0].split()
    return len(words) >= 2 and words[0].startswith(b"HTTP/") and words[1] == b"200"


def _answers(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), 1.0):
            return True
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _drop_old(service: ServiceDir) -> None:
    for number in service.attempts()[:-KEPT_ATTEMPTS]:
        path = service.attempt(number).path
        for file in (*path.glob("control/*"), *path.glob("*")):
            if file.is_file():
                os.unlink(file)
        for folder in (path / "control", path):
            with contextlib.suppress(OSError):
                folder.rmdir()
