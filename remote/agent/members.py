"""The processes that belong to an attempt, and signals that can't hit a stranger.

torchrun's workers and vLLM's engine leave the process group and the session of what started them, and a supervisor can
be killed: so members are the descendants, what shares a session with them, and what was remembered by (pid, start).
Imports pipeline.rundir.identity. Reads /proc; `ps` elsewhere.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.rundir.identity import process_start

Identity = tuple[int, int]
"""(pid, start): start in clock ticks since boot on Linux. No two processes share it."""


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    session: int
    start: int
    state: str
    """One letter of /proc/PID/stat; Z and X are dead, D can't be killed for now."""
    name: str

    @property
    def dead(self) -> bool:
        return self.state in "ZX"

    @property
    def identity(self) -> Identity:
        return self.pid, self.start


def process_table() -> dict[int, Process]:
    """Every process that can be seen, zombies included."""
    if not os.path.isdir("/proc/self"):
        return _ps_table()
    table = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            process = read_process(int(entry))
            if process is not None:
                table[process.pid] = process
    return table


def read_process(pid: int) -> Process | None:
    """One process from /proc/PID/stat (proc(5)); None when it is gone."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return None
    try:
        text = os.read(fd, 4096).decode("ascii", "replace")
    except OSError:
        return None
    finally:
        os.close(fd)
    # The name may hold blanks and brackets, so the fields are counted from the last one.
    left, right = text.find("("), text.rfind(")")
    fields = text[right + 2 :].split()
    return Process(pid, int(fields[1]), int(fields[3]), int(fields[19]), fields[0], text[left + 1 : right])


def _ps_table() -> dict[int, Process]:
    command = ["ps", "-axo", "pid=,ppid=,sess=,stat=,ucomm="]
    table = {}
    shown = subprocess.run(command, capture_output=True, check=False).stdout
    for line in shown.decode("utf-8", "replace").splitlines():
        fields = line.split(None, 4)
        if len(fields) == 5 and fields[0].isdigit():
            pid = int(fields[0])
            start = process_start(pid)
            session = int(fields[2], 16) if fields[2].strip("0") else 0
            dead = start is None
            table[pid] = Process(pid, int(fields[1]), session, start or 0, "Z" if dead else fields[3][0], fields[4])
    return table


class Membership:
    """Who belongs to one attempt, from scan to scan.

    ``root`` is the process whose descendants are members (the supervisor, itself not one), or None when only what is
    remembered counts. ``excluded`` sessions are never followed: the supervisor's own.
    """

    def __init__(self, root: int | None, remembered: Iterable[Identity] = (), excluded: Iterable[int] = ()) -> None:
        self.root = root
        self.remembered: set[Identity] = set(remembered)
        self.ever: set[int] = {pid for pid, _ in self.remembered}
        """Pids of all that were members; one may be somebody else's by now."""
        self.sessions: dict[int, int] = {}
        """Session id -> start of its leader when first seen (0: it was gone already)."""
        self._excluded = {0, 1, *excluded}

    def scan(self, table: dict[int, Process] | None = None) -> list[Process]:
        """The living members, remembered from now on."""
        table = process_table() if table is None else table
        children: dict[int, list[Process]] = {}
        by_session: dict[int, list[Process]] = {}
        for process in table.values():
            children.setdefault(process.parent, []).append(process)
            by_session.setdefault(process.session, []).append(process)
        found: dict[int, Process] = {}
        queue: list[Process] = []
        if self.root is not None:
            queue += children.get(self.root, [])
        queue += [table[pid] for pid, start in self.remembered if pid in table and table[pid].start == start]
        for session, start in list(self.sessions.items()):
            leader = table.get(session)
            if session not in by_session or (leader is not None and start and leader.start != start):
                del self.sessions[session]  # empty, so its number may be somebody else's next time
            else:
                queue += by_session[session]
        own = os.getpid()
        while queue:
            process = queue.pop()
            if process.pid in found or process.pid in (own, self.root) or process.pid <= 1:
                continue
            found[process.pid] = process
            queue += children.get(process.pid, [])
            if process.session not in self._excluded and process.session not in self.sessions:
                leader = table.get(process.session)
                # A session whose leader is no member existed before the attempt: an adopted stranger's, not followed.
                if leader is None or leader.pid == process.pid or leader.pid in found:
                    self.sessions[process.session] = leader.start if leader else 0
                    queue += by_session[process.session]
        living = [process for process in found.values() if not process.dead]
        self.remembered = {process.identity for process in living}
        self.ever.update(process.pid for process in living)
        return living


def send(process: Identity, number: int) -> bool:
    """Signals exactly this process; False when it is gone. A pidfd pins the pid meanwhile, where there is one."""
    pid, start = process
    if pid <= 1 or pid == os.getpid():
        return False
    if sys.platform == "linux" and hasattr(os, "pidfd_open"):
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        except OSError:
            fd = -1  # a kernel before 5.3
        if fd >= 0:
            try:
                if process_start(pid) != start:
                    return False
                signal.pidfd_send_signal(fd, number)
                return True
            except (ProcessLookupError, PermissionError):
                return False
            finally:
                os.close(fd)
    if process_start(pid) != start:
        return False
    try:
        os.kill(pid, number)
        return True
    except (ProcessLookupError, PermissionError):
        return False


def open_handle(process: Identity) -> int:
    """A pidfd that becomes readable when this process ends; -1 where there is none, or when it is gone."""
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return -1
    try:
        fd = os.pidfd_open(process[0])
    except OSError:
        return -1
    if process_start(process[0]) != process[1]:
        os.close(fd)
        return -1
    return fd
