"""A tiny random verifier and a run whose generate, extract and vocab are done, for the tests of train and deploy."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from pipeline.config import Plan, set_values
from pipeline.rundir import Attempt, Lock, RunDir
from pipeline.stage import StageRun, run_stage

VOCAB, DRAFT_VOCAB, EOS = 96, 64, 1


@pytest.fixture(scope="session")
def llama_8b() -> dict[str, Any]:
    """The shape of Llama-3.1-8B, as a config.json has it."""
    return {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "vocab_size": 128256,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    }


@pytest.fixture(scope="session")
def tiny_verifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random Llama of 8 layers, width 32, 96 tokens; end token 1."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, vocab_size=VOCAB, max_position_embeddings=512, eos_token_id=EOS, bos_token_id=2,
        tie_word_embeddings=False, initializer_range=0.2,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("verifier")
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_samples(tiny_verifier: Path) -> list[dict[str, Any]]:
    """Greedy answers of the tiny verifier to random prompts: rows of samples.jsonl."""
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(tiny_verifier).eval()
    generator = torch.Generator().manual_seed(3)
    rows = []
    for number in range(24):
        prompt = torch.randint(3, VOCAB, (1, 5 + number % 7), generator=generator)
        out = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=12 + number % 9,
            do_sample=False,
            pad_token_id=0,
        )[0].tolist()
        answer = out[prompt.shape[1] :]
        row = {"id": f"p{number:03d}", "messages": [{"role": "user", "content": f"prompt {number}"}], "usage": {}}
        row |= {"reasoning": None, "content": "", "prompt_ids": prompt[0].tolist(), "output_ids": answer}
        reason = "stop" if answer[-1] == EOS else "length"
        rows.append(row | {"ids_from": "server", "finish_reason": reason, "model": "tiny"})
    return rows


@pytest.fixture(scope="session")
def prepared(
    tmp_path_factory: pytest.TempPathFactory, tiny_verifier: Path, tiny_samples: list[dict[str, Any]]
) -> RunDir:
    """A run whose first three stages are done. Copy it, don't touch it."""
    from pipeline.extract.work import extract

    plan = {"verifier": {"path": str(tiny_verifier), "name": "tiny"}, "volume": {"reserve_bytes": 0}}
    run = RunDir.create(tmp_path_factory.mktemp("runs"), "r1", Plan.from_json(plan))

    def generate(stage: StageRun) -> None:
        with (stage.output / "samples.jsonl").open("w") as file, (stage.output / "tokenized.jsonl").open("w") as view:
            for row in tiny_samples:
                file.write(json.dumps(row) + "\n")
                mask = [0] * len(row["prompt_ids"]) + [1] * len(row["output_ids"])
                ids = row["prompt_ids"] + row["output_ids"]
                view.write(json.dumps({"id": row["id"], "input_ids": ids, "loss_mask": mask}) + "\n")
        stage.finish({"samples": len(tiny_samples)}, "samples")

    def vocab(stage: StageRun) -> None:
        counts = Counter(token for row in tiny_samples for token in row["output_ids"])
        kept = sorted([token for token, _ in counts.most_common(DRAFT_VOCAB)])
        kept += [token for token in range(VOCAB) if token not in kept][: DRAFT_VOCAB - len(kept)]
        tokens = torch.tensor(sorted(kept))
        inside = torch.zeros(VOCAB, dtype=torch.bool)
        inside[tokens] = True
        tables = {"d2t": tokens - torch.arange(len(tokens)), "t2d": inside}
        save_file(tables, stage.output / "vocab.safetensors")
        stage.finish({"size": len(tokens)}, "vocab")

    for stage, body in (("generate", generate), ("extract", extract), ("vocab", vocab)):
        assert run_stage(stage, body, ["--run", str(run.path)]) == 0
    return run


@pytest.fixture
def make_run(tmp_path: Path, prepared: RunDir) -> Callable[..., RunDir]:
    """make_run("a", **{"train.epochs": 3}): a copy of the prepared run with these values in its plan."""

    def make(folder: str = "a", **values: object) -> RunDir:
        shutil.copytree(prepared.path, tmp_path / folder / "r1", symlinks=True)
        run = RunDir.open(tmp_path / folder / "r1")
        run.write_plan(set_values(run.plan(), values), "test")
        return run

    return make


class Stages:
    """Stages that nobody runs: their attempts, progress and outputs written as a stage would."""

    @contextlib.contextmanager
    def running(self, run: RunDir, stage: str, restart: bool = False) -> Iterator[Attempt]:
        """A started attempt whose lock is held: RUNNING inside."""
        lock = Lock.acquire(run.stage(stage).make().lock_path)
        assert lock is not None
        with lock:
            attempt = run.stage(stage).new_attempt(restart=restart)
            attempt.write_state(phase="running")
            yield attempt

    def done(self, run: RunDir, stage: str, size: int = 100, restart: bool = False, **counts: float) -> Attempt:
        """A complete output of that many bytes."""
        with self.running(run, stage, restart) as attempt:
            (attempt.output().path / "data").write_bytes(os.urandom(size))
            report = {"schema": 1, "stage": stage, "fingerprint": f"{run.name}-{stage}-{attempt.number}"}
            attempt.output().write_report({**report, "counts": counts, "attempt": attempt.number})
            attempt.write_exit(reason="done", code=0, resumable=False)
        return attempt

    def ended(self, run: RunDir, stage: str, size: int = 100, reason: str = "stopped", **counts: float) -> Attempt:
        """An attempt that ended before its output was complete; without counts it was still loading."""
        with self.running(run, stage) as attempt:
            with (attempt.output().path / "data").open("ab") as file:
                file.write(os.urandom(size))
            attempt.write_progress({"done": 0, "total": None, "unit": "samples", "counts": counts, "phase": "loading"})
            attempt.write_exit(reason=reason, code=1)
        return attempt


@pytest.fixture
def stages() -> Stages:
    return Stages()
