"""What becomes of the outputs of a run that goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.config import STAGES, Plan, set_values
from pipeline.fate import ANEW, AS_PLANNED, CONTINUED, KEPT, Intent, fates
from pipeline.rundir import RunDir


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir.create(tmp_path / "root", "one", Plan())


def kinds(run: RunDir, intent: Intent = AS_PLANNED) -> list[str]:
    return [fate.kind for fate in fates(run, run.plan(), intent).values()]


def test_a_fresh_run_opens_everything(run: RunDir) -> None:
    assert kinds(run) == [ANEW] * 5


def test_what_is_done_is_kept_and_what_was_stopped_is_continued(run: RunDir, stages: Any) -> None:
    stages.done(run, "generate", samples=3)
    stages.ended(run, "extract")
    assert kinds(run) == [KEPT, CONTINUED, ANEW, ANEW, ANEW]
    assert fates(run, run.plan())["extract"].output == 1


def test_a_restart_leaves_the_output_and_what_was_made_from_it_behind(run: RunDir, stages: Any) -> None:
    for name in ("generate", "extract", "vocab"):
        stages.done(run, name, samples=3)
    assert kinds(run, Intent(restart="extract")) == [KEPT, ANEW, KEPT, ANEW, ANEW]
    assert kinds(run, Intent(restart="generate"))[:3] == [ANEW, ANEW, ANEW]
    assert kinds(run, Intent(restart="generate", stale="keep"))[:3] == [ANEW, KEPT, KEPT]
    with stages.running(run, "extract", restart=True):
        assert fates(run, run.plan())["extract"].output == 2


def test_a_stale_output_is_continued_made_anew_or_kept(run: RunDir, stages: Any) -> None:
    for name in ("generate", "extract"):
        stages.done(run, name, samples=3)
    run.change_plan({"generate.max_samples": 20_000}, "more")
    assert kinds(run)[:2] == [CONTINUED, ANEW]
    assert kinds(run, Intent(stale="keep"))[:2] == [KEPT, KEPT]
    assert kinds(run, Intent(stale="refuse"))[:2] == [KEPT, KEPT]
    run.change_plan({"generate.temperature": 0.1}, "other")
    assert kinds(run)[:2] == [ANEW, ANEW]


def test_a_stage_at_work_goes_on_with_what_there_is(run: RunDir, stages: Any) -> None:
    for name in ("generate", "extract", "vocab"):
        stages.done(run, name, samples=3)
    with stages.running(run, "train"):
        run.change_plan({"extract.length": 4096}, "next time")
        assert kinds(run) == [KEPT, KEPT, KEPT, CONTINUED, ANEW]


def test_what_lies_before_the_first_stage_is_not_touched(run: RunDir, stages: Any) -> None:
    for name in ("generate", "extract"):
        stages.done(run, name, samples=3)
    run.change_plan({"generate.max_samples": 20_000}, "more")
    assert kinds(run, Intent(first="vocab"))[:3] == [KEPT, KEPT, ANEW]
    with stages.running(run, "generate"):
        assert kinds(run, Intent(first="extract"))[:2] == [CONTINUED, ANEW]


def test_borrowed_stages_and_those_beyond_the_plan_write_nothing(tmp_path: Path, run: RunDir) -> None:
    plan = set_values(Plan(), {"extract.from_run": "one/extract", "through": "vocab"})
    other = RunDir.create(tmp_path / "root", "two", plan)
    assert kinds(other) == [ANEW, KEPT, ANEW, KEPT, KEPT]
    assert kinds(other, Intent(through=STAGES[-1])) == [ANEW, KEPT, ANEW, ANEW, ANEW]
