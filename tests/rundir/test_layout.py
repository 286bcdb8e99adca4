"""Runs, plan revisions, stages, outputs: made whole, opened with care, written by many at once."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import ConfigError, Plan, TrainParams, set_value
from pipeline.rundir import Output, PlanConflict, RunDir, RunError, runs, valid_name, write_json

Start = Callable[..., Any]


@pytest.mark.parametrize("name", ["a", "kimi-k2.5", "0_x", "a" * 64])
def test_names_that_are_fine(name: str, tmp_path: Path) -> None:
    assert valid_name(name)
    assert RunDir.create(tmp_path, name, Plan()).name == name
    assert runs(tmp_path) == [name]


@pytest.mark.parametrize("name", ["", ".", "..", ".a", "-a", "A", "a/b", "a\n", "ä", "a" * 65, "a b", "../x"])
def test_names_that_are_not(name: str, tmp_path: Path) -> None:
    assert not valid_name(name)
    with pytest.raises(RunError, match="can't be the name of a run"):
        RunDir.create(tmp_path / "root", name, Plan())
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("name", ["telemetry", "services", "code"])
def test_folders_of_the_root_are_no_runs(name: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="can't be the name of a run"):
        RunDir.create(tmp_path, name, Plan())


def test_a_run_can_be_made_once(run: RunDir) -> None:
    with pytest.raises(RunError, match="already in"):
        RunDir.create(run.root, run.name, Plan())
    again = RunDir.open(run.path)
    assert again == run
    assert again.plan().revision == 1
    assert again.identity()["name"] == "one"
    assert stat.S_IMODE(run.path.stat().st_mode) == 0o700


def test_killed_at_any_step_a_run_is_whole_or_not_there(
    tmp_path: Path, every_crash: Callable[..., Iterator[int]]
) -> None:
    root = tmp_path / "root"
    seen = set()
    for _ in every_crash(
        lambda: shutil.rmtree(root, ignore_errors=True), lambda: RunDir.create(root, "one", Plan(note="x"))
    ):
        there = runs(root) == ["one"]
        seen.add(there)
        if there:
            assert RunDir.open(root / "one").plan().note == "x"
        else:
            assert RunDir.create(root, "one", Plan(note="y")).plan().note == "y"
    assert seen == {True, False}


def test_a_full_volume_leaves_no_run(tmp_path: Path, full_after: Callable[[int], None]) -> None:
    full_after(100)
    with pytest.raises(OSError, match="No space left"):
        RunDir.create(tmp_path / "root", "one", Plan())
    assert os.listdir(tmp_path / "root") == []


def test_two_that_make_the_same_run_at_once(tmp_path: Path, child: Start) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom pipeline.config import Plan\n"
        "from pipeline.rundir import RunDir, RunError\nprint('ready')\nsys.stdin.readline()\n"
        "try:\n    RunDir.create(Path(sys.argv[1]), 'one', Plan())\n    print('made')\n"
        "except RunError:\n    print('refused')"
    )
    racers = [child(program, tmp_path) for _ in range(4)]
    for racer in racers:
        assert racer.hears() == "ready"
    for racer in racers:
        racer.tell()
    assert sorted(racer.hears() for racer in racers) == ["made"] + ["refused"] * 3
    assert RunDir.open(tmp_path / "one").plans() == [1]


def test_opening_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="There is no run at"):
        RunDir.open(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="There is no run at"):
        RunDir.open(tmp_path / "empty")


def test_a_run_of_a_newer_version_is_refused(run: RunDir) -> None:
    write_json(run.path / "run.json", {"schema": 2, "name": "one", "unknown": {"future": True}})
    with pytest.raises(RunError, match=r"written by a newer Eagledeck \(schema 2; this one reads up to 1\)") as caught:
        RunDir.open(run.path)
    assert "Update Eagledeck" in caught.value.remedy


def test_a_plan_of_a_newer_version_is_refused(run: RunDir) -> None:
    write_json(run.path / "plan" / "0002.json", {"schema": 7, "stages": {"distil": {}}})
    with pytest.raises(RunError, match="schema 7 and was written by a newer Eagledeck"):
        run.plan()


def test_a_run_reached_through_a_linked_root_is_fine_and_one_that_links_out_is_not(run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to(run.root)
    assert RunDir.open(tmp_path / "data" / "one").plan().revision == 1
    other = RunDir.create(tmp_path / "elsewhere", "two", Plan())
    (run.root / "two").symlink_to(other.path)
    with pytest.raises(RunError, match="link that leaves"):
        RunDir.open(run.root / "two")


@pytest.mark.parametrize("part", ["", "attempts", "out"])
def test_a_stage_that_links_out_of_the_run_is_refused(run: RunDir, tmp_path: Path, part: str) -> None:
    target = tmp_path / "outside"
    target.mkdir()
    place = run.path / "train" / part if part else run.path / "train"
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(target)
    with pytest.raises(RunError, match="link that leaves"):
        run.stage("train")
    assert os.listdir(target) == []


def test_numbered_links_are_no_outputs_and_no_attempts(
    run: RunDir, complete: Callable[..., Output], tmp_path: Path
) -> None:
    complete(run.stage("generate"))
    stage = run.stage("generate")
    (stage.path / "out" / "0002").symlink_to(tmp_path)
    (stage.path / "attempts" / "0007").symlink_to(tmp_path)
    assert stage.outputs() == [1]
    assert stage.attempts() == [1]
    with pytest.raises(RunError, match="has no output 2"):
        stage.output(2)


@pytest.mark.parametrize("target", ["../../two/extract/out/0001", "/etc", "out/../../x", "out/1", "attempts/0001"])
def test_current_that_points_elsewhere_is_refused(run: RunDir, complete: Callable[..., Output], target: str) -> None:
    stage = run.stage("generate")
    complete(stage)
    (stage.path / "current").unlink()
    (stage.path / "current").symlink_to(target)
    with pytest.raises(RunError, match="points at"):
        stage.current()


def test_current_whose_output_was_removed_is_none(run: RunDir, complete: Callable[..., Output]) -> None:
    stage = run.stage("generate")
    shutil.rmtree(complete(stage).path)
    assert stage.current() is None


def test_an_unknown_stage(run: RunDir) -> None:
    with pytest.raises(RunError, match="no stage 'distil'"):
        run.stage("distil")


def test_a_torn_revision_is_passed_over_and_never_overwritten(run: RunDir) -> None:
    (run.path / "plan" / "0002.json").write_text('{"schema": 1, "rev')
    assert run.plan().revision == 1
    new = run.change_plan({"generate.max_samples": "77"}, "less")
    assert new.revision == 3
    assert RunDir.open(run.path).plan() == new
    assert (run.path / "plan" / "0002.json").read_text() == '{"schema": 1, "rev'


def test_a_revision_edited_by_hand_and_wrong_is_named(run: RunDir) -> None:
    raw = json.loads((run.path / "plan" / "0001.json").read_text())
    raw["stages"]["train"]["params"]["lr"] = "fast"
    write_json(run.path / "plan" / "0002.json", raw)
    with pytest.raises(RunError, match=r'0002\.json: train\.lr = "fast" is not allowed'):
        run.plan()


def test_a_run_without_a_plan_says_so(run: RunDir) -> None:
    (run.path / "plan" / "0001.json").unlink()
    with pytest.raises(RunError, match="no readable plan"):
        run.plan()


def test_old_revisions_stay_as_they_were(run: RunDir) -> None:
    before = (run.path / "plan" / "0001.json").read_bytes()
    run.change_plan({"train.epochs": "7"}, "longer")
    assert (run.path / "plan" / "0001.json").read_bytes() == before
    assert run.plan(1).note == ""
    assert run.plan().note == "longer"
    with pytest.raises(RunError, match="revision 9"):
        run.plan(9)


def test_a_change_of_an_old_revision_is_a_conflict(run: RunDir) -> None:
    mine, theirs = run.plan(), run.plan()
    run.write_plan(set_value(theirs, "train.epochs", 9), "theirs")
    with pytest.raises(PlanConflict, match="revision 2 by now"):
        run.write_plan(set_value(mine, "train.epochs", 3), "mine")
    assert run.plans() == [1, 2]
    with pytest.raises(ConfigError, match="did you mean epochs"):
        run.change_plan({"train.epoch": "3"}, "")


def test_many_writers_of_the_plan_lose_nothing(run: RunDir, child: Start) -> None:
    keys = ["generate.concurrency", "train.log_every", "train.epochs", "deploy.samples", "generate.retries"]
    program = (
        "import sys\nfrom pipeline.rundir import RunDir\nrun = RunDir.open(sys.argv[1])\nprint('ready')\n"
        "sys.stdin.readline()\n"
        "for value in range(1, 11):\n    run.change_plan({sys.argv[2]: str(value)}, sys.argv[2])\nprint('done')"
    )
    writers = [child(program, run.path, key) for key in keys]
    for writer in writers:
        assert writer.hears() == "ready"
    for writer in writers:
        writer.tell()
    for writer in writers:
        assert writer.hears() == "done"
    assert run.plans() == list(range(1, 52))
    plan = run.plan()
    for key in keys:
        stage, name = key.split(".")
        assert getattr(plan.params(stage), name) == 10
    # every revision differs from the one before by exactly what its note says
    for revision in run.plans()[1:]:
        now, before = run.plan(revision).to_json(), run.plan(revision - 1).to_json()
        stage, name = now["note"].split(".")
        assert now["stages"] != before["stages"]
        now["stages"][stage]["params"].pop(name), before["stages"][stage]["params"].pop(name)
        assert now["stages"] == before["stages"]


def test_killed_at_any_step_the_plan_is_the_old_or_the_new(
    run: RunDir, every_crash: Callable[..., Iterator[int]]
) -> None:
    def prepare() -> None:
        for number in run.plans()[1:]:
            (run.path / "plan" / f"{number:04d}.json").unlink()

    seen = set()
    for _ in every_crash(prepare, lambda: run.change_plan({"train.epochs": "9"}, "")):
        params = run.plan().params("train")
        assert isinstance(params, TrainParams)
        seen.add((len(run.plans()), params.epochs))
    assert seen == {(1, 5), (2, 9)}
