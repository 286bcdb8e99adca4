"""Leaving the process that started us: double fork, own session, descriptors to a file, and a word back when ready.

Imports the standard library only. What is detached outlives the SSH connection, the agent and the conductor.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

READY_S = 60.0


class Ready:
    """The detached process's end of the readiness pipe. The first word counts; the starter then stops waiting."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def say(self, **facts: Any) -> None:
        if self._fd >= 0:
            try:
                os.write(self._fd, json.dumps(facts).encode() + b"\n")
            except OSError:
                pass  # the starter is gone, which ends nothing
            os.close(self._fd)
            self._fd = -1

    def running(self, **facts: Any) -> None:
        self.say(ok=True, pid=os.getpid(), **facts)

    def refused(self, message: str, remedy: str = "") -> int:
        """Tells why nothing was started; returns the exit status for it."""
        self.say(ok=False, message=message, remedy=remedy)
        return 1


def detach(work: Callable[[Ready], int], log: Path, keep: Iterable[int] = ()) -> int:
    """Runs ``work`` in a detached process; here, prints its first word as a JSON line. Status 0: runs, 1: refused.

    stdout and stderr of the detached process go to ``log`` (appended); descriptors other than ``keep`` are closed.
    """
    read, write = os.pipe()
    sys.stdout.flush()
    first = os.fork()
    if first:
        os.close(write)
        os.waitpid(first, 0)
        word = _first_word(read, log)
        os.write(1, json.dumps(word).encode() + b"\n")
        return 0 if word.get("ok") else 1
    status = 70
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        _rearrange(log, {write, *keep})
        status = work(Ready(write))
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)


def _first_word(read: int, log: Path) -> dict[str, Any]:
    held = b""
    end = time.monotonic() + READY_S
    while not held.endswith(b"\n"):
        left = end - time.monotonic()
        if left <= 0 or not select.select([read], [], [], left)[0]:
            return {"ok": False, "message": f"no answer within {READY_S:.0f} s", "remedy": f"look into {log}"}
        piece = os.read(read, 4096)
        if not piece:
            return {"ok": False, "message": "it ended before it was ready", "remedy": f"look into {log}"}
        held += piece
    word: dict[str, Any] = json.loads(held)
    return word


def _rearrange(log: Path, keep: set[int]) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    for name in os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"):
        fd = int(name)
        if fd > 2 and fd not in keep:
            try:
                os.close(fd)
            except OSError:
                pass  # the descriptor of the listing itself
    reset_signals()


def reset_signals() -> None:
    """Nothing blocked, nothing ignored, whatever the starter's shell had set: children inherit both through exec."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in signal.valid_signals():
        if number not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE):  # Popen gives children SIGPIPE back
            try:
                signal.signal(number, signal.SIG_DFL)
            except (OSError, ValueError):
                pass  # reserved by the C library


def start_detached(argv: list[str], cwd: Path, keep: tuple[int, ...] = ()) -> dict[str, Any]:
    """Runs a command that detaches itself, and returns its first word: {"ok", "pid"} or {"ok", "message", "remedy"}."""
    try:
        done = subprocess.run(
            argv,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            pass_fds=keep,
            timeout=READY_S + 5,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"ok": False, "message": f"{argv[-1]} did not start within {READY_S:.0f} s", "remedy": "try again"}
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    try:
        word: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        remedy = f"run `{argv[0]} -m remote.agent doctor --root ROOT` in {cwd} on the host"
        return {"ok": False, "message": said[-1][:400] if said else "it said nothing", "remedy": remedy}
    return word
