"""Locks between real processes: who holds, who is refused, what ends them, and that asking disturbs nobody."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.rundir import (
    Lock,
    RunError,
    claims,
    held,
    held_here,
    know_locks,
    locks,
    read_json,
    try_locks,
    write_json,
)

ROOT = Path(__file__).resolve().parents[2]
Start = Callable[..., Any]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A stage's lock: ROOT/RUN/STAGE/lock."""
    folder = tmp_path / "root" / "run" / "stage"
    folder.mkdir(parents=True)
    return folder / "lock"


def taken(path: Path) -> Lock:
    lock = Lock.acquire(path)
    assert lock is not None
    return lock


def test_one_process_holds_and_another_is_refused(path: Path, hold: Start) -> None:
    assert not held(path)
    holder = hold(path)
    assert held(path) and not held_here(path)
    assert Lock.acquire(path) is None
    holder.end()
    assert not held(path)
    with taken(path):
        assert held(path) and held_here(path)
    assert not held(path) and not held_here(path)


def test_kill_9_frees_the_lock(path: Path, hold: Start) -> None:
    holder = hold(path)
    holder.kill()
    assert not held(path)
    taken(path).release()


def test_the_same_process_cannot_take_it_twice(path: Path) -> None:
    with taken(path):
        assert Lock.acquire(path) is None
        assert held(path)


def test_closing_another_descriptor_of_the_file_keeps_the_lock(path: Path, child: Start) -> None:
    # this is what POSIX record locks get wrong
    holder = child(
        "import os, sys\nfrom pathlib import Path\nfrom pipeline.rundir import Lock, held\n"
        "lock = Lock.acquire(Path(sys.argv[1]))\nos.close(os.open(sys.argv[1], os.O_RDWR))\nheld(Path(sys.argv[1]))\n"
        "print('held')\nsys.stdin.readline()",
        path,
    )
    assert holder.hears() == "held"
    assert held(path)
    assert Lock.acquire(path) is None


def test_asking_never_takes_it(path: Path, child: Start) -> None:
    taken(path).release()
    prober = child(
        "import sys\nfrom pathlib import Path\nfrom pipeline.rundir import held\nprint('go')\n"
        "while True:\n    held(Path(sys.argv[1]))",
        path,
    )
    assert prober.hears() == "go"
    for _ in range(2000):
        taken(path).release()


def test_an_inheritable_lock_outlives_its_parent_through_exec(path: Path, child: Start) -> None:
    parent = child(
        "import os, subprocess, sys\nfrom pathlib import Path\nfrom pipeline.rundir import Lock\n"
        "lock = Lock.acquire(Path(sys.argv[1]))\n"
        "heir = subprocess.Popen(['sleep', '60'], pass_fds=(lock.fd,), stdin=subprocess.DEVNULL,"
        " stdout=subprocess.DEVNULL)\n"
        "print(heir.pid)\nsys.stdin.readline()\nos._exit(0)",
        path,
    )
    heir = int(parent.hears())
    parent.tell()
    parent.process.wait()
    assert held(path)
    assert Lock.acquire(path) is None
    os.kill(heir, signal.SIGKILL)
    while held(path):
        pass
    taken(path).release()


def test_a_program_started_by_exec_does_not_keep_the_lock_by_default(path: Path, child: Start) -> None:
    parent = child(
        "import subprocess, sys\nfrom pathlib import Path\nfrom pipeline.rundir import Lock\n"
        "lock = Lock.acquire(Path(sys.argv[1]))\n"
        "heir = subprocess.Popen(['sleep', '60'], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)\n"
        "print(heir.pid)\nsys.stdin.readline()",
        path,
    )
    heir = int(parent.hears())
    parent.kill()
    assert not held(path)
    os.kill(heir, signal.SIGKILL)


def test_a_forked_child_keeps_the_lock(path: Path) -> None:
    lock = taken(path)
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(into)
        os.read(out, 1)
        os._exit(0)
    lock.release()
    assert held(path)
    os.close(into)
    os.waitpid(pid, 0)
    os.close(out)
    assert not held(path)


def test_an_inherited_descriptor_is_the_lock_and_goes_no_further(path: Path) -> None:
    lock = taken(path)
    lock.inheritable = True
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom pipeline.rundir import Lock, held_here\n"
        "lock = Lock.inherited(Path(sys.argv[1]), int(sys.argv[2]))\n"
        "print(held_here(Path(sys.argv[1])), lock.inheritable)"
    )
    argv = [sys.executable, "-c", program, str(path), str(lock.fd)]
    done = subprocess.run(argv, cwd=ROOT, pass_fds=(lock.fd,), capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]
    assert held(path)
    lock.release()
    assert not held(path)


def test_a_descriptor_of_something_else_is_refused(path: Path, hold: Start) -> None:
    other = os.open(path.parent / "other", os.O_RDWR | os.O_CREAT)
    with pytest.raises(RunError, match="is not the lock"):
        Lock.inherited(path, other)
    os.close(other)
    with pytest.raises(RunError, match="is not the lock"):
        Lock.inherited(path, other)
    hold(path)
    mine = os.open(path, os.O_RDWR)
    with pytest.raises(RunError, match="is not the lock"):
        Lock.inherited(path, mine)
    os.close(mine)


def test_descriptors_closed_unasked_are_not_counted_as_held(path: Path) -> None:
    lock = taken(path)
    os.close(lock.fd)
    assert not held_here(path)
    assert not held(path)
    lock.fd = os.open(os.devnull, os.O_RDONLY)


def test_releasing_twice_is_fine(path: Path) -> None:
    lock = taken(path)
    lock.release()
    lock.release()
    assert not held(path)


def test_no_lock_is_taken_through_a_link(path: Path) -> None:
    path.symlink_to(path.parent / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        Lock.acquire(path)


FLOCK = "from pipeline.rundir import locks\nlocks._OFD = False\n"


def test_the_flock_fallback_holds_refuses_and_frees(path: Path, child: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_OFD", False)
    program = FLOCK + (
        "import sys\nfrom pathlib import Path\nlock = locks.Lock.acquire(Path(sys.argv[1]))\n"
        "print('held' if lock else 'refused')\nsys.stdin.readline()"
    )
    holder = child(program, path)
    assert holder.hears() == "held"
    assert held(path)
    assert Lock.acquire(path) is None
    holder.kill()
    assert not held(path)
    with taken(path):
        assert held(path)
        assert child(program, path).hears() == "refused"


def test_a_probe_of_the_fallback_refuses_no_start(path: Path, child: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_OFD", False)
    taken(path).release()
    prober = child(
        FLOCK + "import sys\nfrom pathlib import Path\nprint('go')\nwhile True:\n    locks.held(Path(sys.argv[1]))",
        path,
    )
    assert prober.hears() == "go"
    for _ in range(300):
        taken(path).release()


def test_the_lock_test_finds_locks_that_work(tmp_path: Path) -> None:
    assert try_locks(tmp_path) is True
    record = read_json(tmp_path / "locks.json")
    assert record is not None
    assert record["work"] is True
    assert os.listdir(tmp_path) == ["locks.json"]


@pytest.mark.parametrize("answer", [None, False])
def test_the_lock_test_finds_a_volume_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bool | None
) -> None:
    monkeypatch.setattr(locks, "take", lambda fd: answer)
    assert try_locks(tmp_path) is False


def test_the_lock_test_finds_locks_that_are_not_seen_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "take", lambda fd: True)
    assert try_locks(tmp_path) is False
    record = read_json(tmp_path / "locks.json")
    assert record is not None
    assert record["work"] is False


BROKEN = "from pipeline.rundir import locks\nlocks.take = lambda fd: True\nlocks.asked = lambda fd: False\n"
"""A volume on which everybody gets every lock."""
CLAIM = BROKEN + (
    "import sys\nfrom pathlib import Path\nlock = locks.Lock.acquire(Path(sys.argv[1]))\n"
    "print('held' if lock else 'refused')\nsys.stdin.readline()\nlock and lock.release()"
)


@pytest.fixture
def broken(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The lock of a stage on a volume that failed the lock test."""
    write_json(path.parents[2] / "locks.json", {"schema": 1, "work": False})
    monkeypatch.setattr(locks, "take", lambda fd: True)
    monkeypatch.setattr(locks, "asked", lambda fd: False)
    return path


def test_without_working_locks_the_identity_of_the_holder_decides(broken: Path, child: Start) -> None:
    holder = child(CLAIM, broken)
    assert holder.hears() == "held"
    assert held(broken)
    assert Lock.acquire(broken) is None
    assert child(CLAIM, broken).hears() == "refused"
    holder.end()
    assert not held(broken)
    with taken(broken):
        assert held(broken)
        assert Lock.acquire(broken) is None
    assert not held(broken)


def test_without_working_locks_a_killed_holder_holds_nothing(broken: Path, child: Start) -> None:
    holder = child(CLAIM, broken)
    assert holder.hears() == "held"
    holder.kill()
    assert not held(broken)
    taken(broken).release()


@pytest.mark.parametrize("change", [{"start": 1}, {"incarnation": {"boot_id": "before"}}, {"pid": "?"}])
def test_without_working_locks_a_reused_pid_or_an_earlier_life_of_the_host_holds_nothing(
    broken: Path, change: dict[str, object]
) -> None:
    lock = taken(broken)
    name = broken.with_name("lock.holder")
    record = read_json(name)
    assert record is not None
    write_json(name, {**record, **change})
    assert not held(broken)
    lock.release()
    taken(broken).release()


def test_without_working_locks_one_of_many_gets_it(broken: Path, child: Start) -> None:
    dead = child(CLAIM, broken)
    assert dead.hears() == "held"
    dead.kill()
    program = CLAIM.replace("lock = locks", "print('ready')\nsys.stdin.readline()\nlock = locks")
    racers = [child(program, broken) for _ in range(5)]
    assert [racer.hears() for racer in racers] == ["ready"] * 5
    for racer in racers:
        racer.tell()
    assert sorted(racer.hears() for racer in racers) == ["held"] + ["refused"] * 4


def test_a_volume_that_refuses_locks_falls_back_without_being_asked(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fcntl_(*_: object) -> bytes:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "fcntl", fcntl_)
    with taken(path):
        assert held(path)
        assert Lock.acquire(path) is None
    assert not held(path)


def test_a_holder_is_named_beside_its_lock_and_survives_a_switch(path: Path, hold: Start) -> None:
    marker = path.parents[2] / "locks.json"
    holder = hold(path)
    write_json(marker, {"schema": 1, "work": False})
    assert held(path)
    assert Lock.acquire(path) is None
    other = path.with_name("writer.lock")
    with taken(other):
        write_json(marker, {"schema": 1, "work": True})
        assert held(other)
        assert held(path)
    assert not other.with_name("writer.lock.holder").exists()
    holder.end()
    assert not held(path)


def test_what_decides_never_changes_while_anything_is_held(
    path: Path, hold: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = path.parents[2]
    holder = hold(path)
    with monkeypatch.context() as volume:
        volume.setattr(locks, "take", lambda fd: None)
        volume.setattr(locks, "asked", lambda fd: None)
        assert try_locks(root) is False
        assert claims.working(root)
        holder.end()
        assert try_locks(root) is False
        assert not claims.working(root)
    with taken(path):
        assert try_locks(root) is True
        assert not claims.working(root)
    assert try_locks(root) is True
    assert claims.working(root)


def test_locks_are_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    know_locks(tmp_path)
    assert (read_json(tmp_path / "locks.json") or {})["work"] is True
    monkeypatch.setattr(locks, "take", lambda fd: None)
    know_locks(tmp_path)
    assert claims.working(tmp_path)
    know_locks(tmp_path / "missing")


def test_a_lock_is_taken_on_a_full_volume(path: Path, full_after: Callable[[int], None]) -> None:
    taken(path).release()
    full_after(0)
    with taken(path):
        assert held(path)


def test_a_child_that_got_the_lock_is_its_holder(path: Path, child: Start) -> None:
    lock = taken(path)
    other = child("import sys; sys.stdin.readline()", pass_fds=(lock.fd,))
    lock.hand_to(other.process.pid)
    lock.release()
    assert (read_json(path.with_name("lock.holder")) or {})["pid"] == other.process.pid
    assert held(path)
