"""Processes remembered by pid and start time, and the incarnation of the host."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from pipeline.rundir import alive, identity, incarnation, process_start

Start = Callable[..., Any]


def test_start_times_agree_with_psutil(child: Start) -> None:
    process = child("import sys; sys.stdin.readline()").process
    start = process_start(process.pid)
    assert start is not None
    ticks = os.sysconf("SC_CLK_TCK")
    boot = psutil.boot_time()
    assert boot + start / ticks == pytest.approx(psutil.Process(process.pid).create_time(), abs=2.0)


def test_gone_and_zombie_processes_have_no_start() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{pid}/stat").exists()
    assert process_start(pid) is None
    assert not alive(pid, None)
    os.waitpid(pid, 0)
    assert process_start(pid) is None
    assert process_start(0) is None
    assert process_start(-1) is None


def test_the_same_pid_with_another_start_is_another_process() -> None:
    me = os.getpid()
    start = process_start(me)
    assert start is not None
    assert alive(me, start)
    assert alive(me, None)
    assert not alive(me, start + 1)


def test_a_name_full_of_parentheses_and_spaces_is_read_right(tmp_path: Path) -> None:
    odd = tmp_path / ") R 1 (2"
    shutil.copy("/bin/sleep", odd)
    process = subprocess.Popen([str(odd), "60"])
    try:
        start = process_start(process.pid)
        assert start is not None
        assert start >= (process_start(os.getpid()) or 0)
    finally:
        process.kill()
        process.wait()


def test_the_incarnation_is_the_same_in_every_process() -> None:
    here = incarnation()
    assert set(here) == {"boot_id", "pidns", "pid1_start"}
    assert here["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    root = Path(__file__).resolve().parents[2]
    program = "from pipeline.rundir import incarnation; print(incarnation())"
    said = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True).stdout
    assert said.strip() == str(here)


@pytest.fixture
def without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_PROC", False)
    identity._boot_session.cache_clear()


@pytest.mark.usefixtures("without_proc")
def test_without_proc_ps_tells_the_start_in_epoch_seconds(child: Start) -> None:
    process = child("import sys; sys.stdin.readline()").process
    start = process_start(process.pid)
    assert start == pytest.approx(psutil.Process(process.pid).create_time(), abs=2.5)
    assert alive(process.pid, start)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert process_start(process.pid) is None
    process.wait()
    assert process_start(process.pid) is None


@pytest.mark.usefixtures("without_proc")
def test_without_proc_the_boot_session_is_the_incarnation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sysctl = tmp_path / "sysctl"
    sysctl.write_text("#!/bin/sh\necho session-of-$2\n")
    sysctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert incarnation() == {"boot_id": "session-of-kern.bootsessionuuid", "pidns": 0, "pid1_start": 0}
    identity._boot_session.cache_clear()
