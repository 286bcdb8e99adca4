"""One keeper per service: marks it ready when it answers, stops it when it doesn't in time, restarts it when it fails.

A server that answers no longer has failed too: it is killed, since one that hangs saves nothing. Detached, under
SERVICE/keeper.lock, so that a service is kept up while no conductor lives. It owns nothing that the files don't say:
one that was killed is started again (`remote.agent.guard`), and goes on from them. keeper.log tells what it does.
Imports pipeline.rundir and modules beside it.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from pipeline.rundir import Lock, RunError, read_json, write_json
from remote.agent.attempts import NOT_ANSWERING, NOT_READY, ServiceAttempt, ServiceDir
from remote.agent.detach import Ready, detach
from remote.agent.health import answers, healthy
from remote.agent.service_view import ServiceView, view
from remote.agent.services import open_attempt, using
from remote.agent.silence import Listener
from remote.agent.starting import adopt, start_keeper

RESTARTS = 3
BACKOFF_S = (1.0, 3.0, 9.0)
STEADY_S = 600.0
"""A service that was up this long has its restarts counted anew."""
STARTING_S, UP_S = 0.5, 1.0


def keep(path: Path) -> int:
    """Detaches and keeps the service whose folder is ``path``. Prints {"ok", "pid"}; 1 when another keeper does."""
    return detach(lambda ready: Keeper(path, ready).run(), path / "keeper.log")


class Keeper:
    def __init__(self, path: Path, ready: Ready) -> None:
        self.root, self.name, self.ready = path.parent.parent, path.name, ready
        self.service = ServiceDir.of(self.root, self.name)
        self._asked_at: dict[int, float] = {}
        self._failed_at: dict[int, float] = {}
        self._listener: Listener | None = None

    def run(self) -> int:
        """The whole life of the keeper: as long as there is something to keep. The detached process's exit status."""
        lock = Lock.acquire(self.service.keeper_lock_path)
        if lock is None:
            return self.ready.refused(f"service {self.name} is kept already")
        with lock:
            self.ready.running()
            while True:
                try:
                    pause = self._look()
                except OSError:
                    pause = 5.0  # a full volume; what couldn't be written is tried again
                if pause is None and self._done(lock):
                    return 0
                time.sleep(pause or UP_S)

    def _done(self, lock: Lock) -> bool:
        """Looks once more while nobody can start it, or one who does would think that it is kept."""
        try:
            with using(self.root, self.name):
                if self._look() is None:
                    lock.release()
                    return True
        except (RunError, OSError):
            pass
        return False

    def _look(self) -> float | None:
        """One look at the service and what follows from it. Seconds to the next one; None: nothing is left to do."""
        attempt = self.service.latest()
        if attempt is None or attempt.settled():
            return None
        seen = view(self.root, self.name)
        if seen.state == "STARTING":
            self._await(attempt)
            return STARTING_S
        if seen.state in ("READY", "SILENT"):
            self._listen(attempt)
            return UP_S
        if seen.state == "LOST":
            try:
                adopt(attempt, f"service {self.name}")
            except RunError:
                pass  # it ended meanwhile, or another adopts it
            return UP_S
        return self._failed(attempt, seen) if seen.state == "FAILED" else UP_S

    def _await(self, attempt: ServiceAttempt) -> None:
        spec = attempt.spec()
        if healthy(int(spec["port"]), str(spec["health"])):
            attempt.mark_ready()
            return
        # a keeper that came later gives it the whole time again
        since = self._asked_at.setdefault(attempt.number, time.monotonic())
        if time.monotonic() - since > float(spec.get("ready_timeout_s") or 600.0):
            self._say(attempt, f"it is stopped: not ready within {spec.get('ready_timeout_s'):.0f} s")
            attempt.request("stop", NOT_READY)

    def _listen(self, attempt: ServiceAttempt) -> None:
        if self._listener is None or self._listener.attempt.number != attempt.number:
            self._listener = Listener(attempt)
        news = self._listener.look()
        if news:
            self._say(attempt, news)
        if self._listener.hung and attempt.spec().get("restart") == "on-failure":
            self._say(attempt, f"it is killed: not answering for {self._listener.limit_s:.0f} s")
            attempt.request("kill", NOT_ANSWERING)

    def _failed(self, attempt: ServiceAttempt, seen: ServiceView) -> float | None:
        ready = read_json(attempt.file("ready.json"))
        restarts = int(attempt.spec().get("restarts") or 0)
        served = (attempt.exit() or {}).get("ended")
        if attempt.hung:
            served = (attempt.silence or {}).get("since") or served
        if ready is not None and float(served or time.time()) - float(ready["t"]) > STEADY_S:
            restarts = 0
        if restarts >= RESTARTS:
            self._give_up(
                attempt,
                f"service {self.name} failed ({seen.message}) and is left so: {RESTARTS} restarts didn't help",
                f"look into {attempt.file('stage.log')}",
            )
            return None
        since = self._failed_at.setdefault(attempt.number, time.monotonic())
        left = since + BACKOFF_S[restarts] - time.monotonic()
        if left > 0:
            return min(left, UP_S)
        try:
            return self._restart(attempt, seen, restarts + 1)
        except RunError:
            return UP_S  # another starts or stops it just now, or its processes still die

    def _restart(self, attempt: ServiceAttempt, seen: ServiceView, restarts: int) -> float | None:
        """The same command on the same port, since the stage goes on asking there."""
        with using(self.root, self.name):
            latest = self.service.latest()
            if latest is None or latest.number != attempt.number or attempt.stop_requested():
                return UP_S
            spec = attempt.spec()
            port, other = int(spec["port"]), "start the run again: the service takes another port then"
            if answers(port):
                self._give_up(
                    attempt,
                    f"service {self.name} failed ({seen.message}) and can't come back: something else listens on its "
                    f"port {port} by now",
                    f"{other}, and the stage goes on with it"
                    if spec.get("any_port")
                    else f"stop that, or set services.{self.name}.port to another port, then start the run again",
                    cause="address",
                )
                return None
            again = {**spec, "restarts": restarts, "why": seen.message[:200], "by": "its keeper"}
            fresh = open_attempt(self.service, again)
        self._say(fresh, f"started, {restarts} of {RESTARTS}, since the attempt before failed: {seen.message}")
        return STARTING_S

    def _give_up(self, attempt: ServiceAttempt, message: str, remedy: str, cause: str = "") -> None:
        record: dict[str, Any] = {"attempt": attempt.number, "cause": cause, "message": message, "remedy": remedy}
        write_json(self.service.path / "keeper.json", record)
        self._say(attempt, f"left so: {message}")

    def _say(self, attempt: ServiceAttempt, what: str) -> None:
        """A line of keeper.log, which is this process's output."""
        with contextlib.suppress(OSError):  # a full volume
            print(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} attempt {attempt.number}: {what}", flush=True)


class AddressTaken(RunError):
    """A service that failed can't come back where the stage asks it: something else listens there by now."""


def news(root: Path, name: str) -> str:
    """What has become of a service since it was first started, or ""; its keeper is started again when it was killed.

    Raises AddressTaken, and RunError when the keeper can't be started.
    """
    service = ServiceDir.of(root, name)
    attempt = service.latest()
    if attempt is None:
        return ""
    if attempt.given_up:
        end = read_json(service.path / "keeper.json") or {}
        if end.get("cause") == "address":
            raise AddressTaken(str(end.get("message")), str(end.get("remedy")))
        return str(end.get("message"))
    if service.unkept():
        start_keeper(service.path)
    spec = attempt.spec()
    if not spec.get("restarts"):
        return ""
    count = f"{spec['restarts']} of {RESTARTS}"
    return f"service {name} failed ({spec.get('why')}) and is restarted, {count}: attempt {attempt.number}"
