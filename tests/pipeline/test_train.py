"""The training stage on a tiny verifier: curves, checkpoints, stop and resume, kill, divergence, space."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pipeline.drafter.config import DrafterError
from pipeline.drafter.initial import read_drafter
from pipeline.rundir import RunDir, iter_jsonl, joined_metrics, latest_checkpoint, status
from pipeline.shards import ShardStore
from pipeline.stage import run_stage
from pipeline.train.body import train
from pipeline.train.schedule import learning_rate
from pipeline.train.trainer import Trainer

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {
    "train.epochs": 3, "train.batch_tokens": 96, "train.lr": 5e-3, "train.precision": "float32",
    "train.val_fraction": 0.2, "train.log_every": 2, "train.threads": 1, "train.noise_std": 0.01,
}  # fmt: skip
Make = Callable[..., RunDir]


def go(run: RunDir) -> int:
    return run_stage("train", train, ["--run", str(run.path)])


def output(run: RunDir) -> Path:
    current = run.stage("train").current()
    assert current is not None
    return current.path


def weights(run: RunDir) -> dict[str, torch.Tensor]:
    found = latest_checkpoint(output(run) / "checkpoints")
    assert found is not None
    return load_file(found / "model.safetensors")


def curves(run: RunDir) -> list[dict[str, Any]]:
    current = run.stage("train").current()
    assert current is not None
    rows = joined_metrics(run.stage("train"), current)
    return [{name: value for name, value in row.items() if name not in ("t", "tokens_per_s")} for row in rows]


def last_exit(run: RunDir) -> dict[str, Any]:
    attempt = run.stage("train").latest()
    assert attempt is not None
    found = attempt.exit()
    assert found is not None
    return found


@pytest.fixture
def whole(make_run: Make) -> RunDir:
    """An uninterrupted training."""
    run = make_run("whole", **SETTINGS)
    assert go(run) == 0
    return run


def test_a_training_leaves_curves_checkpoint_and_report(whole: RunDir) -> None:
    current = whole.stage("train").current()
    assert current is not None and current.complete
    report = current.report()
    assert report is not None
    rows = curves(whole)
    validated = [row for row in rows if "val/loss" in row]
    assert [row["epoch"] for row in validated] == [0.0, 1.0, 2.0, 3.0]
    assert {"val/acc_0", "val/acc_1", "val/acc_2", "val/acceptance_length"} <= validated[0].keys()
    rates = [validated[-1][f"val/rate_{step}"] for step in range(3)]
    assert rates == sorted(rates, reverse=True)
    assert validated[-1]["val/acceptance_length"] == pytest.approx(1 + sum(rates))
    assert validated[-1]["val/loss"] < validated[0]["val/loss"]
    assert report["acceptance_length"] == max(row["val/acceptance_length"] for row in validated[1:])
    trained = [row for row in rows if "train/loss" in row]
    assert {"train/acc_0", "lr", "grad_norm"} <= trained[0].keys()
    assert trained[-1]["step"] == report["counts"]["steps"]
    found = latest_checkpoint(current.path / "checkpoints")
    assert found is not None
    assert {"model.safetensors", "optimizer.pt", "trainer.json", "drafter.json"} <= {p.name for p in found.iterdir()}
    config, tensors, vocabulary = read_drafter(current.path / report["drafter"])
    assert config.draft_vocab_size == len(vocabulary.tokens) == 64 and tensors["fc.weight"].shape == (32, 96)


def test_interrupted_and_resumed_is_the_same_training(
    whole: RunDir, make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run("cut", **SETTINGS)
    step, stops = Trainer.step, iter([4, 9])
    monkeypatch.setattr("pipeline.stagerun._POLL_EVERY_S", 0.0)
    stop_at = [next(stops)]

    def stepping(self: Trainer) -> Any:
        result = step(self)
        if self.position.step == stop_at[0]:
            attempt = run.stage("train").latest()
            assert attempt is not None
            attempt.request("stop", by="test")
            stop_at[0] = next(stops, -1)
        return result

    monkeypatch.setattr(Trainer, "step", stepping)
    for expected in ("STOPPED", "STOPPED", "DONE"):
        assert go(run) == 0
        assert status(run.stage("train")).state.name == expected
    for name, tensor in weights(whole).items():
        assert torch.equal(weights(run)[name], tensor), name
    assert curves(run) == curves(whole)
    assert (output(run) / "report.json").exists()
    reports = [json.loads((output(one) / "report.json").read_text()) for one in (run, whole)]
    assert reports[0]["fingerprint"] == reports[1]["fingerprint"] or reports[0]["counts"] == reports[1]["counts"]


KILLED = """
import os, signal, sys
from pipeline.stage import run_stage
from pipeline.train import body
from pipeline.train.trainer import Trainer
save, saves = Trainer.save, []
def dying(self, folder, extra):
    saves.append(folder)
    if len(saves) == 3:
        (folder / "model.safetensors").write_bytes(b"half a file")
        os.kill(os.getpid(), signal.SIGKILL)
    save(self, folder, extra)
Trainer.save = dying
body._Loop._due = lambda self: self.trainer.position.step % 3 == 0
sys.exit(run_stage("train", body.train, ["--run", sys.argv[1]]))
"""


def test_kill_in_the_middle_of_a_save_costs_only_the_steps_since_the_last_one(whole: RunDir, make_run: Make) -> None:
    run = make_run("killed", **SETTINGS)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", KILLED, str(run.path)], cwd=ROOT, env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    found = latest_checkpoint(output(run) / "checkpoints")
    assert found is not None and found.name == "step-000003"
    assert go(run) == 0
    assert curves(run) == curves(whole)
    for name, tensor in weights(whole).items():
        assert torch.equal(weights(run)[name], tensor), name


def test_a_loss_that_is_not_a_number_stops_and_keeps_the_good_checkpoint(
    make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run("nan", **SETTINGS)
    sequence = ShardStore.sequence

    def damaged(self: ShardStore, number: int) -> Any:
        found = sequence(self, number)
        if number == poison:
            found.aux[0, 0, 0] = float("nan")  # the mapping is copy-on-write: the shard stays whole
        return found

    poison = -1
    step = Trainer.step

    def stepping(self: Trainer) -> Any:
        nonlocal poison
        if self.position.step == 5:
            poison = self._epoch(self.position.epoch)[self.position.batch][0]
        return step(self)

    monkeypatch.setattr(ShardStore, "sequence", damaged)
    monkeypatch.setattr(Trainer, "step", stepping)
    monkeypatch.setattr("pipeline.train.body._Loop._due", lambda self: self.trainer.position.step == 4)
    assert go(run) == 1
    ended = last_exit(run)
    assert ended["reason"] == "failed" and ended["resumable"]
    assert "became nan" in ended["message"] and "step 6" in ended["message"]
    assert "lower train.lr" in ended["remedy"]
    assert all(bool(tensor.isfinite().all()) for tensor in weights(run).values() if tensor.is_floating_point())


def test_a_full_volume_is_seen_before_the_checkpoint(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run("full", **SETTINGS)
    monkeypatch.setattr("pipeline.stage.StageRun.free_bytes", lambda self: 1000)
    assert go(run) == 1
    assert "room for" in last_exit(run)["message"]
    assert latest_checkpoint(output(run) / "checkpoints") is None


def test_a_checkpoint_on_request(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run("asked", **SETTINGS)
    step = Trainer.step

    def stepping(self: Trainer) -> Any:
        result = step(self)
        if self.position.step == 3:
            attempt = run.stage("train").latest()
            assert attempt is not None
            attempt.request("checkpoint", by="test")
        return result

    monkeypatch.setattr(Trainer, "step", stepping)
    assert go(run) == 0
    names = sorted(path.name for path in (output(run) / "checkpoints").glob("step-*"))
    assert names[0] == "step-000003" and len(names) == 2


def test_it_continues_from_another_drafter(whole: RunDir, make_run: Make) -> None:
    best = latest_checkpoint(output(whole) / "best")
    assert best is not None
    run = make_run("more", **{**SETTINGS, "train.init": str(best), "train.epochs": 1, "train.noise_std": 0.0})
    assert go(run) == 0
    first = next(row for row in curves(run) if "val/loss" in row)
    assert first["val/loss"] == pytest.approx(json.loads((output(whole) / "report.json").read_text())["val_loss"])


def test_a_drafter_of_other_layers_is_refused_and_other_positions_are_kept(
    whole: RunDir, make_run: Make, tmp_path: Path
) -> None:
    best = latest_checkpoint(output(whole) / "best")
    assert best is not None
    given = shutil.copytree(best, tmp_path / "given")
    config = json.loads((given / "drafter.json").read_text())
    settings = {**SETTINGS, "train.init": str(given), "train.max_steps": 2, "train.val_fraction": 0.0}
    # as SGLang reads it: the outputs of layers 0, 3 and 4, which enter 1, 4 and 5
    (given / "drafter.json").write_text(
        json.dumps({**config, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 3, 4]}})
    )
    run = make_run("layers", **settings)
    assert go(run) == 1
    assert "enter layers 1, 4 and 5 of its verifier" in last_exit(run)["message"]
    (given / "drafter.json").write_text(json.dumps({**config, "rope_parameters": None, "rope_theta": 5e5}))
    run = make_run("theta", **settings)
    assert go(run) == 0
    trained = latest_checkpoint(output(run) / "best")
    assert trained is not None
    assert json.loads((trained / "drafter.json").read_text())["rope_theta"] == 5e5
    attempt = run.stage("train").latest()
    assert attempt is not None
    messages = [row["message"] for row, _ in iter_jsonl(attempt.path / "events.jsonl") if row["kind"] == "warning"]
    assert any("rope_theta is 500000.0 as in the drafter" in message for message in messages)


def test_several_processes_are_refused(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    run = make_run("ranks", **SETTINGS)
    assert go(run) == 1
    assert "one process" in last_exit(run)["message"]


def test_a_damaged_drafter_to_continue_from_is_named(make_run: Make, tmp_path: Path) -> None:
    run = make_run("none", **{**SETTINGS, "train.init": str(tmp_path / "nowhere")})
    assert go(run) == 1
    assert "nowhere/config.json" in last_exit(run)["message"]
    with pytest.raises(DrafterError):
        read_drafter(tmp_path)


@pytest.mark.parametrize("init", ["random", "verifier"])
def test_max_steps_and_random_start(init: str, make_run: Make) -> None:
    run = make_run("short", **{**SETTINGS, "train.init": init, "train.max_steps": 2, "train.val_fraction": 0.0})
    assert go(run) == 0
    current = run.stage("train").current()
    assert current is not None
    report = current.report()
    assert report is not None and report["counts"]["steps"] == 2 and report["acceptance_length"] is None
    assert latest_checkpoint(output(run) / "best") is not None


def test_learning_rate_rises_and_falls() -> None:
    rates = [learning_rate(step, 100, 1.0, 0.1) for step in range(100)]
    assert rates[:10] == pytest.approx([(step + 1) / 11 for step in range(10)])
    assert rates[10] == 1.0 and rates[55] == pytest.approx(0.5) and 0 < rates[99] < 0.001
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert learning_rate(0, 1, 1.0, 0.0) == 1.0
