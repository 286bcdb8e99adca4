"""What a stage sees of its run: progress with rate and ETA, requests, space, inputs; and failures as sentences."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline import failure, stagerun
from pipeline.config import ConfigError, Plan
from pipeline.failure import StageError, explain, mount_of
from pipeline.rate import Rate, eta_s
from pipeline.rundir import Attempt, Output, RunDir, RunError, read_jsonl
from pipeline.stagerun import StageRun

Begin = Callable[..., Attempt]
Complete = Callable[..., Output]
Change = Callable[..., Plan]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 5e8 + self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(stagerun, "time", clock)
    return clock


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def stage(run: RunDir, begin: Begin, log: list[str]) -> StageRun:
    return StageRun(begin(run.stage("generate")), log.append)


def progress(stage: StageRun) -> dict[str, Any]:
    return stage.attempt.progress() or {}


class TestRate:
    def test_the_pace_of_the_window_not_of_the_whole_past(self) -> None:
        rate = Rate(window_s=60)
        assert rate.add(0, 0) is None
        assert rate.add(10, 1000) == 100
        for second in range(20, 200, 10):
            last = rate.add(second, 1000 + (second - 10))
        assert last == pytest.approx(1.0)

    def test_a_resume_does_not_count_what_was_there(self) -> None:
        rate = Rate()
        assert rate.add(0, 9000) is None
        assert rate.add(10, 9010) == pytest.approx(1.0)

    def test_a_pause_lowers_it_to_zero(self) -> None:
        rate = Rate(window_s=60)
        rate.add(0, 0)
        rate.add(10, 100)
        rate.add(80, 100)
        assert rate.add(90, 100) == 0

    def test_going_back_starts_anew(self) -> None:
        rate = Rate()
        rate.add(0, 500)
        rate.add(1, 600)
        assert rate.add(2, 0) is None
        assert rate.add(3, 5) == 5

    def test_two_at_the_same_moment(self) -> None:
        rate = Rate()
        rate.add(1, 0)
        assert rate.add(1, 10) is None

    @pytest.mark.parametrize(
        ("done", "total", "rate", "want"),
        [
            (10, None, 1, None),
            (10, 30, 2, 10),
            (30, 30, None, 0),
            (31, 30, 1, 0),
            (1, 30, None, None),
            (1, 30, 0, None),
        ],
    )
    def test_eta(self, done: float, total: float | None, rate: float | None, want: float | None) -> None:
        assert eta_s(done, total, rate) == want


class TestProgress:
    def test_written_at_most_twice_a_second_and_the_last_one_at_the_end(self, stage: StageRun, clock: Clock) -> None:
        stage.progress(1, 100, "samples")
        first = progress(stage)
        assert (first["done"], first["rate"], first["eta_s"], first["phase"]) == (1, None, None, "running")
        clock.now += 0.4
        stage.progress(2, 100, "samples")
        assert progress(stage) == first
        clock.now += 0.2
        stage.progress(7, 100, "samples", counts={"rejected": 2}, bytes=512)
        second = progress(stage)
        assert (second["done"], second["bytes"], second["counts"]) == (7, 512, {"rejected": 2})
        assert second["rate"] == pytest.approx(10)
        assert second["eta_s"] == pytest.approx(9.3)
        assert second["t"] == clock.time()
        stage.progress(8, 100, "samples")
        assert progress(stage)["done"] == 7
        stage.close()
        assert progress(stage)["done"] == 8

    def test_a_new_phase_shows_at_once_and_has_its_own_pace(self, stage: StageRun, clock: Clock) -> None:
        stage.progress(0, 10, "steps", phase="loading")
        clock.now += 100
        stage.progress(0, 10, "steps")
        clock.now += 1
        stage.progress(2, 10, "steps")
        assert progress(stage)["rate"] == pytest.approx(2)
        clock.now += 0.1
        stage.progress(2, 10, "steps", phase="saving")
        assert progress(stage)["phase"] == "saving"

    def test_an_unknown_total_has_no_eta(self, stage: StageRun, clock: Clock) -> None:
        stage.progress(0, None, "tokens")
        clock.now += 10
        stage.progress(50, None, "tokens")
        assert (progress(stage)["total"], progress(stage)["eta_s"], progress(stage)["rate"]) == (None, None, 5.0)

    def test_a_full_volume_does_not_fail_the_stage(self, stage: StageRun, full_after: Callable[[int], None]) -> None:
        stage.progress(1, 2, "steps")
        full_after(5)
        stage.progress(2, 2, "steps", force=True)
        assert progress(stage)["done"] == 1


def test_metrics_and_events(stage: StageRun, log: list[str]) -> None:
    stage.resumed_at(40)
    stage.metric(50, values={"train/loss": float("nan"), "val/loss": None}, lr=0.1)
    stage.metric(60, 1.5)
    stage.event("warning", "slow", rate=3)
    stage.close()
    rows = read_jsonl(stage.attempt.path / "metrics.jsonl")[0]
    for row in rows:
        assert row.pop("t") > 1e9
    assert rows == [
        {"resume_step": 40},
        {"step": 50, "train/loss": None, "val/loss": None, "lr": 0.1},
        {"step": 60, "epoch": 1.5},
    ]
    event = read_jsonl(stage.attempt.path / "events.jsonl")[0][0]
    assert (event["kind"], event["message"], event["rate"]) == ("warning", "slow", 3)
    assert log == ["warning: slow"]


def test_a_stop_request_is_seen_within_a_moment_and_for_good(stage: StageRun, clock: Clock) -> None:
    assert not stage.stopping()
    stage.attempt.request("stop", by="anna")
    assert not stage.stopping()
    clock.now += 0.2
    assert stage.stopping()
    stage.attempt.answer("stop")
    clock.now += 10
    assert stage.stopping()


def test_a_checkpoint_request_is_seen_once(stage: StageRun) -> None:
    assert not stage.checkpoint_requested()
    stage.attempt.request("checkpoint", by="anna")
    assert stage.checkpoint_requested()
    assert not stage.checkpoint_requested()


def test_it_sees_the_plan_revision_it_was_started_with(run: RunDir, begin: Begin, change: Change) -> None:
    attempt = begin(run.stage("generate"))
    change(run, generate__concurrency="3")
    assert StageRun(attempt, print).plan.revision == 1


def test_it_gets_the_very_inputs_of_its_output(run: RunDir, begin: Begin, complete: Complete) -> None:
    complete(run.stage("generate"))
    attempt = begin(run.stage("extract"))
    assert StageRun(attempt, print).inputs["generate"].path == run.path / "generate" / "out" / "0001"
    complete(run.stage("generate"), restart=True)
    assert StageRun(attempt, print).inputs["generate"].number == 1
    run.stage("generate").output(1).write_report({"fingerprint": "other"})
    with pytest.raises(RunError, match="has changed since"):
        StageRun(attempt, print)


class TestSpace:
    def sized(self, monkeypatch: pytest.MonkeyPatch, free: int, used: int) -> None:
        block = 4096
        total = (free + used) // block
        answer = os.statvfs_result((block, block, total, free // block, free // block, 9, 9, 9, 0, 255))
        monkeypatch.setattr(os, "statvfs", lambda path: answer)

    def test_free_less_the_reserve(self, stage: StageRun, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sized(monkeypatch, free=10 << 30, used=90 << 30)
        assert stage.plan.volume.reserve_bytes == 1 << 30
        assert stage.free_bytes() == 9 << 30
        self.sized(monkeypatch, free=1 << 20, used=90 << 30)
        assert stage.free_bytes() == 0

    def test_a_declared_capacity_counts_when_it_is_less(
        self, run: RunDir, begin: Begin, change: Change, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        change(run, volume__capacity_bytes="5GiB")
        stage = StageRun(begin(run.stage("generate")), print)
        self.sized(monkeypatch, free=10 << 30, used=90 << 30)
        assert (4 << 30) - (1 << 20) < stage.free_bytes() < 4 << 30  # what others have on the disk doesn't count

    def test_the_refusal_has_the_numbers(self, stage: StageRun, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sized(monkeypatch, free=(3 << 30), used=0)
        stage.check_space(2 << 30)
        with pytest.raises(StageError) as caught:
            stage.check_space((2 << 30) + 1)
        assert caught.value.message == (
            f"The volume {mount_of(stage.output)} has room for 2.15 GB before its reserve of 1.07 GB, "
            "and generate needs 2.15 GB next"
        )
        assert caught.value.resumable

    def test_the_real_volume(self, stage: StageRun) -> None:
        info = os.statvfs(stage.output)
        assert 0 <= stage.free_bytes() <= info.f_blocks * info.f_frsize


class TestFailures:
    def test_refusals_keep_their_words(self, tmp_path: Path) -> None:
        for error in (StageError("m", "r"), RunError("m", "r"), ConfigError("m", "r", "k")):
            found = explain(error, "train", tmp_path)
            assert (found.message, found.remedy, found.resumable, found.expected) == ("m", "r", True, True)
        assert explain(StageError("m", resumable=False), "train", tmp_path).resumable is False

    @pytest.mark.parametrize(
        "error",
        [
            OSError(errno.ENOSPC, "No space left on device"),
            OSError(errno.EDQUOT, "Disk quota exceeded"),
            RuntimeError("I/O error: No space left on device (os error 28)"),
        ],
    )
    def test_a_full_volume_by_any_name(self, tmp_path: Path, error: Exception) -> None:
        found = explain(error, "extract", tmp_path)
        assert found.message.startswith(f"The volume {mount_of(tmp_path)} is full (")
        assert found.message.endswith(f"while extract wrote to {tmp_path}")
        assert found.expected
        assert found.resumable

    def test_a_full_volume_behind_another_error(self, tmp_path: Path) -> None:
        error = ValueError("could not serialise")
        error.__cause__ = OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "shard"))
        assert f"wrote to {tmp_path / 'shard'}" in explain(error, "extract", tmp_path).message

    @pytest.mark.parametrize(("free", "full"), [(1000, True), (10 << 30, False)])
    def test_torchs_writer_says_only_that_it_failed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, full: bool
    ) -> None:
        monkeypatch.setattr(failure, "free_bytes", lambda path: free)
        error = RuntimeError(
            "[enforce fail at inline_container.cc:664] . PytorchStreamWriter failed writing file data/5"
        )
        found = explain(error, "train", tmp_path)
        assert ("is full" in found.message) is full
        assert found.expected is full

    @pytest.mark.parametrize(
        ("error", "where"),
        [
            (MemoryError(), "the host"),
            (
                RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"),
                "the host",
            ),
            (RuntimeError("CUDA error: out of memory"), "the GPU"),
            (OSError(errno.ENOMEM, "Cannot allocate memory"), "the host"),
        ],
    )
    def test_out_of_memory(self, tmp_path: Path, error: Exception, where: str) -> None:
        found = explain(error, "train", tmp_path)
        assert found.message == f"train ran out of memory on {where}"
        assert found.remedy.startswith("Lower train.batch_tokens")

    def test_anything_else_in_one_line(self, tmp_path: Path) -> None:
        found = explain(ValueError("a\n b" + "x" * 1000), "train", tmp_path)
        assert found.message.startswith("train ended on an unexpected error: ValueError: a b")
        assert len(found.message) < 400
        assert not found.expected

    def test_an_error_that_is_its_own_cause(self, tmp_path: Path) -> None:
        error = ValueError("loop")
        error.__cause__ = RuntimeError("other")
        error.__cause__.__context__ = error
        assert not explain(error, "train", tmp_path).expected


def test_the_spec_is_json_all_the_way(stage: StageRun) -> None:
    assert json.loads((stage.attempt.path / "spec.json").read_text())["gpus"] == "all"


class TestSaving:
    def test_how_long_a_checkpoint_takes_is_told_while_and_after(self, stage: StageRun, clock: Clock) -> None:
        stage.progress(5, 10, "steps", counts={"tokens": 7})
        assert (progress(stage)["save_s"], progress(stage)["saving_since"]) == (None, None)
        with stage.saving():
            assert progress(stage)["saving_since"] == clock.time()
            assert progress(stage)["counts"] == {"tokens": 7}
            clock.now += 42
        assert (progress(stage)["save_s"], progress(stage)["saving_since"]) == (42, None)
        clock.now += 1
        stage.progress(6, 10, "steps")
        assert progress(stage)["save_s"] == 42

    def test_one_that_fails_tells_no_time(self, stage: StageRun, clock: Clock) -> None:
        with pytest.raises(OSError, match="full"), stage.saving():
            raise OSError("full")
        assert (progress(stage)["save_s"], progress(stage)["saving_since"]) == (None, None)
