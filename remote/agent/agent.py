"""The agent: one process per connection, stateless, speaking the protocol over stdin and stdout.

It reads files, leaves requests and starts what detaches itself; it owns nothing, so it may end at any moment: at the
end of its input, 45 s after the last request, or when nobody reads its output. Imports modules beside it and
remote.protocol.
"""

from __future__ import annotations

import os
import queue
import select
import socket
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.rundir import RunDir, RunError, incarnation, know_locks
from pipeline.volume import Volume, volume_of
from remote.agent.operations import CHANGING, ENDING, Operations, refusal
from remote.agent.outbox import Outbox
from remote.agent.paths import code_hash, run_path
from remote.agent.recorder import recent_use
from remote.agent.run_view import RunView, same
from remote.agent.sampling import HostReader
from remote.protocol import (
    PROTOCOL,
    SILENCE_S,
    Decoder,
    Failure,
    Hello,
    ProtocolError,
    Reply,
    Request,
    Splitter,
    StreamBroken,
    check_args,
    encode,
)

WORKERS = 4
IN_FLIGHT = 64
CHANGES = 32
"""So many changes may hang at once, long after their deadlines; what ends a stage is not counted."""
SLOWEST_S, FASTEST_S = 60.0, 0.2
CLOSE_S = 2.0


def serve(root: Path, nonce: str, source: int = 0, sink: int = 1, silence_s: float = SILENCE_S) -> int:
    """Serves one connection to its end. Exit status 0, 1 when the root can't be used (said instead of the hello)."""
    os.write(sink, nonce.encode() + b"\n")
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        root = Path(os.path.realpath(root))
        os.listdir(root)
    except OSError as error:
        why = f"{error.filename or root} can't be used as the root: {error.strerror}"
        os.write(sink, encode(Failure(0, "refused", why, "name another root, on a volume that can be written"))[0])
        return 1
    os.write(sink, encode(hello(root))[0])
    know_locks(root)
    agent = Agent(root, sink)
    agent.read(source, silence_s)
    agent.outbox.close(CLOSE_S)
    # Threads may sit in a hung filesystem or driver call; nothing here needs a goodbye.
    os._exit(0)


def hello(root: Path) -> Hello:
    return Hello(
        protocol=PROTOCOL,
        agent=code_hash(),
        python=sys.version.split()[0],
        pid=os.getpid(),
        incarnation=incarnation(),
        wall=time.time(),
        mono=time.monotonic(),
        hostname=socket.gethostname(),
        uid=os.getuid(),
        root=str(root),
    )


@dataclass
class _Watch:
    """What is pushed: one run, this often. A new watch replaces the one before."""

    run: RunDir
    view: RunView
    volume: Volume
    every_s: float


class Agent:
    def __init__(self, root: Path, sink: int) -> None:
        self.root = root
        self.outbox = Outbox(sink)
        self.operations = Operations(root)
        self._jobs: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._due: dict[int, float] = {}
        self._due_lock = threading.Lock()
        self._changes = 0
        self._watch: _Watch | None = None
        self._watched = threading.Condition()
        for _ in range(WORKERS):
            threading.Thread(target=self._work, name="worker", daemon=True).start()
        threading.Thread(target=self._sample_host, name="host", daemon=True).start()
        threading.Thread(target=self._sample_run, name="run", daemon=True).start()

    # ------------------------------------------------------------ requests

    def read(self, source: int, silence_s: float) -> None:
        """Until the input ends or breaks, nothing was heard for ``silence_s``, or nobody reads what is written."""
        splitter, decoder = Splitter(), Decoder()
        heard = time.monotonic()
        while not self.outbox.broken.is_set():
            if select.select([source], [], [], 0.5)[0]:
                data = os.read(source, 65536)
                if not data:
                    return
                try:
                    for line in splitter.feed(data):
                        heard = time.monotonic()
                        self._take(line, decoder)
                except StreamBroken as error:
                    sys.stderr.write(f"the requests can't be read any more: {error.message}\n")
                    return
            elif time.monotonic() - heard > silence_s:
                return
            self._expire()

    def _take(self, line: bytes | None, decoder: Decoder) -> None:
        number = 0
        try:
            if line is None:
                raise ProtocolError("a line is longer than 65536 bytes")
            request = decoder.decode(line)
            if not isinstance(request, Request):
                raise ProtocolError("not a request")
            number = request.id
            check_args(request.op, request.args)
        except StreamBroken:
            raise
        except ProtocolError as error:
            self.outbox.answer(Failure(number, error.code, error.message, "use an Eagledeck of the same version"))
            return
        if request.op == "ping":
            self.outbox.answer(Reply(number, {"wall": time.time(), "mono": time.monotonic()}), urgent=True)
            return
        with self._due_lock:
            most = 2 * IN_FLIGHT if request.op in ENDING else IN_FLIGHT
            if number in self._due or len(self._due) >= most:
                why = "this id is in use" if number in self._due else f"{IN_FLIGHT} requests are under way"
                self.outbox.answer(Failure(number, "bad-request", why, "wait for an answer first"))
                return
            self._due[number] = time.monotonic() + request.deadline_s
            full = self._changes >= CHANGES and request.op in CHANGING - ENDING
            self._changes += request.op in CHANGING and not full
        if full:
            why = f"{CHANGES} changes hang on this host"
            self._settle(Failure(number, "refused", why, "see with `eagledeck doctor` what hangs there"))
        elif request.op in CHANGING:
            # A thread each: however many wait for a service or a lock, the next one gets through.
            threading.Thread(target=self._change, args=(request,), name=request.op, daemon=True).start()
        else:
            self._jobs.put(request)

    def _work(self) -> None:
        while True:
            request = self._jobs.get()
            with self._due_lock:
                if request.id not in self._due:
                    continue  # its deadline passed while it waited
            self._settle(self._answer(request))

    def _change(self, request: Request) -> None:
        try:
            self._settle(self._answer(request))
        finally:
            with self._due_lock:
                self._changes -= 1

    def _answer(self, request: Request) -> Reply | Failure:
        try:
            return Reply(request.id, self._perform(request))
        except Exception as error:
            refused = refusal(error)
            return Failure(request.id, refused.code, refused.message, refused.remedy)

    def _settle(self, answer: Reply | Failure) -> None:
        """Sends an answer unless another went out for it, which happens at the deadline."""
        with self._due_lock:
            if self._due.pop(answer.id, None) is None:
                return
        self.outbox.answer(answer)

    def _expire(self) -> None:
        now = time.monotonic()
        with self._due_lock:
            late = [number for number, due in self._due.items() if now > due]
        for number in late:
            message = "the host didn't finish in time; whether it happened isn't known"
            self._settle(Failure(number, "deadline", message, "look at the state, then ask again"))

    def _perform(self, request: Request) -> Any:
        if request.op == "watch":
            return self._start_watch(**request.args)
        if request.op == "unwatch":
            with self._watched:
                self._watch = None
            return {}
        result = self.operations.call(request.op, request.args, request.deadline_s)
        if request.op in CHANGING:
            with self._watched:
                if self._watch is not None:
                    self._watch.view.look_again()
                    self._watched.notify_all()
        return result

    # ------------------------------------------------------------ pushes

    def _start_watch(self, run: str, every_s: float | None = None) -> dict[str, Any]:
        holder = RunDir.open(run_path(self.root, run))
        every = min(SLOWEST_S, max(FASTEST_S, float(every_s or 1.0)))
        watch = _Watch(holder, RunView(holder), volume_of(holder, holder.plan()), every)
        with self._watched:
            self._watch = watch
            self._watched.notify_all()
        return {"run": run, "every_s": every}

    def _await_watch(self, before: _Watch | None, seconds: float) -> _Watch:
        """The watch in force, ``seconds`` from now at the latest; at once when it is a new one."""
        with self._watched:
            if self._watch is before and before is not None:
                self._watched.wait(seconds)
            while self._watch is None:
                self._watched.wait()
            return self._watch

    def _sample_host(self) -> None:
        watch = self._await_watch(None, 0)
        reader = HostReader(watch.volume)
        reader.disk.seed(recent_use(self.root, watch.volume.path))
        while True:
            began = time.monotonic()
            reader.watch(watch.volume)
            self.outbox.push("host", reader.read())
            watch = self._await_watch(watch, max(0.05, watch.every_s - (time.monotonic() - began)))

    def _sample_run(self) -> None:
        watch, sent, of = self._await_watch(None, 0), None, None
        while True:
            began = time.monotonic()
            try:
                section = watch.view.read()
                watch.volume = volume_of(watch.run, watch.view.plan or watch.run.plan())
            except (OSError, RunError) as error:
                section = {"run": watch.run.name, "error": {"message": str(error), "remedy": ""}}
            if of is not watch or not same(sent, section):
                self.outbox.push("run", section)
                sent, of = section, watch
            watch = self._await_watch(watch, max(0.05, watch.every_s - (time.monotonic() - began)))


def main(root: str, nonce: str) -> int:
    """The subcommand `serve`."""
    if os.isatty(0):
        sys.stderr.write("this is the host's end of the console's connection; use eagledeck\n")
        return 2
    return serve(Path(root), nonce)
