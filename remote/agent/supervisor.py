"""One supervisor per attempt: starts the process, stays with it to the end, and writes exit.json last.

Detached, child subreaper, the stage in its own session. It outlives the connection, the agent and the conductor; the
stage outlives it, and `adopt` takes over what a killed supervisor left. Imports pipeline.rundir and modules beside it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from pipeline.rundir import Attempt, JsonLines, Lock, RunError, incarnation, process_start
from remote.agent import members
from remote.agent.attempts import attempt_at, completed
from remote.agent.detach import Ready, detach
from remote.agent.environment import stage_environment
from remote.agent.guard import Guard
from remote.agent.holders import holders
from remote.agent.kernel import become_subreaper
from remote.agent.ladder import MORE_S, Ladder, StopPolicy, saving_grace
from remote.agent.load import out_of_memory_kills
from remote.agent.members import Identity, Membership
from remote.agent.memory import holding
from remote.agent.stagelog import LogBound, last_line
from remote.agent.trouble import told
from remote.agent.verdict import Ending, signal_name, verdict

TICK_S = 1.0
SCAN_SHARE = 0.001
"""A scan of all processes may take this share of a core: on a crowded host it is made less often."""
LOG_CHECK_S = 10.0
UNKILLABLE_S = 30.0
RELEASE_S = 30.0
EXIT_TRIES_S = 600.0
ELASTIC = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed")


def supervise(path: Path, lock_fd: int = -1, adopt: bool = False) -> int:
    """Detaches and supervises the attempt at ``path``. Prints {"ok", "pid", …}; 1 when another does, or it can't."""
    attempt = attempt_at(path)
    keep = (lock_fd,) if lock_fd >= 0 else ()
    return detach(lambda ready: Supervisor(attempt, ready, lock_fd, adopt).run(), path / "supervisor.log", keep)


class Supervisor:
    def __init__(self, attempt: Attempt, ready: Ready, lock_fd: int = -1, adopt: bool = False) -> None:
        self.attempt, self.ready, self.lock_fd, self.adopt = attempt, ready, lock_fd, adopt
        self.spec = attempt.spec()
        self.ladder = Ladder(stop_policy(self.spec))
        self.membership = Membership(os.getpid(), excluded=(os.getsid(0),))
        self.main: Identity | None = None
        self.living: list[members.Process] = []
        self.code: int | None = None
        self.signal: int | None = None
        self.asked = ""
        self._wake, self._woken = os.pipe()
        self._handle = -1
        self._unreleased: list[int] = []
        self._asked_at = 0.0
        self._saved: Any = None
        self._stuck: list[dict[str, Any]] = []
        self._next_scan = self._next_tick = 0.0
        self._memory_kills = out_of_memory_kills()

    # ------------------------------------------------------------ start

    def run(self) -> int:
        """The whole life of the supervisor; the exit status of the detached process."""
        stage = self.attempt.stage
        try:
            inherited = self.lock_fd >= 0
            # Held until this process ends: that is what says that somebody supervises.
            self.lock = Lock.inherited(stage.lock_path, self.lock_fd) if inherited else Lock.acquire(stage.lock_path)
            if self.lock is None:
                return self.ready.refused("another supervisor has this stage", "it runs already")
            refusal = self._refusal()
            if refusal:
                return self.ready.refused(*refusal)
            self._listen()
            become_subreaper()
            self.journal = JsonLines(self.attempt.file("supervision.jsonl"))
            started = self._take_over() if self.adopt else self._start()
        except RunError as error:
            return self.ready.refused(error.message, error.remedy)
        except OSError as error:
            return self._not_begun(*told(error, self.attempt.path))
        if started:
            self.ready.running(attempt=str(self.attempt.path), main=self.main[0] if self.main else None)
            self._watch()
            self._await_memory()
        self._finish()
        return 0

    def _not_begun(self, message: str, remedy: str) -> int:
        """Said to the starter, and in exit.json when the attempt counts as started by then."""
        if not self.adopt and self.attempt.state() and self.attempt.exit() is None:
            with contextlib.suppress(OSError):
                self.attempt.write_exit(reason="failed", message=message, remedy=remedy)
        return self.ready.refused(message, remedy)

    def _refusal(self) -> tuple[str, str] | None:
        if not self.spec.get("argv"):
            return f"{self.attempt.path} has no readable spec.json", "start the stage again"
        if self.attempt.exit() is not None:
            return "this attempt has ended", "resume the stage: that makes a new attempt"
        if self.adopt:
            left = self.attempt.state().get("main") or holders(self.attempt.stage.writer_lock_path)
            return None if left else ("this attempt never started", "start the stage again")
        if self.attempt.state():
            return "this attempt was started before", "resume the stage: that makes a new attempt"
        return None

    def _listen(self) -> None:
        for end in (self._wake, self._woken):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._request_stop())

    def _request_stop(self) -> None:
        try:
            self.attempt.request("stop", "SIGTERM to the supervisor")
        except OSError:
            self.ladder.ask(time.monotonic())

    def _start(self) -> bool:
        writer = Lock.acquire(self.attempt.stage.writer_lock_path)
        if writer is None:
            raise RunError("a process of this stage still writes", "stop or kill it, then start the stage again")
        me = {"pid": os.getpid(), "start": process_start(os.getpid())}
        self.attempt.write_state(phase="starting", supervisor=me, members=[])
        log = os.open(self.attempt.file("stage.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        environment = {**stage_environment(self.spec), "EAGLEDECK_WRITER_FD": str(writer.fd)}
        argv = [str(word) for word in self.spec["argv"]]
        try:
            child = subprocess.Popen(
                argv,
                cwd=self.spec.get("cwd") or "/",
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(writer.fd,),
                start_new_session=True,
            )
            writer.hand_to(child.pid)
        except OSError as error:
            self.code = 127
            message = _not_started(argv[0], error)
            remedy = _python(self.spec)
            self._note("failed", message)
            self._save_exit({"reason": "failed", "code": 127, "resumable": True, "message": message, "remedy": remedy})
            self.ready.refused(message, remedy)
            return False
        finally:
            os.close(log)
            writer.release()
        child.returncode = 0  # reaped here, by _reap
        self.main = child.pid, process_start(child.pid) or 0
        self.membership.remembered.add(self.main)
        self._note("started", f"pid {child.pid}: {' '.join(argv)}"[:1000], pid=child.pid)
        self._save_state("running")
        return True

    def _take_over(self) -> bool:
        state = self.attempt.state()
        if state.get("incarnation") != incarnation():
            raise RunError("the host or container was restarted since", "resume the stage")
        writing, main = holders(self.attempt.stage.writer_lock_path), state.get("main")
        if not (main or writing):
            raise RunError("nothing of this attempt lives any more", "resume the stage")
        # a supervisor that was killed before it could remember whom it had started left only the lock
        self.main = (int(main["pid"]), int(main["start"] or 0)) if main else writing[0]
        remembered = ((int(entry["pid"]), int(entry["start"])) for entry in state.get("members") or [])
        known = [self.main, *remembered, *writing]
        self.membership.remembered.update(known)
        self.membership.sessions.update({int(sid): int(start) for sid, start in state.get("sessions") or []})
        self._handle = members.open_handle(self.main)
        self._note("adopted", f"supervised again by pid {os.getpid()}")
        self._save_state("running")
        return True

    # ------------------------------------------------------------ watch

    def _watch(self) -> None:
        bound, guard = LogBound(self.attempt.file("stage.log")), Guard(self.attempt, time.monotonic())
        next_log = 0.0
        killing_since: float | None = None
        while True:
            self._reap()
            now = time.monotonic()
            if now >= self._next_tick:
                self._read_requests(now)
                self._next_tick = now + TICK_S
                for name in guard.look(now):
                    self._note("keeper", f"service {name} had lost its keeper and got another")
            if now >= next_log:
                given = bound.check()
                if given:
                    self._note("log", f"the oldest {given} bytes of the log were given back", bytes=given)
                next_log = now + LOG_CHECK_S
            if now >= self._next_scan or self.main is None:
                self._scan()
                if self.main is None and not self.living:
                    return
            self._send(now)
            wait = self.ladder.wait_s(now, TICK_S)
            if self.ladder.kill_at is not None and now >= self.ladder.kill_at:
                killing_since = now if killing_since is None else killing_since
                if now - killing_since > UNKILLABLE_S:
                    self._report_unkillable()
                    wait = TICK_S
            self._sleep(wait)

    def _await_memory(self) -> None:
        """Waits, RELEASE_S at most, until no card holds memory of a process that was a member."""
        end = time.monotonic() + RELEASE_S
        told = False
        # a pid that lives is somebody else's by now
        while left := sorted(pid for pid in holding() & self.membership.ever if process_start(pid) is None):
            if time.monotonic() > end:
                self._note("alert", f"GPU memory of {len(left)} ended processes isn't free", pids=left[:64])
                self._unreleased = left
                return
            if not told:
                told = True
                self._save_state("releasing")
            time.sleep(TICK_S / 2)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if self.main is not None and pid == self.main[0] and not self.adopt:
                self.code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
                self.signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
                self._main_ended()
        if self.adopt and self.main is not None and process_start(self.main[0]) != self.main[1]:
            self._main_ended()

    def _main_ended(self) -> None:
        how = f"signal {signal_name(self.signal)}" if self.signal else f"status {self.code}"
        self._note("main ended", "unseen" if self.adopt else how)
        self.main = None
        self.ladder.main_ended(time.monotonic())

    def _read_requests(self, now: float) -> None:
        kill = self.attempt.requested("kill")
        if kill is not None and self.asked != "kill":
            self.asked = "kill"
            self.ladder.kill(now)
            self._note("kill", f"asked by {kill.get('by')}")
            self._save_state("killing")
        elif not self.asked and self.attempt.stop_requested():
            self.asked, self._asked_at = "stop", now
            self._allow_saving()
            self.ladder.ask(now)
            by = (self.attempt.requested("stop") or {}).get("by")
            self._note("stop", f"asked by {by}; {self.ladder.grace_s:.0f} s to save and end")
            self._save_state("stopping")
        elif self.asked == "stop" and (self.ladder.term_at or 0.0) - now < MORE_S / 2 and self._allow_saving():
            self._note("stop", f"still saving; {self.ladder.grace_s:.0f} s in all")
            self._save_state()

    def _allow_saving(self) -> bool:
        """Gives a stop the time of the stage's own checkpoints. A service has none."""
        progress = {} if "service" in self.spec else self.attempt.progress() or {}
        return self.ladder.allow(saving_grace(progress, self._asked_at, time.monotonic()))

    def _scan(self) -> None:
        began = time.monotonic()
        self.living = self.membership.scan()
        cost = time.monotonic() - began
        brisk = self.ladder.kill_at is not None or self.main is None
        self._next_scan = began + max(0.1 if brisk else TICK_S, cost / SCAN_SHARE)
        if self._state_of_members() != self._saved:
            self._save_state()

    def _send(self, now: float) -> None:
        orders = self.ladder.orders(now, self.main, [process.identity for process in self.living])
        sent: dict[int, list[int]] = {}
        for member, number in orders:
            if members.send(member, number):
                sent.setdefault(number, []).append(member[0])
        for number, pids in sent.items():
            self._note("signal", f"{signal_name(number)} to {len(pids)}", pids=pids[:64])
        if sent:
            self._next_scan = 0.0

    def _report_unkillable(self) -> None:
        stuck = [{"pid": process.pid, "name": process.name, "state": process.state} for process in self.living]
        if self._stuck != stuck:
            self._stuck = stuck
            self._note("alert", f"{len(stuck)} processes can't be killed", processes=stuck[:16])
        if self.attempt.state().get("unkillable") != stuck:
            with contextlib.suppress(OSError):  # a full volume; tried again with the next tick
                self.attempt.write_state(phase="unkillable", unkillable=stuck)

    def _sleep(self, seconds: float) -> None:
        watched = [self._wake] + ([self._handle] if self._handle >= 0 and self.main is not None else [])
        if select.select(watched, [], [], seconds)[0]:
            self._next_tick = 0.0
            try:
                os.read(self._wake, 4096)
            except BlockingIOError:
                pass

    # ------------------------------------------------------------ files

    def _state_of_members(self) -> Any:
        return sorted(self.membership.remembered), sorted(self.membership.sessions.items())

    def _save_state(self, phase: str = "") -> None:
        self._saved = self._state_of_members()
        fields: dict[str, Any] = {
            "supervisor": {"pid": os.getpid(), "start": process_start(os.getpid())},
            "members": [{"pid": pid, "start": start} for pid, start in self._saved[0]],
            "sessions": [list(session) for session in self._saved[1]],
        }
        if self.main is not None:
            fields["main"] = {"pid": self.main[0], "start": self.main[1]}
        if phase:
            fields["phase"] = phase
        if self.asked == "stop":
            fields["grace_s"] = self.ladder.grace_s
        try:
            self.attempt.write_state(**fields)
        except OSError as error:
            self._saved = None  # a full volume ends no stage; written again with the next scan
            self._note("alert", f"state.json can't be written: {error.strerror}")

    def _note(self, kind: str, message: str, **more: Any) -> None:
        try:
            self.journal.append({"t": time.time(), "kind": kind, "message": message, **more})
        except OSError:
            pass  # a full volume ends no stage

    def _finish(self) -> None:
        """exit.json, after the log is durable: whoever sees it may trust that the log is complete."""
        if self.attempt.exit() is not None:
            return
        log = self.attempt.file("stage.log")
        try:
            fd = os.open(log, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
        except OSError:
            pass
        end = Ending(
            outcome=self.attempt.outcome(),
            code=self.code,
            signal=self.signal,
            asked=self.asked,
            rung=self.ladder.rung,
            grace_s=self.ladder.grace_s,
            complete=completed(self.attempt),
            adopted=self.adopt,
            last_line=last_line(log),
            memory_kills=out_of_memory_kills() - self._memory_kills,
        )
        result = verdict(end)
        if self._unreleased:
            pids = ", ".join(map(str, self._unreleased[:4]))
            held = f"the GPU memory of its ended processes (pid {pids}) isn't free"
            result["message"] = f"{result['message']}; {held}" if result["message"] else held
            result["remedy"] = (
                result["remedy"] or "look at `nvidia-smi` on the host; a card that keeps it needs a reset"
            )
        self._note("ended", f"{result['reason']}: {result['message']}" if result["message"] else result["reason"])
        self._save_exit(result)

    def _save_exit(self, result: dict[str, Any]) -> None:
        end = time.monotonic() + EXIT_TRIES_S
        while True:
            try:
                size = os.stat(self.attempt.file("stage.log")).st_size
            except OSError:
                size = 0
            try:
                self.attempt.write_exit(**result, log_size=size)
                return
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(5.0)  # a full volume; without exit.json the stage's own outcome still counts


def stop_policy(spec: dict[str, Any]) -> StopPolicy:
    """The rungs for an attempt: the plan's grace, and no more than that for the rungs after it."""
    grace = float(spec.get("grace_s", 60.0))
    words = [os.path.basename(str(word)) for word in spec.get("argv") or ()]
    elastic = any(word in ELASTIC for word in words)
    return StopPolicy(
        grace_s=grace,
        interrupt=not elastic,
        interrupt_after_s=0.0 if "service" in spec else min(3.0, grace / 2),
        term_s=min(10.0, max(1.0, grace)),
        leftover_s=min(10.0, max(1.0, grace)),
    )


def _not_started(program: str, error: OSError) -> str:
    if isinstance(error, FileNotFoundError) and "/" not in program:
        return f"there is no program {program} on the PATH of the host"
    return f"can't start {program}: {error.strerror}"


def _python(spec: dict[str, Any]) -> str:
    where = f"services.{spec['service']}.command" if "service" in spec else f"{spec.get('stage', 'STAGE')}.python"
    return f"set {where} to a program that exists on the host"
