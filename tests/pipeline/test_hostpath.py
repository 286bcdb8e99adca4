"""A path of a plan means the same to everybody: `~` is the user's home, what is relative lies in the run's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import Plan, set_values
from pipeline.forecast import request_of_run
from pipeline.hostpath import host_path
from pipeline.rundir import RunDir, stale
from remote.agent.service_view import define

CONFIG = {"hidden_size": 64, "num_hidden_layers": 8, "vocab_size": 512, "num_attention_heads": 4}


@pytest.fixture(params=["~", "."])
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[RunDir, Path]:
    """A run whose verifier and prompts are named by `~/…` or relative to it, and the folder that holds them."""
    service = {"command": ["serve", "{verifier}"], "port": 0}
    plan = Plan.from_json({**Plan().to_json(), "services": {"engine": service}})
    prefix = "~/" if request.param == "~" else ""
    names = {"verifier.path": f"{prefix}verifier", "generate.prompts": f"{prefix}prompts.jsonl"}
    made = RunDir.create(tmp_path / "root", "one", set_values(plan, {**names, "generate.max_samples": 0}))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir("/")
    place = tmp_path if prefix else made.path
    (place / "verifier").mkdir()
    (place / "verifier" / "config.json").write_text(json.dumps(CONFIG))
    (place / "prompts.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    return made, place


def test_the_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert host_path("~/x", tmp_path) == Path("/home/someone/x")
    assert host_path("/data/x", tmp_path) == Path("/data/x")
    assert host_path("x/y", tmp_path) == tmp_path / "x" / "y"
    assert host_path("~nobody-of-this-name/x", tmp_path) == tmp_path / "~nobody-of-this-name" / "x"


def test_the_budget_finds_verifier_and_prompts(run: tuple[RunDir, Path]) -> None:
    request = request_of_run(run[0])
    assert request.geometry.hidden_size == 64
    assert request.samples == 2


def test_the_lineage_knows_the_prompts(run: tuple[RunDir, Path], stages: Any) -> None:
    made, place = run
    stages.done(made, "generate", samples=2)
    output = made.stage("generate").current()
    assert output is not None
    assert output.source()["files"]["prompts"]["path"] == str(place / "prompts.jsonl")
    (place / "prompts.jsonl").write_text('{"prompt": "c"}\n')
    assert "has changed since" in stale(made, "generate").reason


def test_a_service_is_given_the_whole_path(run: tuple[RunDir, Path]) -> None:
    made, place = run
    assert define(made, made.plan(), "engine").command("1") == ["serve", str(place / "verifier")]
