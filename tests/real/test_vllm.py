"""The whole demo with SmolLM2, and its drafter and the generate stage in a real vLLM on the CPU.

`make test-real` installs vLLM and names its folder in EAGLEDECK_ENGINE. One demo and one server serve all tests here.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.drafter_vllm import benchmark
from benchmarks.ngram import main as ngram
from pipeline.config import Plan, set_values
from pipeline.rundir import RunDir, StageState, iter_jsonl, status

pytestmark = pytest.mark.real
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def vllm_python() -> Path:
    folder = os.environ.get("EAGLEDECK_ENGINE")
    assert folder, "EAGLEDECK_ENGINE names no folder: run this through `make test-real`"
    return Path(folder) / "venv" / "bin" / "python"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """(the demo's run directory, what --json wrote) of a headless demo with SmolLM2."""
    folder = tmp_path_factory.mktemp("smollm2")
    report = folder / "report.json"
    command = [str(Path(sys.executable).with_name("eagledeck")), "demo", "--headless", "--verifier", "smollm2"]
    command += ["--keep", str(folder / "demo"), "--json", str(report)]
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, timeout=1700, text=True, capture_output=True)
    print(done.stdout, done.stderr, sep="\n")
    assert done.returncode == 0, done.stdout + done.stderr
    (run_json,) = (folder / "demo" / "volume").rglob("run.json")
    return run_json.parent, json.loads(report.read_text())


def test_the_smollm2_demo_trains_a_drafter_that_pays(demo: tuple[Path, dict[str, Any]]) -> None:
    _, report = demo
    assert report["ok"]
    assert report["acceptance_length"] >= 1.65
    assert report["greedy_agreement"]["different"] == 0


def test_the_smollm2_drafter_beats_n_grams(
    demo: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    run, report = demo
    assert ngram(["--run", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    print(found)
    assert report["acceptance_length"] > max(rival["acceptance_length"] for rival in found["rivals"])


def test_vllm_accepts_as_much_as_our_decoder(demo: tuple[Path, dict[str, Any]], vllm_python: Path) -> None:
    run, _ = demo
    found = benchmark(RunDir.open(run), vllm_python, "", "float32", 32)
    print(found)
    assert abs(found["difference"]) <= 0.05


@pytest.fixture(scope="module")
def vllm(
    demo: tuple[Path, dict[str, Any]], vllm_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The base URL of a vLLM that serves SmolLM2."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    model = RunDir.open(demo[0]).plan().verifier.path
    log = tmp_path_factory.mktemp("vllm") / "log"
    command = [str(vllm_python), "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--port", str(port)]
    command += ["--served-model-name", "smollm2", "--host", "127.0.0.1", "--max-model-len", "2048"]
    command += ["--max-num-seqs", "64"]
    cores = f"0-{(os.cpu_count() or 1) - 1}"
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": cores}
    with log.open("wb") as out:
        server = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=env)
    url = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + 600
        while True:
            assert server.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < until, log.read_text()[-2000:]
            try:
                with urllib.request.urlopen(url + "/health", timeout=5):
                    break
            except OSError:
                time.sleep(1)
        yield url + "/v1"
    finally:
        server.terminate()
        server.wait(60)


def make_run(folder: Path, model: str, url: str, **values: object) -> RunDir:
    prompts = folder / "prompts.jsonl"
    lines = [{"id": f"p{number}", "prompt": f"Name {number + 2} animals that live near water."} for number in range(30)]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    changes = {
        "verifier.path": model,
        "generate.prompts": str(prompts),
        "generate.endpoint": url,
        "generate.max_samples": 30,
        "generate.max_tokens": 48,
        **values,
    }
    return RunDir.create(folder, "real", set_values(Plan(), changes))


def generate(run: RunDir) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pipeline.generate", "--run", str(run.path)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_generate_keeps_vllms_own_token_ids(vllm: str, demo: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    model = RunDir.open(demo[0]).plan().verifier.path
    run = make_run(tmp_path, model, vllm)
    done = generate(run)
    assert done.returncode == 0, done.stdout + done.stderr
    output = run.stage("generate").current()
    assert output is not None
    rows = [row for row, _ in iter_jsonl(output.path / "samples.jsonl")]
    assert sorted(row["id"] for row in rows) == sorted(f"p{number}" for number in range(30))
    assert {row["ids_from"] for row in rows} == {"server"}
    for row in rows:
        assert len(row["prompt_ids"]) == row["usage"]["prompt_tokens"]
        assert len(row["output_ids"]) == row["usage"]["completion_tokens"]


def test_a_verifier_that_ought_to_reason_and_does_not_is_stopped_early(
    vllm: str, demo: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    model = RunDir.open(demo[0]).plan().verifier.path
    run = make_run(tmp_path, model, vllm, **{"verifier.reasoning": True})
    done = generate(run)
    assert done.returncode == 1
    found = status(run.stage("generate"))
    assert found.state is StageState.FAILED
    assert "reasoning-parser" in found.message + found.remedy
    output = run.stage("generate").output(run.stage("generate").outputs()[-1])
    assert len(list(iter_jsonl(output.path / "rejects.jsonl"))) <= 20
