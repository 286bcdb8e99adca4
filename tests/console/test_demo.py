"""The demo's parts: its configuration is a person's, its folder remembers its run, its table says what was measured."""

from __future__ import annotations

import json
import shlex
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from console.config import load_config
from console.demo.counting import counts_text
from console.demo.prepare import another, set_up
from console.demo.prompts import write_prompts
from console.demo.report import Outcome, outcome_json, stage_line, table_lines
from console.demo.returning import again, what_is_kept
from console.demo.server import free_port
from console.demo.settings import RECIPES, Place, default_place
from pipeline.config import Plan


def test_the_demo_describes_itself_in_a_file_that_any_command_reads(tmp_path: Path) -> None:
    demo = set_up(Place(tmp_path / "a b"), "bundled", 12, fresh=False)
    config = load_config(demo.place.config)
    assert config == demo.config
    run = config.runs["demo"]
    assert run.plan.verifier.name == "bundled"
    assert run.plan.verifier.reasoning is True
    assert run.plan.params("generate").max_samples == 12  # type: ignore[union-attr]
    assert run.plan.params("generate").service == "engine"  # type: ignore[union-attr]
    assert config.hosts["container"].to_spec().ssh_config is False
    assert config.state == demo.place.folder
    assert Plan.from_json(run.plan.to_json()) == run.plan


def test_the_smollm2_recipe_is_a_good_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.demo.prepare._verifier_folder", lambda verifier: tmp_path / verifier)
    demo = set_up(Place(tmp_path), "smollm2", None, fresh=False)
    assert demo.choice.run == "demo-smollm2"
    assert demo.run.plan.params("generate").max_samples == RECIPES["smollm2"].samples  # type: ignore[union-attr]


def test_a_folder_remembers_its_run_and_fresh_makes_the_next(tmp_path: Path) -> None:
    place = Place(tmp_path)
    first = set_up(place, "bundled", None, fresh=True)
    again = set_up(place, "bundled", None, fresh=False)
    fresh = set_up(place, "bundled", None, fresh=True)
    assert [demo.choice.run for demo in (first, again, fresh, another(fresh))] == ["demo", "demo", "demo-2", "demo-3"]
    assert set_up(place, "bundled", None, fresh=False).choice.run == "demo-3"
    assert again.choice.ssh_port == first.choice.ssh_port
    place.memory.write_text("{ torn")
    assert set_up(place, "bundled", None, fresh=False).choice.run == "demo"


def test_a_run_keeps_its_samples_and_another_number_makes_another_run(tmp_path: Path) -> None:
    place = Place(tmp_path)
    asked = [set_up(place, "bundled", samples, fresh=False) for samples in (600, None, 600, 40, None)]
    assert [(demo.choice.run, demo.choice.samples) for demo in asked] == [("demo", 600)] * 3 + [("demo-2", 40)] * 2
    assert load_config(place.config).runs["demo-2"].plan.params("generate").max_samples == 40  # type: ignore[union-attr]
    fresh = set_up(place, "bundled", None, fresh=True)
    assert (fresh.choice.run, fresh.choice.samples) == ("demo-3", RECIPES["bundled"].samples)


def test_a_kept_demo_says_where_it_is_and_how_to_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.demo.prepare._verifier_folder", lambda verifier: tmp_path / verifier)
    monkeypatch.chdir(tmp_path)
    demo = set_up(Place(tmp_path / "a b"), "smollm2", None, fresh=False)
    said = "\n".join(what_is_kept(demo))
    run = tmp_path / "a b" / "volume" / "eagledeck" / "demo-smollm2"
    for part in (f"{run}, ", f"{run}/deploy/current/drafter-eagle3", "--verifier smollm2 --keep 'a b'`", "--fresh"):
        assert part in said
    assert "eagledeck --config 'a b/eagledeck.toml' status demo-smollm2`" in said


def test_the_default_demo_is_come_back_to_without_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert again(set_up(default_place(), "bundled", None, fresh=False)) == "eagledeck demo"
    monkeypatch.setenv("PATH", str(tmp_path))
    command = Path(shlex.split(again(set_up(default_place(), "bundled", None, fresh=False)))[0])
    assert command.samefile(Path(sys.executable).with_name("eagledeck"))


def test_a_port_that_is_taken_is_not_used_again() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert free_port(port) != port
    assert free_port(port) == port


def test_prompts_are_many_different_and_held_out_ones_are_never_trained_on(tmp_path: Path) -> None:
    demo = set_up(Place(tmp_path / "demo"), "bundled", 500, fresh=False)
    files = write_prompts(tmp_path, demo.choice)
    train, held_out = ([json.loads(line) for line in path.read_text().splitlines()] for path in files)
    assert [path.name for path in files] == ["demo-train.jsonl", "demo-held-out.jsonl"]
    assert len(train) == 500
    assert len(held_out) == demo.run.plan.params("deploy").samples  # type: ignore[union-attr]
    assert set(train[0]) == {"id", "prompt"}
    assert len({row["id"] for row in train + held_out}) == len(train) + len(held_out)
    assert {row["prompt"] for row in train}.isdisjoint(row["prompt"] for row in held_out)


REPORT = {
    "acceptance_length": 2.471,
    "rate_by_position": [0.742, 0.551, 0.402],
    "greedy_agreement": {"prompts": 48, "identical": 47, "near_ties": 1, "different": 0},
    "tokens_per_s": {"plain": 200.0, "drafted": 300.0},
}


@pytest.fixture
def outcome(scenes: Any) -> Outcome:
    snapshot = scenes.done()
    deploy = replace(snapshot.stages[4], report=REPORT, counts={"prompts": 48}, elapsed_s=12.0)
    return Outcome("demo", "bundled", replace(snapshot, stages=(*snapshot.stages[:4], deploy)), 151.2)


def test_the_final_table_says_what_was_measured(outcome: Outcome) -> None:
    text = "\n".join(table_lines(outcome))
    assert outcome.ok
    for part in ("2m31s", "2.471", "0.742  0.551  0.402", "47 of 48 identical, 1 near tie, 0 different", "1.50 times"):
        assert part in text
    numbers = outcome_json(outcome)
    assert (numbers["ok"], numbers["total_seconds"]) == (True, 151.2)
    assert {name: numbers[name] for name in REPORT} == REPORT
    assert numbers["stages"]["deploy"] == {"state": "DONE", "seconds": 12.0, "counts": {"prompts": 48}}
    assert list(numbers["stages"]) == ["generate", "extract", "vocab", "train", "deploy"]


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        (
            {"samples": 720, "tokens": 67235, "prompt_tokens": 22407, "output_tokens": 44828, "rejected": 0},
            "720 samples, 67,235 tokens (22,407 of prompts, 44,828 of answers)",
        ),
        (
            {"samples": 1, "tokens": 1, "rejected": 3, "rejected/no_reasoning": 2, "rejected/length": 1},
            "1 sample, 1 token, 3 rejected (2 no reasoning, 1 length)",
        ),
        (
            {"sequences": 720, "sequences_total": 720, "tokens": 67235, "shards": 1, "bytes": 104_167_863},
            "720 sequences, 67,235 tokens, 1 shard, 104 MB",
        ),
        ({"sequences": 700, "sequences_total": 720, "shards": 2}, "700 of 720 sequences, 2 shards"),
        ({"prompts": 36, "prompts_total": 64, "tokens": 900}, "36 of 64 prompts, 900 tokens"),
        ({"prompts": 64, "prompts_total": 64}, "64 prompts"),
        (
            {"size": 2048, "coverage": 1.0, "tokens": 44828, "distinct": 899},
            "draft vocabulary of 2,048 tokens, coverage 100% of 44,828 generated tokens, 899 different",
        ),
        ({"sequences": 692, "validation": 28}, "692 sequences, 28 for validation"),
        ({"new_things": 1, "share": 0.5}, "1 new thing, 0.500 share"),
        ({}, "—"),
    ],
)
def test_counts_are_said_as_a_person_would(counts: dict[str, float], says: str) -> None:
    assert counts_text(counts) == says


def test_a_demo_that_failed_is_not_ok_and_unknown_stays_unknown(scenes: Any) -> None:
    failed = Outcome("demo", "bundled", scenes.failed(), 60.0)
    assert not failed.ok
    assert "CUDA ran out of memory" in stage_line(failed.snapshot.stages[3])
    assert "acceptance length  —" in "\n".join(table_lines(failed))
    assert outcome_json(failed)["acceptance_length"] is None
    assert not Outcome("demo", "bundled", replace(scenes.failed(), stages=()), 1.0).ok
