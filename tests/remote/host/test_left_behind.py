"""Stages that lost their supervisor at the worst moment, stages that run alone, and what a filesystem refuses."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.rundir import Lock, StageState, process_start, status
from remote.agent.attempts import completed
from remote.agent.conductor import Conductor
from remote.agent.detach import Ready
from remote.agent.errand import errand_of
from remote.agent.holders import holders
from remote.agent.members import Process
from remote.agent.operations import Operations, Refused
from remote.agent.supervisor import Supervisor
from remote.agent.trouble import told

ALONE = """
import os, subprocess, sys, time
from pathlib import Path
from pipeline.rundir import Lock, RunDir, process_start
stage = RunDir.open(Path(sys.argv[1])).stage("generate").make()
locks = [Lock.acquire(stage.lock_path), Lock.acquire(stage.writer_lock_path)]
attempt = stage.new_attempt(by="alone")
me = {"pid": os.getpid(), "start": process_start(os.getpid())}
attempt.write_state(phase="running", supervisor=me, main=me, members=[])
(attempt.output().path / "samples.jsonl").write_text("x")
own = subprocess.Popen(["sleep", "60"])
far = subprocess.Popen(["sleep", "60"], start_new_session=True)
print(own.pid, far.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def orphan(host):
    """A run whose supervisor was killed between starting the process and remembering it; the process."""
    run = host.run()
    stage = run.stage("generate").make()
    with Lock.acquire(stage.lock_path):
        attempt = stage.new_attempt()
        attempt.write_state(phase="starting", supervisor={"pid": 2**22 + 1, "start": 1}, members=[])
        with Lock.acquire(stage.writer_lock_path) as writer:
            process = subprocess.Popen(["sleep", "60"], pass_fds=(writer.fd,), start_new_session=True)
    yield run, process
    process.kill()
    process.wait()


def test_a_process_nobody_remembered_is_found_by_its_lock(orphan):
    run, process = orphan
    stage = run.stage("generate")
    assert (status(stage).state, status(stage).resumable) == (StageState.LOST, False)
    assert holders(stage.writer_lock_path) == [(process.pid, process_start(process.pid))]
    step = Conductor(run, errand_of(run, {}), Ready(-1))._next()
    assert (step.kind, step.stage) == ("adopt", "generate")
    with pytest.raises(Refused, match="the stage still runs") as refused:
        Operations(run.root).call("restart", {"run": "r1", "stage": "generate"})
    assert "`eagledeck kill r1 generate`" in refused.value.remedy


def test_a_process_nobody_remembered_is_killed(orphan, host, wait_for):
    run, process = orphan
    assert Operations(host.root).call("kill", {"run": "r1", "stage": "generate"})["stages"] == ["generate"]
    assert process.wait(20) == -signal.SIGKILL
    wait_for(run.stage("generate").latest().exit)
    assert status(run.stage("generate")).state is StageState.KILLED


def test_a_process_nobody_remembered_is_adopted(orphan, host, wait_for):
    run, process = orphan
    Operations(host.root).call("adopt", {"run": "r1", "stage": "generate"})
    assert status(run.stage("generate")).state is StageState.RUNNING
    assert run.stage("generate").latest().state()["main"]["pid"] == process.pid


def test_killing_a_stage_that_runs_alone_takes_what_it_started_and_says_so(host):
    run = host.run()
    process = subprocess.Popen(
        [sys.executable, "-c", ALONE, str(run.path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[3],
    )
    others = [int(word) for word in process.stdout.readline().split()]
    assert Operations(host.root).call("kill", {"run": "r1"})["stages"] == ["generate"]
    assert process.wait(10) == -signal.SIGKILL
    process.stdout.close()
    assert [process_start(pid) for pid in others] == [None, None]
    found = status(run.stage("generate"))
    assert (found.state, found.resumable, found.message) == (StageState.KILLED, True, "killed on request")
    assert process_start(os.getpid()) is not None


def test_only_the_report_of_this_attempt_completes_it(host):
    run = host.run()
    stage = run.stage("generate").make()
    with Lock.acquire(stage.lock_path):
        attempt = stage.new_attempt()
        attempt.write_state(phase="running")
        output = attempt.output()
        assert not completed(attempt)
        for number, want in ((attempt.number, True), (attempt.number + 1, False), (None, True)):
            record = {"fingerprint": "f", "attempt": number} if number else {"fingerprint": "f"}
            output.write_report(record)
            assert completed(attempt) is want


def test_what_cannot_be_killed_on_a_full_volume_ends_no_supervisor(host, monkeypatch):
    run = host.run()
    stage = run.stage("generate").make()
    with Lock.acquire(stage.lock_path):
        attempt = stage.new_attempt()
        attempt.write_state(phase="running")
        supervisor = Supervisor(attempt, Ready(-1))
        supervisor.living = [Process(1, 0, 1, 1, "D", "stuck")]
        notes = []
        monkeypatch.setattr(supervisor, "_note", lambda kind, message, **more: notes.append(message))

        def full(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("pipeline.rundir.attempt.write_json", full)
        supervisor._report_unkillable()
        monkeypatch.undo()
        monkeypatch.setattr(supervisor, "_note", lambda kind, message, **more: notes.append(message))
        supervisor._report_unkillable()
    assert notes == ["1 processes can't be killed"]
    assert attempt.state()["phase"] == "unkillable"
    with Lock.acquire(stage.lock_path):
        assert status(stage).message == "UNKILLABLE: stuck (pid 1, D)"
        assert "restart the host" in status(stage).remedy


def test_a_start_that_breaks_halfway_ends_as_failed(host, monkeypatch):
    run = host.run()
    stage = run.stage("generate").make()
    with Lock.acquire(stage.lock_path):
        attempt = stage.new_attempt()

        def broken(self, output):
            raise PermissionError(errno.EACCES, "Permission denied", str(self.path / "current"))

        monkeypatch.setattr("pipeline.rundir.layout.StageDir.point_current", broken)
        with pytest.raises(PermissionError) as error:
            attempt.write_state(phase="starting")
        Supervisor(attempt, Ready(-1))._not_begun(*told(error.value, attempt.path))
    assert status(stage).state is StageState.FAILED
    assert status(stage).message == f"Permission denied: {stage.path}/current"


@pytest.mark.parametrize(
    ("number", "want"),
    [(errno.ENOSPC, "free some space"), (errno.EDQUOT, "free some space"), (errno.EACCES, "the right to"),
     (errno.EROFS, "writable"), (errno.ENOTDIR, "can be read and written")],
)  # fmt: skip
def test_only_a_full_volume_is_told_to_be_emptied(number, want):
    message, remedy = told(OSError(number, os.strerror(number), "/data/x"), Path("/data"))
    assert message == f"{os.strerror(number)}: /data/x"
    assert want in remedy
    assert told(OSError(number, os.strerror(number)), Path("/data"))[0].endswith(": /data")
