"""Who belongs to an attempt, on made-up process tables; and that a signal never hits a stranger."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from pipeline.rundir import process_start
from remote.agent.members import Membership, Process, open_handle, process_table, read_process, send

ROOT = 100


def table(*rows):
    """(pid, parent, session[, state[, start]]) -> a process table; start is pid * 10 unless given."""
    found = {}
    for pid, parent, session, *more in rows:
        state = more[0] if more else "S"
        start = more[1] if len(more) > 1 else pid * 10
        found[pid] = Process(pid, parent, session, start, state, f"p{pid}")
    return found


def pids(processes):
    return sorted(process.pid for process in processes)


BASE = ((1, 0, 1), (50, 1, 50), (ROOT, 1, ROOT), (ROOT + 1, ROOT, ROOT + 1), (ROOT + 2, ROOT + 1, ROOT + 1))


def test_descendants_and_nobody_else():
    assert pids(Membership(ROOT, excluded=[ROOT]).scan(table(*BASE))) == [101, 102]


def test_zombies_are_gone():
    assert pids(Membership(ROOT, excluded=[ROOT]).scan(table(*BASE, (103, 102, 101, "Z"), (104, 103, 101)))) == [
        101,
        102,
        104,
    ]


def test_a_session_outlives_the_parents_of_its_members():
    found = Membership(None, excluded=[ROOT])
    found.remembered = {(101, 1010)}
    assert pids(found.scan(table(*BASE))) == [101, 102]
    # 101 dies, 102 goes to init: only the session and the memory tell that it belongs.
    found.remembered = set()
    assert pids(found.scan(table((1, 0, 1), (102, 1, 101), (50, 1, 50)))) == [102]
    # Somebody new becomes 101 and leads a session of that number, after the old one was empty.
    assert pids(found.scan(table((1, 0, 1), (50, 1, 50)))) == []
    assert pids(found.scan(table((1, 0, 1), (101, 50, 101, "S", 9999), (105, 101, 101)))) == []


def test_a_reused_pid_is_not_remembered():
    found = Membership(None, remembered=[(101, 1010)])
    assert found.scan(table((1, 0, 1), (101, 1, 101, "S", 1011))) == []


def test_the_supervisors_session_is_never_followed():
    rows = (*BASE, (103, 1, ROOT))
    assert pids(Membership(ROOT, excluded=[ROOT]).scan(table(*rows))) == [101, 102]


def test_a_session_led_by_a_stranger_is_not_followed():
    # A remembered process sits in the login session of a person.
    found = Membership(None, remembered=[(60, 600)])
    rows = ((1, 0, 1), (50, 1, 50), (60, 50, 50), (61, 50, 50))
    assert pids(found.scan(table(*rows))) == [60]


@given(
    st.lists(
        st.tuples(st.integers(2, 30), st.integers(0, 30), st.integers(0, 30), st.sampled_from("SRDZX")), max_size=30
    )
)
def test_never_init_never_itself_never_dead(rows):
    found = Membership(5, remembered=[(pid, pid * 10) for pid in range(31)], excluded=[5])
    members = found.scan(table((1, 0, 1), *rows))
    assert not {1, 5, os.getpid()} & {member.pid for member in members}
    assert not any(member.dead for member in members)


def test_the_table_knows_this_process():
    mine = process_table()[os.getpid()]
    assert (mine.parent, mine.session, mine.start) == (os.getppid(), os.getsid(0), process_start(os.getpid()))


def test_a_name_with_brackets_and_blanks():
    code = "import ctypes, time; ctypes.CDLL(None).prctl(15, b') S 1 (x'); print(1, flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        child.stdout.readline()
        seen = read_process(child.pid)
        assert (seen.name, seen.parent, seen.start) == (") S 1 (x", os.getpid(), process_start(child.pid))
    finally:
        child.kill()
        child.communicate()


def test_signals_go_to_the_identity_only():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    start = process_start(child.pid)
    assert not send((child.pid, start + 1), signal.SIGKILL)
    assert not send((1, process_start(1)), signal.SIGCONT)
    assert not send((0, 0), signal.SIGCONT)
    assert not send((-1, 0), signal.SIGCONT)
    assert not send((os.getpid(), process_start(os.getpid())), signal.SIGCONT)
    assert child.poll() is None
    assert open_handle((child.pid, start + 1)) == -1
    assert send((child.pid, start), signal.SIGKILL)
    assert child.wait(10) == -signal.SIGKILL
    assert not send((child.pid, start), signal.SIGKILL)
