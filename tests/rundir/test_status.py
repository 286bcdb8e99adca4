"""Every state of a stage, from real files, real locks and real processes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import Plan
from pipeline.rundir import (
    STAGES,
    STATES,
    Attempt,
    Lock,
    Output,
    RunDir,
    StageState,
    incarnation,
    process_start,
    run_status,
    status,
    write_json,
)

Start = Callable[..., Any]
Begin = Callable[..., Attempt]
Complete = Callable[..., Output]
Change = Callable[..., Plan]


def save(attempt: Attempt) -> Attempt:
    (attempt.output().path / "data").write_text("data")
    return attempt


def test_the_states_of_the_design() -> None:
    assert set(STATES) == {
        "PENDING", "RUNNING", "STOPPING", "STOPPED", "DONE", "FAILED", "KILLED", "INTERRUPTED", "LOST",
    }  # fmt: skip
    assert f"{StageState.LOST}" == "LOST" == StageState.LOST


def test_pending_says_what_it_waits_for(run: RunDir) -> None:
    assert status(run.stage("generate")).state == "PENDING"
    assert status(run.stage("generate")).message == ""
    train = status(run.stage("train"))
    assert (train.state, train.attempt, train.output, train.resumable) == ("PENDING", None, None, False)
    assert train.message == "train needs an output of extract, and there is none yet"
    assert list(run_status(run)) == list(STAGES)


def test_an_attempt_that_was_opened_and_never_started_changes_nothing(run: RunDir, begin: Begin) -> None:
    stage = run.stage("generate").make()
    with Lock.acquire(stage.lock_path):  # type: ignore[union-attr]
        stage.new_attempt()
    assert status(stage).state == "PENDING"
    save(begin(stage)).write_exit(reason="stopped", message="by anna")
    with Lock.acquire(stage.lock_path):  # type: ignore[union-attr]
        stage.new_attempt()
        assert (status(stage).state, status(stage).attempt, status(stage).message) == ("RUNNING", 3, "starting")
    found = status(stage)
    assert (found.state, found.attempt, found.message) == ("STOPPED", 2, "by anna")


def test_running_and_stopping_while_the_lock_is_held(run: RunDir, begin: Begin, hold: Start) -> None:
    stage = run.stage("generate")
    attempt = begin(stage)
    holder = hold(stage.lock_path, stage.writer_lock_path)
    found = status(stage)
    assert (found.state, found.attempt, found.output, found.resumable) == ("RUNNING", 1, 1, False)
    assert found.started == attempt.state()["started"]
    assert found.ended is None
    attempt.request("stop", by="test")
    assert status(stage).state == "STOPPING"
    # the stage has said how it ended, and its supervisor is still about to
    attempt.write_outcome("stopped")
    assert status(stage).state == "STOPPING"
    attempt.write_exit(reason="stopped", code=0)
    assert status(stage).state == "STOPPED"
    holder.end()
    assert status(stage).state == "STOPPED"


def test_a_lock_without_any_attempt_is_a_start(run: RunDir, hold: Start) -> None:
    stage = run.stage("generate").make()
    hold(stage.lock_path)
    assert (status(stage).state, status(stage).message) == ("RUNNING", "starting")


@pytest.mark.parametrize(
    ("reason", "state", "resumable"),
    [
        ("done", "DONE", False),
        ("stopped", "STOPPED", True),
        ("failed", "FAILED", True),
        ("killed", "KILLED", True),
        ("lost", "LOST", True),
    ],
)
def test_exit_json_says_how_it_ended(run: RunDir, begin: Begin, reason: str, state: str, resumable: bool) -> None:
    attempt = save(begin(run.stage("generate")))
    attempt.write_outcome("failed", "the outcome counts for less")
    attempt.write_exit(reason=reason, code=1, signal=9, message="what happened", remedy="what to do")
    found = status(run.stage("generate"))
    assert (found.state, found.resumable) == (state, resumable)
    assert (found.message, found.remedy) == ("what happened", "what to do")
    assert found.ended == (attempt.exit() or {})["ended"]
    attempt.write_exit(reason=reason, resumable=False)
    assert status(run.stage("generate")).resumable is False


@pytest.mark.parametrize(("result", "state"), [("done", "DONE"), ("stopped", "STOPPED"), ("failed", "FAILED")])
def test_a_stage_that_outlived_its_supervisor_is_known_by_its_outcome(
    run: RunDir, begin: Begin, hold: Start, result: str, state: str
) -> None:
    stage = run.stage("generate")
    attempt = save(begin(stage))
    writer = hold(stage.writer_lock_path)
    attempt.write_outcome(result, "said by the stage")
    assert status(stage).state == "LOST"
    writer.end()
    assert (status(stage).state, status(stage).message) == (state, "said by the stage")


@pytest.mark.parametrize("restarted", [False, True])
def test_a_stage_cut_off_after_its_report_is_done(run: RunDir, begin: Begin, hold: Start, restarted: bool) -> None:
    stage = run.stage("generate")
    attempt = begin(stage)
    if restarted:
        attempt.write_state(incarnation={**incarnation(), "boot_id": "before"})
    writer = hold(stage.writer_lock_path)
    attempt.output().write_report({"fingerprint": "f", "attempt": 1, "ended": 77.0})
    assert status(stage).state == "LOST"
    writer.kill()
    found = status(stage)
    assert (found.state, found.resumable, found.ended) == ("DONE", False, 77.0)
    attempt.output().write_report({"fingerprint": "f", "attempt": 2})
    assert status(stage).state == ("INTERRUPTED" if restarted else "LOST")


JUNK: tuple[Any, ...] = (None, 5, "x", [], {}, [5, None, "x", {}], {"pid": "x", "start": []})


@pytest.mark.parametrize("field", ["phase", "incarnation", "supervisor", "main", "members", "unkillable", "started"])
@pytest.mark.parametrize("held", [True, False])
def test_whatever_stands_in_state_json_there_is_a_status(
    run: RunDir, begin: Begin, hold: Start, field: str, held: bool
) -> None:
    stage = run.stage("generate")
    attempt = save(begin(stage))
    state = {**attempt.state(), "phase": "unkillable"}
    if held:
        hold(stage.lock_path)
    for junk in JUNK:
        write_json(attempt.path / "state.json", {**state, field: junk})
        assert status(stage).state.value in STATES


def test_a_torn_exit_json_counts_as_none(run: RunDir, begin: Begin) -> None:
    attempt = save(begin(run.stage("generate")))
    attempt.write_outcome("stopped", "said by the stage")
    (attempt.path / "exit.json").write_bytes(b"")
    assert (status(run.stage("generate")).state, status(run.stage("generate")).message) == (
        "STOPPED",
        "said by the stage",
    )


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("boot_id", "before", "The host was restarted"),
        ("pid1_start", 1, "The container was restarted"),
        ("pidns", 1, "The container was restarted"),
    ],
)
def test_interrupted_when_host_or_container_came_up_anew(
    run: RunDir, begin: Begin, key: str, value: object, words: str
) -> None:
    attempt = save(begin(run.stage("generate")))
    # a pid that lives in this life says nothing about the one before
    attempt.write_state(
        incarnation={**incarnation(), key: value}, main={"pid": os.getppid(), "start": process_start(os.getppid())}
    )
    found = status(run.stage("generate"))
    assert (found.state, found.resumable) == ("INTERRUPTED", True)
    assert found.message == f"{words} while the stage ran"
    assert found.ended is not None


def test_a_lock_held_from_another_container_on_this_kernel_is_running(run: RunDir, begin: Begin, hold: Start) -> None:
    attempt = begin(run.stage("generate"))
    attempt.write_state(incarnation={**incarnation(), "pidns": 1})
    hold(attempt.stage.lock_path)
    assert status(attempt.stage).state == "RUNNING"


def test_lost_while_a_member_lives_and_after(run: RunDir, begin: Begin, child: Start) -> None:
    stage = run.stage("generate")
    attempt = save(begin(stage))
    member = child("import sys; sys.stdin.readline()")
    pid = member.process.pid
    attempt.write_state(members=[{"pid": pid, "start": process_start(pid)}])
    found = status(stage)
    assert (found.state, found.resumable, found.ended) == ("LOST", False, None)
    assert found.message == f"The supervisor is gone, the stage still runs (pid {pid})"
    assert found.remedy == "`eagledeck start one` watches it again, `eagledeck kill one generate` ends it"
    member.kill()
    found = status(stage)
    assert (found.state, found.resumable) == ("LOST", True)
    assert "without a record" in found.message


def test_lost_while_the_writer_lock_is_held(run: RunDir, begin: Begin, hold: Start) -> None:
    stage = run.stage("generate")
    save(begin(stage))
    writer = hold(stage.writer_lock_path)
    assert (status(stage).state, status(stage).resumable) == ("LOST", False)
    writer.kill()
    assert (status(stage).state, status(stage).resumable) == ("LOST", True)


def test_killing_supervisor_and_stage_shows_at_once(run: RunDir, begin: Begin, hold: Start) -> None:
    stage = run.stage("generate")
    save(begin(stage))
    holder = hold(stage.lock_path, stage.writer_lock_path)
    assert status(stage).state == "RUNNING"
    holder.kill()
    assert status(stage).state == "LOST"


def test_without_locks_identity_decides(run: RunDir, begin: Begin, child: Start) -> None:
    write_json(run.root / "locks.json", {"schema": 1, "work": False})
    stage = run.stage("generate")
    attempt = begin(stage)
    supervisor = child(
        "import sys\nfrom pathlib import Path\nfrom pipeline.rundir import Lock, locks\n"
        "locks.take = locks.asked = lambda fd: False\n"
        "print(bool(Lock.acquire(Path(sys.argv[1]))))\nsys.stdin.readline()",
        stage.lock_path,
    )
    assert supervisor.hears() == "True"
    pid = supervisor.process.pid
    attempt.write_state(supervisor={"pid": pid, "start": process_start(pid)})
    assert status(stage).state == "RUNNING"
    supervisor.kill()
    assert status(stage).state == "LOST"


def test_resumable_only_when_the_plan_still_allows_it(run: RunDir, begin: Begin, change: Change) -> None:
    attempt = save(begin(run.stage("generate")))
    attempt.write_exit(reason="stopped", message="stopped by anna")
    assert status(run.stage("generate")).resumable
    change(run, generate__top_p="0.5")
    found = status(run.stage("generate"))
    assert not found.resumable
    assert found.message == "stopped by anna; output 1 was begun with top_p = 0.95, the plan says 0.5"
    assert found.remedy == "`eagledeck restart one generate` opens a new output; this one stays on disk"
    assert found.stale_reason == "generate.top_p is 0.5 now, was 0.95"


def test_done_keeps_being_done_when_its_output_is_reclaimed(run: RunDir, complete: Complete) -> None:
    output = complete(run.stage("generate"))
    shutil.rmtree(output.path)
    assert (status(run.stage("generate")).state, status(run.stage("generate")).stale) == ("DONE", False)


def test_looking_writes_nothing(run: RunDir, complete: Complete, begin: Begin) -> None:
    complete(run.stage("generate"))
    save(begin(run.stage("extract")))

    def picture() -> dict[Path, tuple[int, int]]:
        return {path: (path.lstat().st_mtime_ns, path.lstat().st_ino) for path in run.root.rglob("*")}

    before = picture()
    run_status(run)
    assert picture() == before


class TestBorrowed:
    @pytest.fixture
    def other(self, run: RunDir) -> RunDir:
        return RunDir.create(run.root, "two", Plan())

    def test_done_with_the_output_of_the_lender(
        self, run: RunDir, other: RunDir, complete: Complete, change: Change
    ) -> None:
        complete(run.stage("generate"))
        change(other, generate__from_run="one/generate")
        found = status(other.stage("generate"))
        assert (found.state, found.borrowed, found.output, found.attempt) == ("DONE", "one/generate", 1, None)
        assert found.message == "borrowed from one/generate output 1"
        assert not (other.path / "generate").exists()

    def test_pending_until_the_lender_is_done(self, run: RunDir, other: RunDir, begin: Begin, change: Change) -> None:
        change(other, generate__from_run="one/generate")
        assert status(other.stage("generate")).message == "one/generate has no output yet"
        save(begin(run.stage("generate")))
        found = status(other.stage("generate"))
        assert (found.state, found.message) == ("PENDING", "one/generate isn't complete (output 1)")
        assert found.remedy == "Let one finish generate"

    def test_pending_with_a_reason_when_the_lender_is_missing(self, other: RunDir, change: Change) -> None:
        change(other, extract__from_run="three/extract")
        found = status(other.stage("extract"))
        assert (found.state, found.borrowed) == ("PENDING", "three/extract")
        assert found.message.startswith('extract.from_run = "three/extract": There is no run at')

    def test_a_stage_that_runs_is_running_whatever_the_plan_says_now(
        self, other: RunDir, begin: Begin, change: Change, hold: Start
    ) -> None:
        save(begin(other.stage("generate")))
        hold(other.stage("generate").lock_path)
        change(other, generate__from_run="one/generate")
        assert status(other.stage("generate")).state == "RUNNING"


def test_what_can_go_on_is_not_stale(run: RunDir, begin: Begin) -> None:
    attempt = begin(run.stage("generate"))
    (attempt.output().path / "data").write_text("half")
    attempt.write_exit(reason="stopped")
    run.change_plan({"generate.max_samples": "20"}, "")
    seen = status(run.stage("generate"))
    assert (seen.state, seen.resumable, seen.stale) == ("STOPPED", True, False)
    run.change_plan({"generate.temperature": "0.1"}, "")
    seen = status(run.stage("generate"))
    assert (seen.resumable, seen.stale, seen.undecided) == (False, True, True)
