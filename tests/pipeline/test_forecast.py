"""What a run will need of its volume: from its plan, its prompts and what generate has measured."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.budget import TEXT_BYTES, explain, headline
from pipeline.config import Plan, set_values
from pipeline.fate import AS_PLANNED, Intent
from pipeline.forecast import check_run, request_of_run
from pipeline.geometry import GeometryError
from pipeline.rundir import Lock, RunDir
from pipeline.stage import StageRun, run_stage

KimiRun = Callable[..., RunDir]


@pytest.fixture
def kimi_run(llama_8b: dict[str, Any], tmp_path: Path) -> KimiRun:
    """Makes a run of a verifier of Kimi-K2.5's width and depth, its plan with these values."""

    def make(**values: object) -> RunDir:
        verifier = tmp_path / "verifier"
        verifier.mkdir()
        (verifier / "config.json").write_text(json.dumps({**llama_8b, "hidden_size": 7168, "num_hidden_layers": 61}))
        changes = {"verifier.path": str(verifier), "extract.length": 4000, "train.length": 2048, **values}
        return RunDir.create(tmp_path, "kimi", set_values(Plan(), changes))

    return make


def test_a_run_without_samples_is_priced_at_its_worst_case_or_as_expected(kimi_run: KimiRun) -> None:
    run = kimi_run(**{"generate.max_samples": 25_000})
    request = request_of_run(run)
    assert (request.samples, request.mean_tokens, request.basis) == (25_000, 4000, "worst case")
    run.write_plan(set_values(run.plan(), {"generate.expected_tokens": 2100}), "expected")
    request = request_of_run(run)
    assert (request.mean_tokens, request.basis) == (2100, "expected")


def test_a_run_is_priced_by_what_generate_has_measured(kimi_run: KimiRun) -> None:
    run = kimi_run(**{"generate.max_samples": 10_000})
    lock = Lock.acquire(run.stage("generate").make().lock_path)
    assert lock is not None
    attempt = run.stage("generate").new_attempt()
    attempt.write_state(phase="running")
    lock.release()
    attempt.path.joinpath("progress.json").write_text(
        json.dumps({"done": 200, "total": 10_000, "unit": "samples", "counts": {"samples": 200, "tokens": 420_600}})
    )
    request = request_of_run(run)
    assert (request.samples, request.mean_tokens, request.basis) == (10_000, 2103, "measured")


def test_a_reserve_of_nothing_is_nothing(kimi_run: KimiRun) -> None:
    run = kimi_run(**{"generate.max_samples": 10, "volume.reserve_bytes": 0})
    assert request_of_run(run).reserve_bytes == 0
    assert all(item.name != "reserve" or item.bytes == 0 for item in check_run(run).items)


def test_a_declared_volume_that_is_too_small_refuses_the_run(kimi_run: KimiRun) -> None:
    run = kimi_run(**{"generate.max_samples": 10_000, "volume.capacity_bytes": "2GB"})
    budget = check_run(run)
    assert not budget.fits
    assert budget.largest_samples == 0


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "one"}\n\n{"prompt": "two"}\n' + '{"prompt": "more"}\n' * 298)
    return path


def test_all_prompts_are_as_many_as_the_file_has(kimi_run: KimiRun, prompts: Path) -> None:
    run = kimi_run(**{"generate.max_samples": 0, "generate.prompts": str(prompts)})
    assert request_of_run(run).samples == 300
    with prompts.open("a") as file:
        file.write('{"prompt": "last"}\n')
    assert request_of_run(run).samples == 301


def test_no_more_samples_than_prompts(kimi_run: KimiRun, prompts: Path) -> None:
    run = kimi_run(**{"generate.max_samples": 10_000, "generate.prompts": str(prompts)})
    assert request_of_run(run).samples == 300


def test_a_target_without_a_number_and_without_prompts_is_not_priced(kimi_run: KimiRun, tmp_path: Path) -> None:
    run = kimi_run(**{"generate.max_samples": 0, "generate.prompts": str(tmp_path / "absent.jsonl")})
    with pytest.raises(GeometryError, match=r"absent\.jsonl can't be read"):
        request_of_run(run)


def test_a_token_budget_bounds_the_samples(kimi_run: KimiRun) -> None:
    values = {"generate.max_samples": 10_000, "generate.expected_tokens": 2000, "generate.token_budget": 1_000_001}
    assert request_of_run(kimi_run(**values)).samples == 501


def finish_generate(run: RunDir, samples: int) -> None:
    def body(stage: StageRun) -> None:
        stage.output.joinpath("samples.jsonl").write_text("")
        stage.finish({"samples": samples, "tokens": samples * 100}, "samples")

    assert run_stage("generate", body, ["--run", str(run.path)]) == 0


def test_a_finished_generate_is_priced_as_it_is_until_its_target_grows(kimi_run: KimiRun, prompts: Path) -> None:
    run = kimi_run(**{"generate.max_samples": 120, "generate.prompts": str(prompts)})
    finish_generate(run, 119)
    request = request_of_run(run)
    assert (request.samples, request.mean_tokens, request.basis) == (119, 100, "measured")
    run.write_plan(set_values(run.plan(), {"generate.max_samples": 200}), "more")
    assert request_of_run(run).samples == 200


# ---------------------------------------------------------------- what is still to be written

MIB = 1 << 20


def parts(run: RunDir, intent: Intent = AS_PLANNED) -> list[str]:
    return [item.name for item in check_run(run, intent).items]


def test_only_an_output_that_goes_on_is_counted_as_written(kimi_run: KimiRun, stages: Any) -> None:
    run = kimi_run(**{"generate.max_samples": 1000})
    stages.done(run, "generate", samples=1000, tokens=2_103_000)
    stages.ended(run, "extract", size=4 * MIB)
    assert 4 * MIB <= check_run(run).written_bytes < 5 * MIB
    assert check_run(run, Intent(restart="extract")).written_bytes == 0
    with stages.running(run, "extract", restart=True):
        assert check_run(run).written_bytes < MIB


def test_written_bytes_count_no_more_than_their_stage_needs(kimi_run: KimiRun, stages: Any) -> None:
    run = kimi_run(**{"generate.max_samples": 20})
    stages.ended(run, "generate", size=4 * MIB, samples=20, tokens=2000)
    budget = check_run(run)
    assert budget.written_bytes == 2000 * TEXT_BYTES
    assert budget.available_bytes == budget.request.free_bytes + budget.written_bytes


def test_an_attempt_that_fails_while_loading_takes_no_measurement_away(kimi_run: KimiRun, stages: Any) -> None:
    run = kimi_run(**{"generate.max_samples": 10_000})
    stages.ended(run, "generate", samples=9000, tokens=9000 * 2103)
    stages.ended(run, "generate", reason="failed")
    request = request_of_run(run)
    assert (request.samples, request.mean_tokens, request.basis) == (10_000, 2103, "measured")
    run.change_plan({"generate.temperature": 0.1}, "a new output begins without a measurement")
    with stages.running(run, "generate", restart=True):
        assert request_of_run(run).basis == "worst case"


def test_a_borrower_is_priced_by_its_lenders_samples(kimi_run: KimiRun, tmp_path: Path, stages: Any) -> None:
    lender = kimi_run(**{"generate.max_samples": 1000})
    plan = set_values(lender.plan(), {"generate.from_run": "kimi/generate", "generate.max_samples": 77_000})
    run = RunDir.create(tmp_path, "two", dataclasses.replace(plan, revision=0))
    request = request_of_run(run)
    assert (request.samples, request.basis) == (1000, "worst case")
    stages.done(lender, "generate", samples=990, tokens=990 * 2103)
    request = request_of_run(run)
    assert (request.samples, request.mean_tokens, request.basis) == (990, 2103, "measured")
    assert parts(run) == ["hidden states", "ids, masks, teacher", "checkpoints", "export", "reserve"]
    run.change_plan({"extract.from_run": "kimi/extract"}, "those too")
    assert parts(run) == ["checkpoints", "export", "reserve"]
    assert check_run(run).hidden_bytes == 0


def test_after_extract_the_budget_is_about_what_follows(kimi_run: KimiRun, stages: Any) -> None:
    run = kimi_run(**{"generate.max_samples": 1000})
    stages.done(run, "generate", samples=1000, tokens=2_103_000)
    stages.done(run, "extract")
    stages.done(run, "vocab")
    with stages.running(run, "train") as attempt:
        (attempt.output().path / "checkpoint").write_bytes(os.urandom(4 * MIB))
        budget = check_run(run)
    assert [item.name for item in budget.items] == ["checkpoints", "export", "reserve"]
    text = headline(budget)
    assert "samples" not in text and "checkpoints" in text and "4.2" in text and "of it there already" in text
    assert not any("samples" in line or "a token" in line for line in explain(budget))
    stages.done(run, "train", restart=True)
    assert parts(run) == ["export", "reserve"]
    stages.done(run, "deploy")
    budget = check_run(run)
    assert (budget.items, budget.need_bytes, budget.fits) == ((), 0, True)
    assert headline(budget).startswith("everything is written; ")
    assert "Nothing more is needed" in explain(budget)[-1]


def test_a_full_volume_matters_only_to_what_is_still_written(kimi_run: KimiRun, stages: Any) -> None:
    run = kimi_run(**{"generate.max_samples": 1000, "through": "extract"})
    stages.done(run, "generate", samples=1000, tokens=2_103_000)
    run.change_plan({"volume.capacity_bytes": "1MB", "volume.reserve_bytes": "900kB"}, "full")
    assert not check_run(run).fits
    stages.done(run, "extract", size=2 * MIB)
    assert check_run(run).fits


def test_stale_samples_that_are_kept_are_as_many_as_there_are(kimi_run: KimiRun, stages: Any) -> None:
    run = kimi_run(**{"generate.max_samples": 1000})
    stages.done(run, "generate", samples=1000, tokens=2_103_000)
    run.change_plan({"generate.max_samples": 5000}, "more")
    assert request_of_run(run).samples == 5000
    assert request_of_run(run, Intent(stale="keep")).samples == 1000


def test_a_restart_with_a_lower_target_needs_no_more_than_that(kimi_run: KimiRun, stages: Any) -> None:
    run = kimi_run(**{"generate.max_samples": 1000})
    stages.done(run, "generate", samples=1000, tokens=2_103_000)
    run.change_plan({"generate.max_samples": 400}, "fewer")
    assert request_of_run(run).samples == 1000  # there they are
    request = request_of_run(run, Intent(restart="generate"))
    assert (request.samples, request.mean_tokens, request.basis) == (400, 2103, "measured")
