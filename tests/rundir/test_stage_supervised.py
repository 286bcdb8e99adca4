"""Stage processes under a supervisor: the inherited writer lock, the attempt they are given, ranks of torchrun."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pipeline.rundir import Attempt, Lock, RunDir, held

Start = Callable[..., Any]
WORKS = """
    stage.progress(1, 1, "samples", force=True)
    stage.metric(1, 0.5, {"train/loss": 1.0})
    stage.event("saved", "one row")
    stage.finish({"samples": 1}, "abc")
"""
POLLS = """
    stage.log(f"polling {'EAGLEDECK_WRITER_FD' in os.environ}")
    while not stage.stopping():
        time.sleep(0.005)
    raise Stopped
"""


@pytest.fixture
def attempt(run: RunDir) -> Iterator[Attempt]:
    """An attempt opened under the stage's lock, which stays held."""
    stage = run.stage("generate").make()
    lock = Lock.acquire(stage.lock_path)
    assert lock is not None
    with lock:
        attempt = stage.new_attempt()
        attempt.write_state(phase="running")
        yield attempt


def test_it_holds_the_inherited_writer_lock_and_leaves_exit_json_to_the_supervisor(
    run: RunDir, start: Start, attempt: Attempt
) -> None:
    path = run.stage("generate").writer_lock_path
    writer = Lock.acquire(path)
    assert writer is not None
    environment = {"EAGLEDECK_WRITER_FD": str(writer.fd)}
    process = start(POLLS, "--attempt", str(attempt.path), env=environment, fds=(writer.fd,))
    writer.release()
    assert process.hears("polling") == "polling False"
    assert held(path)
    attempt.request("stop", by="supervisor")
    assert process.end()[0] == 0
    assert not held(path)
    assert (attempt.outcome() or {})["result"] == "stopped"
    assert attempt.exit() is None
    assert not (attempt.path / "stage.log").exists()
    assert run.stage("generate").attempts() == [1]


def test_a_traceback_goes_to_its_standard_error_which_is_the_log(start: Start, attempt: Attempt) -> None:
    code, out, err = start("    1 / 0", "--attempt", str(attempt.path)).end()
    assert code == 1
    assert "ZeroDivisionError: division by zero" in out
    assert "Traceback" in err


def test_a_wrong_descriptor_is_refused(start: Start, attempt: Attempt) -> None:
    code, _, err = start(WORKS, "--attempt", str(attempt.path), env={"EAGLEDECK_WRITER_FD": "1"}).end()
    assert code == 1
    assert "Descriptor 1 is not the lock" in err
    assert attempt.outcome() is None


@pytest.mark.parametrize("where", ["elsewhere/0001", "one/generate/attempts/0009", "one/train/attempts/0001", "x"])
def test_an_attempt_of_something_else_is_refused(run: RunDir, start: Start, attempt: Attempt, where: str) -> None:
    code, _, err = start(WORKS, "--attempt", str(run.root / where)).end()
    assert code == 1
    assert "is no attempt of one/generate" in err


def test_only_the_first_rank_writes(start: Start, attempt: Attempt) -> None:
    assert start(WORKS, "--attempt", str(attempt.path), env={"RANK": "1"}).end()[0] == 0
    assert sorted(os.listdir(attempt.path)) == ["control", "spec.json", "state.json"]
    assert not attempt.output().complete


def test_a_rank_that_fails_is_not_hidden_by_the_ones_it_stops(start: Start, attempt: Attempt) -> None:
    words = ("--attempt", str(attempt.path))
    assert start("    raise StageError('rank 3 is out of memory')", *words, env={"RANK": "3"}).end()[0] == 1
    process = start(POLLS, *words, env={"RANK": "0"})
    process.hears("polling")
    process.signal(signal.SIGTERM)
    process.end()
    outcome = attempt.outcome()
    assert outcome is not None
    assert (outcome["result"], outcome["message"]) == ("failed", "rank 3 is out of memory")
