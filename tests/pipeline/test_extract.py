"""Extract: its numbers against a plain forward pass, shards that survive stops and kills, and what it refuses."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import pipeline.extract.work as work
from pipeline.config import Plan
from pipeline.extract.capture import pick_compute, pick_device
from pipeline.extract.sequences import Entry, plan_batches, take_shard
from pipeline.extract.teacher import teach
from pipeline.rundir import RunDir
from pipeline.shards import ShardStore
from pipeline.stage import StageError, StageRun, run_stage

EXACT = {"compute": "float32"}


def rows_of(count: int, *, vocab: int = 96, seed: int = 5, longest: int = 40) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for number in range(count):
        length = int(torch.randint(3, longest, (1,), generator=generator))
        prompt = int(torch.randint(1, length, (1,), generator=generator))
        ids = torch.randint(0, vocab, (length,), generator=generator).tolist()
        mask = [0] * prompt + [1] * (length - prompt)
        rows.append({"id": f"s{number:04d}", "input_ids": ids, "loss_mask": mask, "truncated": number % 5 == 0})
    return rows


def run_with(root: Path, verifier: Path, rows: list[dict[str, Any]], *, volume: Any = None, **params: Any) -> RunDir:
    plan = {
        "verifier": {"path": str(verifier)},
        "volume": volume or {"reserve_bytes": 0},
        "stages": {"extract": {"params": params}, "train": {"params": {"length": params.get("length", 2048)}}},
    }
    run = RunDir.create(root, "r1", Plan.from_json(plan))

    def generate(stage: StageRun) -> None:
        (stage.output / "tokenized.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        stage.finish({"samples": len(rows)}, "rows")

    assert run_stage("generate", generate, ["--run", str(run.path)]) == 0
    return run


def extract(run: RunDir, *words: str) -> int:
    return run_stage("extract", work.extract, ["--run", str(run.path), *words])


def output(run: RunDir) -> Path:
    current = run.stage("extract").current()
    assert current is not None
    return current.path


def outcome(run: RunDir) -> dict[str, Any]:
    attempt = run.stage("extract").latest()
    assert attempt is not None
    return attempt.outcome() or {}


def plain_pass(folder: Path, ids: list[int]) -> dict[str, torch.Tensor]:
    """One sequence through the whole model with everything on: no padding, no hooks, no tiles."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        out = model(input_ids=torch.tensor([ids]), output_hidden_states=True)
    layers = len(out.hidden_states) - 1
    aux = torch.stack([out.hidden_states[k][0] for k in (2, layers // 2, layers - 3)], dim=1)
    last = out.hidden_states[-1][0]
    logits = last.bfloat16().float() @ model.lm_head.weight.detach().float().T
    return {
        "aux": aux.bfloat16(),
        "last": last.bfloat16(),
        "argmax": logits.argmax(1).int(),
        "logsumexp": logits.logsumexp(1),
        "own": out.logits[0],
    }


def test_states_equal_a_plain_pass_of_each_sequence_alone(tmp_path: Path, tiny_verifier: Path) -> None:
    rows = rows_of(30)
    run = run_with(tmp_path, tiny_verifier, rows, batch_tokens=200, shard_bytes=60_000, **EXACT)
    assert extract(run) == 0
    store = ShardStore(output(run))
    assert len(store.index.shards) > 2
    store.verify()
    found = {one.id: one for one in store}
    assert sorted(found) == [row["id"] for row in rows]
    for row in rows:
        one, wanted = found[row["id"]], plain_pass(tiny_verifier, row["input_ids"])
        assert one.input_ids.tolist() == row["input_ids"]
        assert one.loss_mask.tolist() == row["loss_mask"]
        assert one.truncated == row["truncated"]
        # a bfloat16 step: batches sum in another order, so a value may round the other way
        torch.testing.assert_close(one.aux.float(), wanted["aux"].float(), rtol=2**-7, atol=1e-5)
        torch.testing.assert_close(one.last.float(), wanted["last"].float(), rtol=2**-7, atol=1e-5)
        torch.testing.assert_close(one.logsumexp, wanted["logsumexp"], rtol=0, atol=2e-2)
        torch.testing.assert_close(one.logsumexp, wanted["own"].logsumexp(1), rtol=0, atol=3e-2)
        top = wanted["own"].topk(2).values
        clear = top[:, 0] - top[:, 1] > 0.05
        assert clear.any()
        assert torch.equal(one.argmax[clear], wanted["own"].argmax(1).int()[clear])
    report = run.stage("extract").current().report()  # type: ignore[union-attr]
    assert report["counts"]["sequences"] == 30
    assert report["counts"]["tokens"] == sum(len(row["input_ids"]) for row in rows)


def test_aux_is_the_stream_entering_the_layer(tmp_path: Path, tiny_verifier: Path) -> None:
    """Layers 2 … of the model, run by hand on the stored low aux state, must give the stored high one."""
    from transformers import AutoModelForCausalLM

    rows = rows_of(1, longest=30)
    run = run_with(tmp_path, tiny_verifier, rows, **EXACT)
    assert extract(run) == 0
    one = ShardStore(output(run)).sequence(0)
    model = AutoModelForCausalLM.from_pretrained(tiny_verifier, dtype=torch.float32, attn_implementation="eager").eval()
    length = len(one.input_ids)
    future = torch.full((length, length), -1e9).triu(1)[None, None]
    with torch.no_grad():
        stream = model.model.embed_tokens(one.input_ids.long()[None])
        rope = model.model.rotary_emb(stream, torch.arange(length)[None])
        for layer in model.model.layers[:2]:
            stream = layer(stream, attention_mask=future, position_embeddings=rope)
        torch.testing.assert_close(one.aux[:, 0].float(), stream[0], rtol=2**-7, atol=1e-5)


def test_frozen_copy_is_the_verifier(tmp_path: Path, tiny_verifier: Path) -> None:
    run = run_with(tmp_path, tiny_verifier, rows_of(3), **EXACT)
    assert extract(run) == 0
    weights = load_file(tiny_verifier / "model.safetensors")
    store = ShardStore(output(run))
    frozen = store.frozen()
    assert torch.equal(frozen["embed_tokens"].float(), weights["model.embed_tokens.weight"])
    assert torch.equal(frozen["lm_head"].float(), weights["lm_head.weight"])
    assert torch.equal(frozen["norm"].float(), weights["model.norm.weight"])
    gate = "mlp.gate_proj.weight"
    assert torch.equal(frozen[f"layer.{gate}"].float(), weights[f"model.layers.7.{gate}"])
    assert len([name for name in frozen if name.startswith("layer.")]) == 9
    assert store.verifier_config()["hidden_size"] == 32


@pytest.mark.parametrize("kind", ["tied", "nested"])
def test_tied_and_nested_verifiers(tmp_path: Path, tiny_verifier: Path, kind: str) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM, LlavaConfig, LlavaForConditionalGeneration
    from transformers.models.clip import CLIPVisionConfig

    torch.manual_seed(1)
    text = LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=7, num_attention_heads=2, num_key_value_heads=1,
        vocab_size=64, tie_word_embeddings=kind == "tied", initializer_range=0.2,
    )  # fmt: skip
    folder = tmp_path / "verifier"
    if kind == "tied":
        model: Any = LlamaForCausalLM(text)
    else:
        sight = CLIPVisionConfig(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1)
        model = LlavaForConditionalGeneration(LlavaConfig(vision_config=sight, text_config=text, image_token_index=63))
    model = model.bfloat16().eval()
    model.save_pretrained(folder)
    rows = rows_of(4, vocab=60)
    run = run_with(tmp_path, folder, rows, **EXACT)
    assert extract(run) == 0
    store = ShardStore(output(run))
    one = next(one for one in store if one.id == "s0002")
    with torch.no_grad():
        own = model.float()(input_ids=torch.tensor([rows[2]["input_ids"]])).logits[0]
    torch.testing.assert_close(one.logsumexp, own.logsumexp(1), rtol=0, atol=3e-2)
    assert store.frozen()["lm_head"].dtype == torch.bfloat16
    assert store.verifier_config()["num_hidden_layers"] == 7


def test_bfloat16_compute_stays_near(tmp_path: Path, tiny_verifier: Path) -> None:
    rows = rows_of(6)
    run = run_with(tmp_path, tiny_verifier, rows, compute="bfloat16")
    assert extract(run) == 0
    for one in ShardStore(output(run)):
        wanted = plain_pass(tiny_verifier, rows[int(one.id[1:])]["input_ids"])
        error = (one.last.float() - wanted["last"].float()).norm() / wanted["last"].float().norm()
        assert error < 0.05


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_teacher_matches_the_whole_matrix(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.extract.teacher.ROWS", 7)
    monkeypatch.setattr("pipeline.extract.teacher.COLUMNS", 10)
    torch.manual_seed(2)
    last, head = (10 * torch.randn(23, 16)).to(dtype), (10 * torch.randn(57, 16)).to(dtype)
    head[40] = head[3]  # a tie over tiles: the lower id wins
    argmax, logsumexp = teach(last, head)
    logits = last.double() @ head.double().T
    assert torch.equal(argmax, logits.argmax(1).int())
    assert not (argmax == 40).any()
    torch.testing.assert_close(logsumexp.double(), logits.logsumexp(1), rtol=1e-6, atol=1e-4)
    assert logits.abs().max() > 500  # so far that exponentials overflow unless they are kept relative


def test_length_cuts_and_drops_what_has_nothing_to_learn(tmp_path: Path, tiny_verifier: Path) -> None:
    rows = [
        {"id": "long", "input_ids": list(range(20)), "loss_mask": [0] * 5 + [1] * 15},
        {"id": "prompt-only", "input_ids": list(range(20)), "loss_mask": [0] * 15 + [1] * 5},
        {"id": "fits", "input_ids": list(range(10)), "loss_mask": [0] * 5 + [1] * 5},
    ]
    run = run_with(tmp_path, tiny_verifier, rows, length=10)
    assert extract(run) == 0
    found = {one.id: one for one in ShardStore(output(run))}
    assert set(found) == {"long", "fits"}
    assert found["long"].input_ids.tolist() == list(range(10))
    assert found["long"].truncated and not found["fits"].truncated
    assert run.stage("extract").current().report()["counts"]["rejected"] == 1  # type: ignore[union-attr,index]


def stop_after(monkeypatch: pytest.MonkeyPatch, batches: int, how: Callable[[RunDir], None], run: RunDir) -> None:
    seen = []
    before = work.Capture.states

    def states(self: work.Capture, ids: torch.Tensor) -> Any:
        seen.append(ids)
        if len(seen) == batches:
            how(run)
        return before(self, ids)

    monkeypatch.setattr(work.Capture, "states", states)


def test_stop_cuts_the_shard_and_resume_does_the_rest_once(
    tmp_path: Path, tiny_verifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of(40)
    run = run_with(tmp_path, tiny_verifier, rows, batch_tokens=100, **EXACT)
    stop_after(monkeypatch, 3, lambda run: run.stage("extract").latest().request("stop", by="test"), run)  # type: ignore[union-attr]
    monkeypatch.setattr("pipeline.stagerun._POLL_EVERY_S", 0.0)
    assert extract(run) == 0
    assert outcome(run)["result"] == "stopped"
    kept = ShardStore(output(run)).ids()
    assert 0 < len(kept) < 40
    monkeypatch.undo()
    assert extract(run) == 0
    assert outcome(run)["result"] == "done"
    store = ShardStore(output(run))
    assert store.ids()[: len(kept)] == kept
    assert sorted(store.ids()) == [row["id"] for row in rows]
    store.verify()


def test_checkpoint_request_closes_the_open_shard(
    tmp_path: Path, tiny_verifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_with(tmp_path, tiny_verifier, rows_of(40), batch_tokens=100, **EXACT)
    stop_after(monkeypatch, 3, lambda run: run.stage("extract").latest().request("checkpoint", by="test"), run)  # type: ignore[union-attr]
    assert extract(run) == 0
    store = ShardStore(output(run))
    assert len(store.index.shards) == 2
    assert len(store) == len(set(store.ids())) == 40


def test_killed_at_any_moment_nothing_is_lost_or_doubled(tmp_path: Path, tiny_verifier: Path) -> None:
    rows = rows_of(400, longest=120)
    run = run_with(tmp_path, tiny_verifier, rows, batch_tokens=120, shard_bytes=150_000, threads=1, **EXACT)
    command = [sys.executable, "-m", "pipeline.extract", "--run", str(run.path)]
    kills = 0
    while True:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if kills == 2:
            assert process.wait(60) == 0
            break
        index = run.stage("extract").path / "out/0001/index.json"
        known = index.read_bytes() if index.exists() else b""
        while process.poll() is None and (index.read_bytes() if index.exists() else b"") == known:
            time.sleep(0.005)
        time.sleep(0.03 * kills)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        kills += 1
    store = ShardStore(output(run))
    store.verify()
    assert sorted(store.ids()) == [row["id"] for row in rows]
    left = {path.name for path in output(run).iterdir()}
    listed = {shard.file for shard in store.index.shards}
    assert left == listed | {
        "index.json",
        "head.safetensors",
        "verifier_config.json",
        "report.json",
        "source.json",
    }
    assert len(run.stage("extract").attempts()) == 3


def test_volume_without_room_stops_before_the_reserve_and_resumes(
    tmp_path: Path, tiny_verifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of(60)
    run = run_with(tmp_path, tiny_verifier, rows, batch_tokens=100, shard_bytes=40_000, **EXACT)
    room = iter([10**9, 10**9, 10**9])
    monkeypatch.setattr(StageRun, "free_bytes", lambda self: next(room, 9_000))
    assert extract(run) == 1
    said = outcome(run)
    assert said["resumable"] and "reserve" in said["message"] and "resume" in said["remedy"]
    assert 0 < len(ShardStore(output(run))) < 60
    monkeypatch.undo()
    assert extract(run) == 0
    assert sorted(ShardStore(output(run)).ids()) == [row["id"] for row in rows]


def test_capacity_of_the_plan_is_kept(tmp_path: Path, tiny_verifier: Path) -> None:
    volume = {"capacity_bytes": 100_000_000, "reserve_bytes": 99_999_999}
    run = run_with(tmp_path, tiny_verifier, rows_of(4), volume=volume, **EXACT)
    assert extract(run) == 1
    assert "reserve" in outcome(run)["message"]
    assert not list(output(run).glob("shard*"))


def test_sequence_with_nan_is_left_out_and_named(tmp_path: Path, tiny_verifier: Path) -> None:
    folder = tmp_path / "verifier"
    folder.mkdir()
    (folder / "config.json").write_bytes((tiny_verifier / "config.json").read_bytes())
    weights = load_file(tiny_verifier / "model.safetensors")
    weights["model.embed_tokens.weight"][95] = torch.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    rows = rows_of(30, vocab=95)
    rows[7]["input_ids"][1] = 95
    run = run_with(tmp_path, folder, rows, batch_tokens=150, **EXACT)
    assert extract(run) == 0
    store = ShardStore(output(run))
    assert len(store) == 29 and "s0007" not in store.ids()
    store.verify()
    rejects = [json.loads(line) for line in (output(run) / "rejects.jsonl").read_text().splitlines()]
    assert [(row["id"], row["cause"]) for row in rejects] == [("s0007", "not_finite")]


def test_verifier_that_gives_only_nan_stops_early(tmp_path: Path, tiny_verifier: Path) -> None:
    folder = tmp_path / "verifier"
    folder.mkdir()
    (folder / "config.json").write_bytes((tiny_verifier / "config.json").read_bytes())
    weights = load_file(tiny_verifier / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][:] = torch.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    run = run_with(tmp_path, folder, rows_of(60), batch_tokens=100, **EXACT)
    assert extract(run) == 1
    assert "not finite" in outcome(run)["message"] and "float32" in outcome(run)["remedy"]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("no verifier", "no .*config.json"),
        ("no weights", "can't be loaded"),
        ("foreign ids", "beyond the verifier's vocabulary"),
        ("torn row", "line 2 is damaged"),
        ("no rows", "missing"),
        ("few layers", "too few"),
        ("softcap", "final_logit_softcapping"),
    ],
)
def test_refusals_say_what_and_where(tmp_path: Path, tiny_verifier: Path, damage: str, words: str) -> None:
    rows = rows_of(3)
    folder = tmp_path / "verifier"
    folder.mkdir()
    config = json.loads((tiny_verifier / "config.json").read_text())
    if damage == "few layers":
        config["num_hidden_layers"] = 4
    if damage == "softcap":
        config["final_logit_softcapping"] = 30.0
    if damage != "no verifier":
        (folder / "config.json").write_text(json.dumps(config))
    if damage != "no weights":
        (folder / "model.safetensors").symlink_to(tiny_verifier / "model.safetensors")
    if damage == "foreign ids":
        rows[1]["input_ids"][0] = 96
    run = run_with(tmp_path, folder, rows)
    tokenized = run.stage("generate").path / "out/0001/tokenized.jsonl"
    if damage == "torn row":
        lines = tokenized.read_text().splitlines()
        tokenized.write_text("\n".join([lines[0], lines[1][:-9], lines[2]]))
    if damage == "no rows":
        tokenized.unlink()
    assert extract(run) == 1
    said = outcome(run)
    assert __import__("re").search(words, said["message"]), said
    assert said["remedy"]


def test_output_of_another_verifier_is_not_continued(
    tmp_path: Path, tiny_verifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_with(tmp_path, tiny_verifier, rows_of(40), batch_tokens=100, **EXACT)
    stop_after(monkeypatch, 2, lambda run: run.stage("extract").latest().request("stop", by="test"), run)  # type: ignore[union-attr]
    monkeypatch.setattr("pipeline.stagerun._POLL_EVERY_S", 0.0)
    assert extract(run) == 0
    index = output(run) / "index.json"
    index.write_text(index.read_text().replace('"hidden_size": 32', '"hidden_size": 64'))
    monkeypatch.undo()
    assert extract(run) == 1
    assert "another verifier" in outcome(run)["message"]


def test_batches_waste_little_and_hold_everything_once() -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(10, 400, (500,), generator=generator).tolist()
    entries = [Entry(str(number), 0, length) for number, length in enumerate(lengths)]
    entries.append(Entry("longer than a batch", 0, 5000))
    batches = list(plan_batches(entries, 2000))
    assert sorted(one.id for batch in batches for one in batch) == sorted(one.id for one in entries)
    padded = sum(max(one.length for one in batch) * len(batch) for batch in batches)
    assert padded < 1.05 * sum(one.length for one in entries)
    assert all(max(one.length for one in batch) * len(batch) <= 2000 for batch in batches if len(batch) > 1)
    pending = deque(batches)
    shards = []
    while pending:
        shards.append(take_shard(pending, 10, 50_000))
    sizes = [sum(one.length for batch in shard for one in batch) * 10 for shard in shards]
    assert [batch for shard in shards for batch in shard] == batches
    assert all(size <= 50_000 or len(shard) == 1 for size, shard in zip(sizes, shards))
    assert min(sizes[:-1]) > 25_000


def test_devices_and_compute() -> None:
    assert pick_device("cpu").type == "cpu"
    assert pick_compute("float32", torch.device("cpu")) == torch.float32
    assert pick_compute("auto", torch.device("cuda")) == torch.bfloat16
    if not torch.cuda.is_available():
        with pytest.raises(StageError, match="no GPU"):
            pick_device("cuda")
    with pytest.raises(StageError, match=r"extract\.device"):
        pick_device("warp")
