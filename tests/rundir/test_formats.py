"""docs/formats.md against the files of real runs: no field without a line, no file without a section."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import PARAMS, STAGES, Plan, ServicePlan, StagePlan, VerifierPlan, VolumePlan
from pipeline.rundir import Attempt, RunDir, locks, try_locks, write_checkpoint

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "formats.md").read_text("utf-8")
BODY = """
    stage.resumed_at(0)
    stage.metric(1, 0.5, {"train/loss": 1.0})
    stage.event("saved", "a row")
    stage.attempt.request("checkpoint", by="test")
    stage.progress(1, 1, "samples", force=True)
    stage.finish({"samples": 1}, "abc")
"""


def section(file: str) -> str:
    """The part of the page under the heading that names a file."""
    parts = re.split(r"^#{2,3} ", PAGE, flags=re.MULTILINE)
    found = [part for part in parts if f"`{file}`" in part.splitlines()[0]]
    assert len(found) == 1, f"{len(found)} sections for {file}"
    return found[0]


def names(text: str) -> set[str]:
    """Everything in back quotes."""
    return {name for quoted in re.findall(r"`([^`\n]+)`", text) for name in re.split(r"[^\w./]+", quoted)}


@pytest.fixture
def finished(run: RunDir, tmp_path: Path, stage_script: Callable[..., Path], begin: Callable[..., Attempt]) -> RunDir:
    """A run whose generate ran alone to its end, and whose extract was begun."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("{}\n")
    run.change_plan({"generate.prompts": str(prompts)}, "prompts")
    script = stage_script(tmp_path / "stage.py", BODY)
    environment: dict[str, Any] = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, str(script), "--run", str(run.path)], env=environment, check=True)
    begin(run.stage("extract"))
    return run


def test_every_field_of_every_file_has_its_line(
    finished: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, output = finished.path / "generate" / "attempts" / "0001", finished.path / "generate" / "out" / "0001"
    try_locks(finished.root)
    checkpoint = write_checkpoint(tmp_path / "c", "step-1", lambda folder: (folder / "x").write_text("x"), {}, 1)
    monkeypatch.setattr(locks, "take", lambda fd: None)
    held = locks.Lock.acquire(finished.path / "generate" / "lock")
    assert held is not None
    files = {
        "run.json": finished.path / "run.json",
        "plan/0001.json": finished.path / "plan" / "0002.json",
        "<root>/locks.json": finished.root / "locks.json",
        "lock.holder": finished.path / "generate" / "lock.holder",
        "source.json": output / "source.json",
        "report.json": output / "report.json",
        "manifest.json": checkpoint / "manifest.json",
        "control/": attempt / "control" / "checkpoint",
        **{f"{name}.json": attempt / f"{name}.json" for name in ("spec", "state", "progress", "outcome", "exit")},
        "metrics.jsonl": attempt / "metrics.jsonl",
        "events.jsonl": attempt / "events.jsonl",
    }
    for name, path in files.items():
        documented = names(section(name))
        for line in path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]:
            for field, value in json.loads(line).items():
                if path.suffix == ".jsonl" and field == "rows":
                    continue
                assert field in documented, f"{name}: {field}"
                if name == "state.json" and isinstance(value, dict):
                    assert set(value) <= documented, f"{name}: {field}"
    extract = json.loads((finished.path / "extract" / "out" / "0001" / "source.json").read_text())
    assert set(extract["inputs"]["generate"]) <= names(section("source.json"))
    made = json.loads((output / "source.json").read_text())["files"]["prompts"]
    assert set(made) <= names(section("source.json"))
    held.release()


def test_every_file_has_its_section(finished: RunDir) -> None:
    known = names(PAGE)
    for path in finished.path.rglob("*"):
        relative = path.relative_to(finished.path)
        name = re.sub(r"\d{4}", "000N", path.name)
        if path.is_file() and not relative.match("plan/*") and not relative.match("*/control/*"):
            assert name in known, relative


@pytest.mark.parametrize("cls", [StagePlan, VerifierPlan, VolumePlan, ServicePlan, Plan])
def test_every_key_of_the_plan_is_there(cls: Any) -> None:
    documented = names(section("plan/0001.json"))
    assert {field.name for field in dataclasses.fields(cls)} <= documented


@pytest.mark.parametrize("stage", STAGES)
def test_every_parameter_is_there_with_its_default_and_role(stage: str) -> None:
    table = section("plan/0001.json").partition(f"| {stage} | default")[2].partition("\n\n")[0]
    rows = {}
    for line in table.splitlines()[2:]:
        name, default, role, _ = (cell.strip() for cell in line.strip("|").split("|", 3))
        rows[name.strip("`")] = (json.loads(default.strip("`")), role)
    want = {field.name: (field.default, field.metadata["role"]) for field in dataclasses.fields(PARAMS[stage])}
    assert rows == want


def test_the_examples_are_json() -> None:
    blocks = re.findall(r"```json\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(blocks) >= 12
    for block in blocks:
        try:
            json.loads(block)
        except ValueError:
            for line in block.splitlines():
                json.loads(line)
