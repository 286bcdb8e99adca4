"""The exported folder and the linter that says what SGLang and vLLM would make of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pipeline.deploy.export import export_drafter, verifier_dtype
from pipeline.deploy.lint import lint, main
from pipeline.drafter.config import DrafterConfig
from pipeline.drafter.initial import load_drafter, random_drafter
from pipeline.drafter.vocabulary import DraftVocabulary
from pipeline.train.trainer import save_weights

VERIFIER: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 24, "intermediate_size": 40, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 50, "num_hidden_layers": 8, "dtype": "bfloat16",
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "eos_token_id": 3,
}  # fmt: skip


def checkpoint(folder: Path, size: int = 30) -> Path:
    config = DrafterConfig.for_verifier(VERIFIER, size)
    drafter = random_drafter(config, 0)
    vocabulary = DraftVocabulary(torch.arange(50 - size, 50), 50)
    folder.mkdir()
    save_weights(folder, drafter, {name: value.detach() for name, value in drafter.named_parameters()}, vocabulary)
    return folder


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    return export_drafter(checkpoint(tmp_path / "step"), tmp_path / "out", "bfloat16")


def test_the_layout_is_the_one_engines_load(exported: Path, tmp_path: Path) -> None:
    tensors, config = load_file(exported / "model.safetensors"), json.loads((exported / "config.json").read_text())
    assert exported.name == "drafter-eagle3"
    # names and shapes of llama_eagle3.py in sglang 0.5.23 and vllm 0.32, written down by hand
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {
        "fc.weight": (24, 72),
        "midlayer.self_attn.q_proj.weight": (32, 48),
        "midlayer.self_attn.k_proj.weight": (16, 48),
        "midlayer.self_attn.v_proj.weight": (16, 48),
        "midlayer.self_attn.o_proj.weight": (24, 32),
        "midlayer.mlp.gate_proj.weight": (40, 24),
        "midlayer.mlp.up_proj.weight": (40, 24),
        "midlayer.mlp.down_proj.weight": (24, 40),
        "midlayer.input_layernorm.weight": (24,),
        "midlayer.hidden_norm.weight": (24,),
        "midlayer.post_attention_layernorm.weight": (24,),
        "norm.weight": (24,),
        "lm_head.weight": (30, 24),
        "d2t": (30,),
        "t2d": (50,),
    }
    assert tensors["d2t"].tolist() == [20] * 30 and tensors["d2t"].dtype == torch.int64
    assert tensors["t2d"].tolist() == [False] * 20 + [True] * 30
    assert tensors["fc.weight"].dtype == torch.bfloat16
    assert config["architectures"] == ["LlamaForCausalLMEagle3"] and config["model_type"] == "llama"
    assert config["draft_vocab_size"] == 30 and config["vocab_size"] == 50 and config["tie_word_embeddings"] is False
    assert config["max_position_embeddings"] == 256 and config["num_hidden_layers"] == 1
    assert "eagle_aux_hidden_state_layer_ids" not in config and "eagle_config" not in config
    original, _ = load_drafter(tmp_path / "step")
    back, vocabulary = load_drafter(exported)
    assert vocabulary.tokens.tolist() == list(range(20, 50))
    for one, other in zip(original.parameters(), back.parameters()):
        assert torch.equal(one.bfloat16().float(), other)


def test_a_whole_draft_vocabulary_carries_no_tables(tmp_path: Path) -> None:
    folder = export_drafter(checkpoint(tmp_path / "step", 50), tmp_path / "out", "float32")
    assert not {"d2t", "t2d"} & load_file(folder / "model.safetensors").keys()
    assert lint(folder, VERIFIER) == []
    assert load_drafter(folder)[1].whole


def test_a_second_export_replaces_the_first(exported: Path, tmp_path: Path) -> None:
    (exported / "stale").write_text("x")
    export_drafter(tmp_path / "step", tmp_path / "out", "bfloat16")
    assert sorted(path.name for path in exported.iterdir()) == ["config.json", "model.safetensors"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["drafter-eagle3"]


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        ({"dtype": "float16"}, "float16"),
        ({"torch_dtype": "float32"}, "float32"),
        ({"text_config": {}, "torch_dtype": "float16"}, "float16"),
        ({"text_config": {"dtype": "float32"}}, "float32"),
        ({"torch_dtype": "int8"}, "bfloat16"),
        ({}, "bfloat16"),
    ],
)
def test_weights_take_the_verifiers_dtype(config: dict[str, Any], dtype: str) -> None:
    assert verifier_dtype(config) == dtype


def found(folder: Path, verifier: dict[str, Any] | None = VERIFIER) -> set[tuple[str, str, str]]:
    return {(finding.engine, finding.kind, finding.key) for finding in lint(folder, verifier)}


def test_a_fresh_export_gives_nothing_to_object_to(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lint(exported, VERIFIER) == []
    (exported.parent / "verifier").mkdir()
    (exported.parent / "verifier/config.json").write_text(json.dumps(VERIFIER))
    assert main([str(exported), "--verifier", str(exported.parent / "verifier")]) == 0
    assert capsys.readouterr().out == "nothing to object to\n"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, ("SGLang and vLLM", "refused", "architectures")),
        ({"draft_vocab_size": None}, ("SGLang and vLLM", "refused", "lm_head.weight")),
        ({"tie_word_embeddings": True}, ("SGLang", "wrong", "tie_word_embeddings")),
        ({"norm_before_residual": True}, ("SGLang", "ignored", "norm_before_residual")),
        ({"attention_bias": True}, ("SGLang", "ignored", "attention_bias")),
        ({"norm_output": True}, ("SGLang", "note", "norm_output")),
        ({"intermediate_size": 41}, ("SGLang and vLLM", "refused", "midlayer.mlp.up_proj.weight")),
        ({"max_position_embeddings": 128}, ("vLLM", "wrong", "max_position_embeddings")),
        ({"vocab_size": 60}, ("SGLang and vLLM", "refused", "vocab_size")),
        ({"eagle_aux_hidden_state_layer_ids": [1, 4, 6]}, ("SGLang", "wrong", "eagle_aux_hidden_state_layer_ids")),
        (
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 3, 5]}},
            ("vLLM", "wrong", "eagle_aux_hidden_state_layer_ids"),
        ),
        (
            {
                "eagle_aux_hidden_state_layer_ids": [1, 4, 6],
                "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 4, 6]},
            },
            ("SGLang and vLLM", "wrong", "eagle_aux_hidden_state_layer_ids"),
        ),
        ({"speculators_model_type": "eagle3"}, ("SGLang", "refused", "speculators_config")),
        ({"num_attention_heads": 5}, ("SGLang and vLLM", "refused", "num_attention_heads")),
        ({"num_key_value_heads": 3}, ("SGLang and vLLM", "refused", "num_key_value_heads")),
        ({"head_dim": 12}, ("SGLang and vLLM", "note", "head_dim")),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2}}, ("SGLang and vLLM", "note", "rope_parameters")),
    ],
)
def test_the_linter_names_a_key(change: dict[str, Any], expected: tuple[str, str, str], exported: Path) -> None:
    config = json.loads((exported / "config.json").read_text())
    (exported / "config.json").write_text(json.dumps({**config, **change}))
    assert expected in found(exported)


def test_explicit_layers_are_written_so_that_both_engines_capture_the_same(exported: Path) -> None:
    config = DrafterConfig.for_verifier(VERIFIER, 30, (1, 4, 6)).to_json()
    (exported / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    assert found(exported) == set()


def without(*names: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda tensors: {name: tensor for name, tensor in tensors.items() if name not in names}


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (without("d2t"), [("SGLang and vLLM", "wrong", "d2t")]),
        (without("fc.weight"), [("SGLang and vLLM", "refused", "fc.weight")]),
        (without("lm_head.weight"), [("SGLang and vLLM", "wrong", "lm_head.weight")]),
        (
            lambda tensors: {**tensors, "midlayer.extra.weight": torch.ones(2)},
            [("SGLang", "ignored", "midlayer.extra.weight"), ("vLLM", "refused", "midlayer.extra.weight")],
        ),
        (
            lambda tensors: {**tensors, "embed_tokens.weight": torch.ones(50, 24)},
            [("SGLang", "ignored", "embed_tokens.weight")],
        ),
        (lambda tensors: {**tensors, "d2t": torch.arange(20, 50)}, [("SGLang and vLLM", "wrong", "d2t")]),
        (lambda tensors: {**tensors, "d2t": tensors["d2t"].int()}, [("SGLang and vLLM", "refused", "d2t")]),
        (
            lambda tensors: {**tensors, "d2t": torch.full((30,), 5) - torch.arange(30)},
            [("SGLang and vLLM", "wrong", "d2t")],
        ),
    ],
)
def test_the_linter_names_a_tensor(edit: Any, expected: list[tuple[str, str, str]], exported: Path) -> None:
    path = exported / "model.safetensors"
    save_file(edit(load_file(path)), path)
    assert found(exported) == set(expected)


def test_tables_beside_a_whole_vocabulary_are_refused_by_vllm(exported: Path) -> None:
    path, config = exported / "model.safetensors", json.loads((exported / "config.json").read_text())
    tensors = load_file(path) | {"lm_head.weight": torch.ones(50, 24), "d2t": torch.zeros(50, dtype=torch.int64)}
    save_file(tensors, path)
    (exported / "config.json").write_text(json.dumps({**config, "draft_vocab_size": 50}))
    assert found(exported) == {("vLLM", "refused", "d2t")}


def test_files_that_cannot_be_read(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (exported / "model.safetensors").write_bytes(b"\x10")
    assert found(exported) == {("SGLang and vLLM", "refused", "files")}
    assert main([str(exported)]) == 1
    assert "refused" in capsys.readouterr().out
    assert main([str(exported), "--verifier", "/nowhere"]) == 1


def test_a_folder_without_the_method_in_its_name(exported: Path) -> None:
    other = exported.rename(exported.with_name("draft"))
    assert found(other) == ({("vLLM", "note", "folder")} if "eagle3" not in str(other) else set())
