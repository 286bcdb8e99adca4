"""What an output was made from, whose outputs a run reads, and when something is STALE, with the reason in words."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.config import Plan, set_value
from pipeline.rundir import (
    INPUTS,
    STAGES,
    Attempt,
    Output,
    RunDir,
    RunError,
    StageDir,
    counting_output,
    fingerprint,
    fingerprint_params,
    inputs_of,
    lineage,
    recorded_inputs,
    run_status,
    stale,
    status,
)
from pipeline.rundir.kept import Keep, forget, keep, keep_of
from pipeline.stagerun import StageRun

Begin = Callable[..., Attempt]
Complete = Callable[..., Output]
Change = Callable[..., Plan]


@pytest.fixture
def done(run: RunDir, complete: Complete) -> RunDir:
    """A run whose five stages are DONE."""
    for name in STAGES:
        complete(run.stage(name))
    return run


def finish(stage: StageDir, attempt: Attempt, data: str) -> None:
    attempt.output().write_report({"schema": 1, "stage": stage.stage, "fingerprint": data, "counts": {}})
    attempt.write_exit(reason="done", resumable=False)


def reasons(run: RunDir) -> dict[str, str]:
    return {name: found.reason for name in STAGES if (found := stale(run, name)).reason}


def test_the_stages_build_on_each_other() -> None:
    assert tuple(INPUTS) == STAGES
    for name, inputs in INPUTS.items():
        assert all(STAGES.index(one) < STAGES.index(name) for one in inputs)


def test_nothing_is_stale_when_nothing_changed(done: RunDir) -> None:
    assert reasons(done) == {}
    assert reasons(RunDir.create(done.root, "empty", Plan())) == {}


@pytest.mark.parametrize(
    ("change_to", "touched"),
    [
        ({"generate.concurrency": "4"}, []),
        ({"generate.endpoint": "http://h:1/v1"}, []),
        ({"train.log_every": "1", "extract.device": "cuda:1", "extract.batch_tokens": "64"}, []),
        ({"train.gpus": "0", "volume.reserve_bytes": "1GB", "through": "train"}, []),
        ({"deploy.k": "4"}, ["deploy"]),
        ({"train.lr": "3e-5"}, ["train", "deploy"]),
        ({"vocab.size": "16000"}, ["vocab", "train", "deploy"]),
        ({"extract.length": "4096"}, ["extract", "train", "deploy"]),
        ({"generate.max_samples": "20000"}, ["generate", "extract", "vocab", "train", "deploy"]),
        ({"verifier.path": "/models/other"}, ["generate", "extract", "vocab", "train", "deploy"]),
    ],
)
def test_a_change_of_the_plan_reaches_what_builds_on_it(
    done: RunDir, change_to: dict[str, str], touched: list[str]
) -> None:
    done.change_plan(change_to, "")
    assert sorted(reasons(done)) == sorted(touched)
    assert {name: status(done.stage(name)).state for name in STAGES} == dict.fromkeys(STAGES, "DONE")


def test_the_reasons_are_sentences(done: RunDir) -> None:
    done.change_plan({"vocab.size": "16000"}, "")
    found = reasons(done)
    assert found["vocab"] == "vocab.size is 16000 now, was 32000"
    assert found["train"] == "its input vocab is stale: vocab.size is 16000 now, was 32000"
    assert found["deploy"] == f"its input train is stale: {found['train']}"
    done.change_plan({"vocab.size": "32000", "verifier.path": "/m/a", "train.lr": "1e-5", "train.seed": "3"}, "")
    found = reasons(done)
    assert found["extract"] == 'verifier.path is "/m/a" now, was ""'
    assert found["train"] == "train.lr is 1e-05 now, was 0.0001; train.seed is 3 now, was 0"


def test_a_change_that_is_taken_back_is_no_change(done: RunDir) -> None:
    done.change_plan({"train.lr": "3e-5"}, "")
    done.change_plan({"train.lr": "1e-4"}, "")
    assert reasons(done) == {}


def test_a_new_output_makes_what_was_built_on_the_old_one_stale(done: RunDir, complete: Complete, begin: Begin) -> None:
    attempt = begin(done.stage("extract"), restart=True)
    assert reasons(done)["train"] == "its input extract is output 2 now, was output 1"
    finish(done.stage("extract"), attempt, "new data")
    found = reasons(done)
    assert sorted(found) == ["deploy", "train"]
    complete(done.stage("train"), restart=True)
    assert reasons(done) == {"deploy": "its input train is output 2 now, was output 1"}
    complete(done.stage("deploy"), restart=True)
    assert reasons(done) == {}


def test_an_output_that_was_continued_makes_what_was_built_on_it_stale(done: RunDir, begin: Begin) -> None:
    done.change_plan({"generate.max_samples": "20000"}, "more")
    attempt = begin(done.stage("generate"))
    StageRun(attempt, print)
    assert stale(done, "generate").reason == ""
    assert stale(done, "extract").reason == "its input generate is being continued"
    finish(done.stage("generate"), attempt, "more data")
    assert stale(done, "extract").reason == "its input generate was continued since (output 1)"
    assert (
        stale(done, "train").reason == "its input extract is stale: its input generate was continued since (output 1)"
    )


def test_continued_to_the_same_data_is_not_stale(done: RunDir, begin: Begin) -> None:
    done.change_plan({"generate.max_samples": "20000"}, "there were no more prompts")
    attempt = begin(done.stage("generate"))
    StageRun(attempt, print)
    finish(done.stage("generate"), attempt, "one-generate-1")
    assert reasons(done) == {}


def test_inputs_that_were_reclaimed_leave_what_was_made_from_them(done: RunDir) -> None:
    output = done.stage("generate").output(1)
    for path in output.path.iterdir():
        path.unlink()
    output.path.rmdir()
    assert stale(done, "extract").reason == ""
    with pytest.raises(RunError, match="extract needs an output of generate"):
        inputs_of(done, "extract")


def test_a_prompts_file_that_changes_is_noticed_by_its_content(
    run: RunDir, tmp_path: Path, change: Change, complete: Complete
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "a"}\n')
    change(run, generate__prompts=str(prompts))
    output = complete(run.stage("generate"))
    assert output.source()["files"]["prompts"]["bytes"] == 16
    assert stale(run, "generate").reason == ""
    os.utime(prompts, (1, 1))
    assert stale(run, "generate").reason == ""
    prompts.write_text('{"prompt": "b"}\n')
    assert stale(run, "generate").reason == f"the file of generate.prompts, {prompts}, has changed since"
    prompts.unlink()
    assert stale(run, "generate").reason == ""


def test_fingerprints_follow_what_shapes_the_output_and_nothing_else() -> None:
    plan = Plan()
    before = fingerprint_params(plan, "train")
    assert len(before) == 64
    assert fingerprint_params(set_value(plan, "train.log_every", 3), "train") == before
    assert fingerprint_params(set_value(plan, "train.epochs", 3), "train") != before
    assert fingerprint_params(Plan.from_json(plan.to_json()), "train") == before
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1}) != fingerprint({"a": 1})


class TestBorrowing:
    @pytest.fixture
    def two(self, done: RunDir, change: Change) -> RunDir:
        """A second run that trains on the first one's hidden states and vocabulary."""
        run = RunDir.create(done.root, "two", Plan())
        change(run, extract__from_run="one/extract", vocab__from_run="one/vocab", generate__from_run="one/generate")
        return run

    def test_the_inputs_are_the_lenders_without_a_copy(self, done: RunDir, two: RunDir, complete: Complete) -> None:
        inputs = inputs_of(two, "train")
        assert inputs["extract"].path == done.path / "extract" / "out" / "0001"
        output = complete(two.stage("train"))
        source = output.source()
        assert source["borrowed"] == {"extract": "one/extract", "vocab": "one/vocab"}
        assert source["inputs"]["extract"] == {"run": "one", "output": 1, "fingerprint": "one-extract-1"}
        assert recorded_inputs(two, output)["vocab"].path == done.path / "vocab" / "out" / "0001"
        assert not (two.path / "extract").exists()
        assert reasons(two) == {}

    def test_the_fingerprint_is_checked(self, done: RunDir, two: RunDir, complete: Complete, begin: Begin) -> None:
        output = complete(two.stage("train"))
        done.stage("extract").output(1).write_report({"stage": "extract", "fingerprint": "tampered", "counts": {}})
        with pytest.raises(
            RunError, match="one/extract output 1 has changed since two/train output 1 was begun from it"
        ):
            recorded_inputs(two, output)
        assert stale(two, "train").reason == "its input extract was continued since (output 1)"

    def test_resume_refuses_other_data_than_it_was_begun_with(
        self, done: RunDir, two: RunDir, complete: Complete, begin: Begin
    ) -> None:
        attempt = begin(two.stage("train"))
        (attempt.output().path / "checkpoint").write_text("x")
        complete(done.stage("extract"), restart=True)
        with pytest.raises(RunError, match="output 1 was begun from another state of extract"):
            begin(two.stage("train"))

    def test_a_change_at_the_lender_makes_the_borrower_stale(
        self, done: RunDir, two: RunDir, complete: Complete
    ) -> None:
        complete(two.stage("train"))
        done.change_plan({"generate.top_p": "0.5"}, "")
        want = "its input extract is stale: its input generate is stale: generate.top_p is 0.5 now, was 0.95"
        assert stale(two, "train").reason == want
        found = status(two.stage("extract"))
        assert (found.state, found.stale, found.borrowed) == ("DONE", True, "one/extract")

    def test_borrowing_from_another_run_later_is_noticed(
        self, done: RunDir, two: RunDir, complete: Complete, change: Change
    ) -> None:
        complete(two.stage("train"))
        three = RunDir.create(done.root, "three", Plan())
        complete(three.stage("generate"))
        complete(three.stage("vocab"))
        change(two, vocab__from_run="three/vocab")
        assert stale(two, "train").reason == "its input vocab comes from three now, was one"

    def test_a_lender_that_is_gone(self, done: RunDir, two: RunDir, complete: Complete) -> None:
        output = complete(two.stage("train"))
        done.path.rename(done.root / "moved")
        with pytest.raises(RunError, match="There is no run at"):
            recorded_inputs(two, output)
        with pytest.raises(RunError, match=r'extract\.from_run = "one/extract": There is no run at'):
            inputs_of(two, "train")
        assert "its input extract can't be found" in stale(two, "train").reason

    def test_a_lender_that_borrows_itself(self, done: RunDir, two: RunDir, change: Change) -> None:
        three = RunDir.create(done.root, "three", Plan())
        change(three, extract__from_run="two/extract")
        output = counting_output(three, "extract")
        assert output is not None
        assert output.name() == "one/extract output 1"
        change(done, extract__from_run="three/extract")
        with pytest.raises(RunError, match="borrowed in a circle: three → two → one → three"):
            counting_output(three, "extract")

    def test_not_from_itself_and_not_out_of_the_root(self, two: RunDir, change: Change, tmp_path: Path) -> None:
        change(two, extract__from_run="two/extract")
        with pytest.raises(RunError, match="can't borrow extract from itself"):
            counting_output(two, "extract")
        outside = RunDir.create(tmp_path / "elsewhere", "three", Plan())
        (two.root / "three").symlink_to(outside.path)
        change(two, extract__from_run="three/extract")
        with pytest.raises(RunError, match="link that leaves"):
            counting_output(two, "extract")

    def test_a_borrowed_stage_does_not_run(self, two: RunDir, begin: Begin) -> None:
        with pytest.raises(RunError, match="extract is borrowed from one/extract and doesn't run here"):
            begin(two.stage("extract"))

    def test_a_source_that_names_a_path_is_refused(self, two: RunDir, complete: Complete) -> None:
        output = complete(two.stage("train"))
        source = output.source()
        source["inputs"]["extract"]["run"] = "../../elsewhere"
        output.write_source(source)
        with pytest.raises(RunError, match=r"names the run '\.\./\.\./elsewhere'"):
            recorded_inputs(two, output)

    def test_what_the_borrower_would_not_have_made_is_stale(
        self, done: RunDir, tmp_path: Path, complete: Complete, change: Change
    ) -> None:
        here, there = tmp_path / "here", tmp_path / "there"
        for folder in (here, there):
            folder.mkdir()
            (folder / "config.json").write_text("{}")
        for stage in ("generate", "extract", "vocab", "train"):
            change(done, verifier__path=str(here))
            complete(done.stage(stage), restart=True)
        three = RunDir.create(done.root, "three", Plan())
        for stage in ("extract", "vocab"):
            three.change_plan({f"{stage}.from_run": f"one/{stage}"}, "")
        assert (stale(three, "extract").reason, stale(three, "vocab").reason) == ("", "")
        change(three, verifier__path=str(there))
        for stage in ("extract", "vocab"):
            assert stale(three, stage).reason.startswith(
                f'verifier.path is "{there}" here, and one/{stage} output 2 was made'
            )
        change(three, verifier__path=str(here), extract__length="512", train__length="512")
        assert (
            stale(three, "extract").reason == "extract.length is 512 here, and one/extract output 2 was made with 2048"
        )
        assert stale(three, "vocab").reason == ""
        change(three, extract__length="2048", train__length="512")
        assert stale(three, "extract").reason == ""
        (here / "config.json").write_text('{"hidden_size": 8}')
        assert stale(three, "extract").reason.startswith("the config.json of the verifier")
        found = status(three.stage("extract"))
        assert (found.state, found.stale) == ("DONE", True)

    def test_a_relative_verifier_lies_in_its_own_run(
        self, done: RunDir, complete: Complete, change: Change, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.chdir(tmp_path)
        three = RunDir.create(done.root, "three", Plan())
        for run in (done, three):
            (run.path / "tiny").mkdir()
            (run.path / "tiny" / "config.json").write_text("{}")
            change(run, verifier__path="tiny")
        complete(done.stage("generate"), restart=True)
        assert complete(done.stage("extract"), restart=True).source()["verifier_config"]
        change(three, extract__from_run="one/extract")
        assert stale(three, "extract").reason.startswith('verifier.path is "tiny" here, and one/extract output 2 was')
        change(three, verifier__path="../one/tiny")
        assert stale(three, "extract").reason == ""
        change(three, verifier__path=str(done.path / "tiny"))
        assert stale(three, "extract").reason == ""


def test_targets_are_what_may_grow() -> None:
    assert lineage.targets(Plan(), "generate") == {"max_samples", "token_budget", "byte_budget"}
    assert lineage.targets(Plan(), "train") == {"epochs", "max_steps"}
    assert lineage.targets(Plan(), "extract") == frozenset()


def test_a_verifier_that_was_replaced_in_its_place_is_noticed(
    done: RunDir, complete: Complete, change: Change, tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    config.write_text("{}")
    change(done, verifier__path=str(tmp_path))
    for stage in STAGES:
        complete(done.stage(stage), restart=True)
    assert reasons(done) == {}
    config.write_text('{"hidden_size": 8}')
    words = f"the config.json of the verifier {tmp_path} isn't the one that it was made with"
    found = reasons(done)
    assert {stage: found[stage] for stage in ("generate", "extract", "deploy")} == dict.fromkeys(
        ("generate", "extract", "deploy"), words
    )
    assert set(found) == set(STAGES)
    config.write_text("{}")
    assert reasons(done) == {}
    config.unlink()
    assert reasons(done) == {}


def test_what_is_kept_is_stale_and_decided_and_passes_nothing_on(done: RunDir) -> None:
    done.change_plan({"vocab.size": "16000"}, "")
    found = run_status(done)
    assert [name for name in STAGES if found[name].undecided] == ["vocab", "train", "deploy"]
    assert {found[name].stale_root for name in ("vocab", "train", "deploy")} == {"vocab"}
    done.change_plan({"train.lr": "3e-5"}, "a reason of its own, which the rerun of vocab settles as well")
    assert status(done.stage("train")).stale_root == "vocab"
    done.change_plan({"train.lr": "1e-4"}, "")
    keep(done, {"vocab": keep_of(done.stage("vocab").output(1), found["vocab"].stale_reason)})
    found = run_status(done)
    assert (found["vocab"].stale, found["vocab"].kept, found["vocab"].undecided) == (True, True, False)
    assert not found["train"].stale and not found["deploy"].stale


def test_a_keep_holds_for_one_reason_and_one_output(done: RunDir, begin: Begin) -> None:
    done.change_plan({"vocab.size": "16000"}, "")
    words = stale(done, "vocab").reason
    keep(done, {"vocab": keep_of(done.stage("vocab").output(1), words)})
    done.change_plan({"vocab.size": "8000"}, "")
    assert not stale(done, "vocab").kept
    assert stale(done, "train").root == "vocab"
    done.change_plan({"vocab.size": "16000"}, "")
    assert stale(done, "vocab").kept
    forget(done)
    assert not stale(done, "vocab").kept
    keep(done, {"vocab": Keep("one", 2, words)})
    assert not stale(done, "vocab").kept
