"""A Python that lacks what a stage or the engine needs is told in a sentence, with its path and what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import stage as stage_module
from pipeline.config import STAGES, Plan, set_values
from pipeline.rundir import RunDir, StageState, status
from pipeline.stage import StageRun, run_stage
from pipeline.verifier import bundled_path

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "one"}\n')
    values = {
        "verifier.path": str(bundled_path()),
        "generate.prompts": str(prompts),
        "generate.endpoint": "http://x/v1",
    }
    return RunDir.create(tmp_path, "r1", set_values(Plan(), values))


def bare_python(*words: str) -> subprocess.CompletedProcess[str]:
    """A Python without site-packages."""
    return subprocess.run([sys.executable, "-S", "-m", *words], cwd=ROOT, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_names_the_module_and_the_python(run: RunDir, stage: str) -> None:
    done = bare_python(f"pipeline.{stage}", "--run", str(run.path))
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    if stage == "generate":  # the others lack their inputs, too, and say that first
        seen = status(run.stage(stage))
        assert seen.state is StageState.FAILED
        assert f"{sys.executable} has no module" in seen.message
        assert ".[pipeline]" in seen.remedy
        assert seen.resumable


def test_the_engine_names_the_module_and_the_python() -> None:
    done = bare_python("pipeline.engine", "--model", str(bundled_path()), "--port", "0")
    assert done.returncode == 1
    assert f"{sys.executable} has no module torch" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_old_python_is_named(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def body(stage: StageRun) -> None:
        raise AssertionError("not reached")

    monkeypatch.setattr(stage_module, "OLDEST", (9, 1))
    assert run_stage("generate", body, ["--run", str(run.path)]) == 1
    seen = status(run.stage("generate"))
    assert "the stages need 9.1" in seen.message
    assert "generate.python" in seen.remedy
