"""The draft vocabulary: a worked example, ties, end tokens, and the stage on real files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from pipeline.config import Plan
from pipeline.rundir import RunDir
from pipeline.stage import StageRun, run_stage
from pipeline.vocab.work import choose, end_tokens, vocab

# Vocabulary of 8; the generated tokens are 3 3 3 5 5 2 2 7; 6 is never generated.
COUNTS = np.array([0, 0, 2, 3, 0, 2, 0, 1], dtype=np.int64)


def test_worked_example() -> None:
    chosen = choose(COUNTS, 3, always=())
    assert chosen.ids.tolist() == [2, 3, 5]
    assert chosen.d2t.tolist() == [2, 2, 3]
    assert chosen.t2d.tolist() == [False, False, True, True, False, True, False, False]
    assert chosen.coverage == 7 / 8
    assert (np.arange(3) + chosen.d2t).tolist() == [2, 3, 5]


def test_tie_goes_to_the_lower_id() -> None:
    assert choose(COUNTS, 2, always=()).ids.tolist() == [2, 3]


def test_end_token_takes_the_place_of_the_rarest() -> None:
    chosen = choose(COUNTS, 3, always={6, 99})
    assert chosen.ids.tolist() == [2, 3, 6]
    assert chosen.coverage == 5 / 8


def test_size_is_exact_and_clipped() -> None:
    assert choose(COUNTS, 6, always=()).ids.tolist() == [0, 1, 2, 3, 5, 7]
    everything = choose(COUNTS, 100, always={6})
    assert everything.ids.tolist() == list(range(8)) and everything.coverage == 1
    assert not everything.d2t.any() and everything.t2d.all()
    with pytest.raises(ValueError, match="no token"):
        choose(np.zeros(8, dtype=np.int64), 3, always=())


def test_end_tokens_of_all_places(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 4, "text_config": {"eos_token_id": 5}}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    assert end_tokens(tmp_path) == {4, 5, 6}
    assert end_tokens(tmp_path / "nowhere") == set()


def run_with(tmp_path: Path, rows: list[dict[str, Any]], size: int) -> RunDir:
    verifier = tmp_path / "verifier"
    verifier.mkdir()
    config = {"hidden_size": 8, "num_hidden_layers": 8, "vocab_size": 8, "num_attention_heads": 2, "eos_token_id": 7}
    (verifier / "config.json").write_text(json.dumps(config))
    plan = {"verifier": {"path": str(verifier)}, "stages": {"vocab": {"params": {"size": size}}}}
    run = RunDir.create(tmp_path, "r1", Plan.from_json(plan))

    def generate(stage: StageRun) -> None:
        (stage.output / "tokenized.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        stage.finish({"samples": len(rows)}, "rows")

    assert run_stage("generate", generate, ["--run", str(run.path)]) == 0
    return run


ROWS = [
    {"id": "a", "input_ids": [1, 1, 1, 1, 3, 3, 5, 2], "loss_mask": [0, 0, 0, 0, 1, 1, 1, 1]},
    {"id": "b", "input_ids": [6, 3, 5, 2, 7], "loss_mask": [0, 1, 1, 1, 1]},
]


def test_stage_counts_generated_tokens_only_and_needs_no_torch(tmp_path: Path) -> None:
    run = run_with(tmp_path, ROWS, 3)
    code = (
        "import sys; from pipeline.vocab.work import vocab; from pipeline.stage import run_stage; "
        "code = run_stage('vocab', vocab, ['--run', sys.argv[1]]); sys.exit(code or 2 * ('torch' in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code, str(run.path)], check=True)
    current = run.stage("vocab").current()
    assert current is not None
    tensors = load_file(current.path / "vocab.safetensors")
    assert tensors["d2t"].dtype == np.int64 and tensors["t2d"].dtype == np.bool_
    assert (tensors["d2t"] + np.arange(3)).tolist() == [2, 3, 7]
    report = current.report()
    assert report is not None
    assert report["counts"] == {"size": 3, "coverage": 6 / 8, "tokens": 8, "distinct": 4}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{**ROWS[0], "loss_mask": [0] * 8}], "no generated token"),
        ([ROWS[0], {**ROWS[1], "input_ids": [6, 3, 5, 2, 8]}], "line 2 has a token id beyond"),
        ([{"id": "x"}], "line 1 is damaged"),
    ],
)
def test_refusals(tmp_path: Path, rows: list[dict[str, Any]], words: str) -> None:
    run = run_with(tmp_path, rows, 3)
    assert run_stage("vocab", vocab, ["--run", str(run.path)]) == 1
    attempt = run.stage("vocab").latest()
    assert attempt is not None
    said = attempt.outcome()
    assert said is not None and words in said["message"] and said["remedy"]
