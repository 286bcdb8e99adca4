"""What a run will need of its volume: from its plan, its prompts and what generate has measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.config import Plan, set_values
from pipeline.forecast import check_run, request_of_run, volume_space
from pipeline.geometry import GeometryError
from pipeline.rundir import Lock, RunDir
from pipeline.stage import StageRun, run_stage

LLAMA = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}


def test_a_declared_capacity_bounds_the_free_space(tmp_path: Path) -> None:
    capacity, free = volume_space(tmp_path)
    assert 0 < free <= capacity
    declared, left = volume_space(tmp_path / "not" / "there" / "yet", capacity_bytes=1)
    assert (declared, left) == (1, 0)


def kimi_run(tmp_path: Path, **values: object) -> RunDir:
    verifier = tmp_path / "verifier"
    verifier.mkdir()
    (verifier / "config.json").write_text(json.dumps({**LLAMA, "hidden_size": 7168, "num_hidden_layers": 61}))
    changes = {"verifier.path": str(verifier), "extract.length": 4000, "train.length": 2048, **values}
    return RunDir.create(tmp_path, "kimi", set_values(Plan(), changes))


def test_a_run_without_samples_is_priced_at_its_worst_case_or_as_expected(tmp_path: Path) -> None:
    run = kimi_run(tmp_path, **{"generate.max_samples": 25_000})
    request = request_of_run(run)
    assert (request.samples, request.mean_tokens, request.basis) == (25_000, 4000, "worst case")
    run.write_plan(set_values(run.plan(), {"generate.expected_tokens": 2100}), "expected")
    request = request_of_run(run)
    assert (request.mean_tokens, request.basis) == (2100, "expected")


def test_a_run_is_priced_by_what_generate_has_measured(tmp_path: Path) -> None:
    run = kimi_run(tmp_path, **{"generate.max_samples": 10_000})
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


def test_a_declared_volume_that_is_too_small_refuses_the_run(tmp_path: Path) -> None:
    run = kimi_run(tmp_path, **{"generate.max_samples": 10_000, "volume.capacity_bytes": "2GB"})
    budget = check_run(run)
    assert not budget.fits
    assert budget.largest_samples == 0


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "one"}\n\n{"prompt": "two"}\n' + '{"prompt": "more"}\n' * 298)
    return path


def test_all_prompts_are_as_many_as_the_file_has(tmp_path: Path, prompts: Path) -> None:
    run = kimi_run(tmp_path, **{"generate.max_samples": 0, "generate.prompts": str(prompts)})
    assert request_of_run(run).samples == 300
    with prompts.open("a") as file:
        file.write('{"prompt": "last"}\n')
    assert request_of_run(run).samples == 301


def test_no_more_samples_than_prompts(tmp_path: Path, prompts: Path) -> None:
    run = kimi_run(tmp_path, **{"generate.max_samples": 10_000, "generate.prompts": str(prompts)})
    assert request_of_run(run).samples == 300


def test_a_target_without_a_number_and_without_prompts_is_not_priced(tmp_path: Path) -> None:
    run = kimi_run(tmp_path, **{"generate.max_samples": 0, "generate.prompts": str(tmp_path / "absent.jsonl")})
    with pytest.raises(GeometryError, match=r"absent\.jsonl can't be read"):
        request_of_run(run)


def test_a_token_budget_bounds_the_samples(tmp_path: Path) -> None:
    values = {"generate.max_samples": 10_000, "generate.expected_tokens": 2000, "generate.token_budget": 1_000_001}
    assert request_of_run(kimi_run(tmp_path, **values)).samples == 501


def finish_generate(run: RunDir, samples: int) -> None:
    def body(stage: StageRun) -> None:
        stage.output.joinpath("samples.jsonl").write_text("")
        stage.finish({"samples": samples, "tokens": samples * 100}, "samples")

    assert run_stage("generate", body, ["--run", str(run.path)]) == 0


def test_a_finished_generate_is_priced_as_it_is_until_its_target_grows(tmp_path: Path, prompts: Path) -> None:
    run = kimi_run(tmp_path, **{"generate.max_samples": 120, "generate.prompts": str(prompts)})
    finish_generate(run, 119)
    request = request_of_run(run)
    assert (request.samples, request.mean_tokens, request.basis) == (119, 100, "measured")
    run.write_plan(set_values(run.plan(), {"generate.max_samples": 200}), "more")
    assert request_of_run(run).samples == 200
