"""The drafter against an independent, slow implementation of the same formulas."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from pipeline.drafter.attention import plan_blocks, ttt_attention
from pipeline.drafter.config import DrafterConfig, DrafterError
from pipeline.drafter.initial import drafter_from_folder, drafter_from_verifier, load_drafter, random_drafter
from pipeline.drafter.model import Drafter
from pipeline.drafter.rope import rotary_tables
from pipeline.drafter.rope_config import read_rope
from pipeline.drafter.vocabulary import DraftVocabulary
from pipeline.geometry import read_geometry

CONFIG = DrafterConfig(
    hidden_size=24, intermediate_size=40, num_attention_heads=4, num_key_value_heads=2, head_dim=8, vocab_size=50,
    draft_vocab_size=30, max_position_embeddings=256,
)  # fmt: skip


EIGHT = {"num_hidden_layers": 8}
"""As much of a verifier's config.json as says what is captured by default: 2, 4 and 5."""


def naive_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rows: list[tuple[int, int]],
    starts: list[int],
    diagonal: list[tuple[Tensor, Tensor]],
) -> Tensor:
    """One row and one head at a time: rows are (sequence, position)."""
    out = torch.zeros_like(q)
    groups = q.shape[1] // k.shape[1]
    for row, (sequence, position) in enumerate(rows):
        first = starts[sequence]
        for head in range(q.shape[1]):
            keys = [k[first + at, head // groups] for at in range(position + 1)]
            values = [v[first + at, head // groups] for at in range(position + 1)]
            keys += [key[row, head // groups] for key, _ in diagonal]
            values += [value[row, head // groups] for _, value in diagonal]
            scores = torch.stack([q[row, head] @ key for key in keys]) / math.sqrt(q.shape[-1])
            out[row, head] = torch.softmax(scores, 0) @ torch.stack(values)
    return out


@pytest.mark.parametrize("budget", [1 << 20, 64])
@pytest.mark.parametrize("steps", [0, 2])
def test_attention_and_its_gradients_match_a_row_by_row_one(
    steps: int, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.drafter.attention.CPU_BLOCK", budget)  # 64: long sequences are cut into pieces
    torch.manual_seed(0)
    lengths = [7, 3, 9, 8]
    asked = [[2, 3, 4, 5], [1], [0, 1, 5, 6, 7], [6]]
    starts = [0, 7, 10, 19]
    rows = [(sequence, position) for sequence, positions in enumerate(asked) for position in positions]
    tensors = [torch.randn(len(rows), 4, 8, dtype=torch.float64)]
    tensors += [torch.randn(27, 2, 8, dtype=torch.float64) for _ in range(2)]
    tensors += [torch.randn(len(rows), 2, 8, dtype=torch.float64) for _ in range(2 * steps)]
    blocks = plan_blocks([torch.tensor(one) for one in asked], lengths, heads=4)
    grad = torch.randn(len(rows), 4, 8, dtype=torch.float64)
    found, wanted = [], []
    for into, fast in ((found, True), (wanted, False)):
        leaves = [one.clone().requires_grad_() for one in tensors]
        diagonal = [(leaves[3 + 2 * step], leaves[4 + 2 * step]) for step in range(steps)]
        if fast:
            out = ttt_attention(leaves[0], leaves[1], leaves[2], blocks, diagonal)
        else:
            out = naive_attention(leaves[0], leaves[1], leaves[2], rows, starts, diagonal)
        out.backward(grad)
        into += [out.detach()] + [leaf.grad for leaf in leaves]
    for one, other in zip(found, wanted):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)


def test_blocks_cover_every_row_once_and_share_like_lengths() -> None:
    asked = [torch.arange(3, 3 + count) for count in (5, 6, 5, 40, 6)]
    blocks = plan_blocks(asked, [12, 12, 12, 60, 12], heads=2)
    rows = [block.rows.flatten() if block.filled is None else block.rows.flatten()[block.filled] for block in blocks]
    assert sorted(torch.cat(rows).tolist()) == list(range(62))
    assert len(blocks) == 2


def slow_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean() + eps) * weight


def slow_rotary(x: Tensor, position: int, theta: float) -> Tensor:
    """Rotates pairs (i, i + d/2) of one head by position * theta^(-2i/d)."""
    half, out = len(x) // 2, x.clone()
    for i in range(half):
        angle = position * theta ** (-2 * i / len(x))
        out[i] = x[i] * math.cos(angle) - x[i + half] * math.sin(angle)
        out[i + half] = x[i + half] * math.cos(angle) + x[i] * math.sin(angle)
    return out


class SlowDrafter:
    """EAGLE-3 as published, one slot and one head at a time, with a growing list of keys: an engine's decode."""

    def __init__(self, drafter: Drafter) -> None:
        self.p = {name: value.detach() for name, value in drafter.named_parameters()}
        self.c = drafter.config

    def slot(self, hidden: Tensor, embedding: Tensor, position: int, seen: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Adds this slot's key and value to `seen` and gives the state before the final norm."""
        c, p, layer = self.c, self.p, "midlayer."
        normed = slow_norm(hidden, p[layer + "hidden_norm.weight"], c.rms_norm_eps)
        x = torch.cat((slow_norm(embedding, p[layer + "input_layernorm.weight"], c.rms_norm_eps), normed))
        heads = {}
        for name, count in (("q", c.num_attention_heads), ("k", c.num_key_value_heads), ("v", c.num_key_value_heads)):
            heads[name] = (p[f"{layer}self_attn.{name}_proj.weight"] @ x).view(count, c.head_dim)
        query = [slow_rotary(head, position, c.rope_theta) for head in heads["q"]]
        seen.append((torch.stack([slow_rotary(head, position, c.rope_theta) for head in heads["k"]]), heads["v"]))
        out = []
        for number, head in enumerate(query):
            shared = number * c.num_key_value_heads // c.num_attention_heads
            scores = torch.stack([head @ key[shared] / math.sqrt(c.head_dim) for key, _ in seen])
            out.append(sum(weight * value[shared] for weight, (_, value) in zip(scores.softmax(0), seen)))
        hidden = hidden + p[layer + "self_attn.o_proj.weight"] @ torch.cat(out)
        y = slow_norm(hidden, p[layer + "post_attention_layernorm.weight"], c.rms_norm_eps)
        gate, up = p[layer + "mlp.gate_proj.weight"] @ y, p[layer + "mlp.up_proj.weight"] @ y
        return hidden + p[layer + "mlp.down_proj.weight"] @ (gate * torch.sigmoid(gate) * up)


@torch.no_grad()
def test_training_forward_is_the_published_decode() -> None:
    """Every supervised row's chain, replayed slot by slot with true states before it and its own states within it."""
    drafter = random_drafter(CONFIG, 1)
    for parameter in drafter.parameters():
        parameter.mul_(3 if parameter.dim() > 1 else 1).add_(0.1 * torch.randn(parameter.shape))
    slow, steps = SlowDrafter(drafter), 3
    lengths, asked = [9, 6], [torch.tensor([3, 4, 5, 6]), torch.tensor([1, 2])]
    aux, embeddings = torch.randn(15, 72), torch.randn(15 + steps, 24)
    starts = [0, 9]
    rows = torch.cat([start + positions for start, positions in zip(starts, asked)])
    positions = torch.cat([torch.arange(length) for length in lengths])
    later = [embeddings[rows + step] for step in range(1, steps)]
    blocks = plan_blocks(asked, lengths, CONFIG.num_attention_heads)
    found = drafter.ttt_states(aux, embeddings[:15], rows, positions, later, blocks)
    number = 0
    for start, length, wanted in zip(starts, lengths, asked):
        true: list[tuple[Tensor, Tensor]] = []
        states = []
        for t in range(length):
            hidden = slow.p["fc.weight"] @ aux[start + t]
            states.append((slow.slot(hidden, embeddings[start + t], t, true), list(true)))
        for t in wanted.tolist():
            state, seen = states[t]
            for step in range(steps):
                torch.testing.assert_close(found[step][number], state, atol=1e-4, rtol=1e-3)
                if step + 1 < steps:
                    state = slow.slot(state, embeddings[start + t + step + 1], t + step + 1, seen)
            number += 1


@pytest.mark.parametrize(
    "scaling",
    [
        None,
        {"rope_type": "linear", "factor": 4.0},
        {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 512,
        },
        {
            "rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 256, "beta_fast": 32.0,
            "beta_slow": 1.0,
        },
    ],
)  # fmt: skip
def test_rotary_tables_are_those_of_transformers(scaling: dict[str, object] | None) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = replace(CONFIG, head_dim=32, rope_theta=50000.0, rope_scaling=scaling, max_position_embeddings=4096)
    theirs = LlamaConfig(
        hidden_size=64, num_attention_heads=2, head_dim=32, max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", **(scaling or {}), "rope_theta": 50000.0},
    )  # fmt: skip
    cosine, sine = LlamaRotaryEmbedding(theirs)(torch.zeros(1, 700, 64), torch.arange(700)[None])
    ours = rotary_tables(config, 700)
    torch.testing.assert_close(ours[0], cosine[0], atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(ours[1], sine[0], atol=2e-5, rtol=1e-4)


def test_a_config_survives_the_file_and_transformers_reads_it_alike(tmp_path: Path) -> None:
    from transformers import AutoConfig

    scaling = {"rope_type": "linear", "factor": 2.0}
    config = replace(CONFIG, rope_theta=12345.0, rope_scaling=scaling, eos_token_id=(1, 2), aux_layers=(1, 4, 6))
    assert DrafterConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    assert DrafterConfig.from_json(CONFIG.to_json()) == CONFIG
    (tmp_path / "config.json").write_text(json.dumps(config.to_json()))
    read = AutoConfig.from_pretrained(tmp_path)
    assert read.rope_parameters["rope_theta"] == 12345.0 and read.rope_parameters["factor"] == 2.0
    assert read.head_dim == 8 and read.tie_word_embeddings is False


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"rope_theta": 5e5}, (5e5, None)),
        ({"rope_parameters": {"rope_theta": 1e5, "rope_type": "default"}}, (1e5, None)),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, (1e4, {"rope_type": "linear", "factor": 2})),
        ({"rope_theta": 1e4, "rope_scaling": {"type": "dynamic", "factor": 2}}, (1e4, None)),
        (
            {
                "rope_theta": 5e4, "max_position_embeddings": 4096,
                "rope_scaling": {"type": "yarn", "factor": 64, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32},
            },
            (5e4, {"rope_type": "yarn", "factor": 64, "beta_fast": 32, "original_max_position_embeddings": 4096}),
        ),
        ({}, (1e4, None)),
    ],
)  # fmt: skip
def test_rope_of_old_and_new_configs(raw: dict[str, Any], expected: tuple[float, dict[str, Any] | None]) -> None:
    assert read_rope(raw) == expected


def test_a_drafter_follows_its_verifier() -> None:
    kimi = {
        "eos_token_id": 163586,
        "text_config": {
            "hidden_size": 7168, "num_attention_heads": 64, "num_key_value_heads": 64, "num_hidden_layers": 61,
            "intermediate_size": 18432, "vocab_size": 163840, "kv_lora_rank": 512, "max_position_embeddings": 262144,
            "attention_bias": True,
        },
    }  # fmt: skip
    config = DrafterConfig.for_verifier(kimi, 32000)
    assert (config.head_dim, config.num_key_value_heads, config.attention_bias) == (112, 64, False)
    assert config.captured(61) == (2, 30, 58) and config.aux_layers is None
    assert config.max_position_embeddings == 262144 and config.eos_token_id == 163586
    with pytest.raises(DrafterError, match="2 layers"):
        DrafterConfig.for_verifier({**kimi["text_config"], "num_hidden_layers": 2}, 32000)
    with pytest.raises(DrafterError, match="hidden_size is None"):
        DrafterConfig.for_verifier({"num_hidden_layers": 8}, 100)


BASE = {"num_hidden_layers": 46, "vocab_size": 151552, "intermediate_size": 64, "max_position_embeddings": 4096}


@pytest.mark.parametrize(
    ("verifier", "expected"),
    [
        # these have always been right: heads, key heads and head size are the verifier's
        ({"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}, (32, 8, 128)),  # Llama-3.1-8B
        ({"hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128}, (32, 4, 128)),
        ({"hidden_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64}, (64, 8, 64)),
        ({"hidden_size": 3200, "num_attention_heads": 32}, (32, 32, 100)),  # open_llama_3b
        ({"hidden_size": 7168, "num_attention_heads": 64, "kv_lora_rank": 512, "head_dim": 192}, (64, 64, 112)),
        ({"hidden_size": 7168, "num_attention_heads": 128, "kv_lora_rank": 512}, (128, 128, 56)),  # DeepSeek-V3
        # transformers refuses a Llama config with these verifiers' heads
        ({"hidden_size": 4096, "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128}, (32, 8, 128)),
        (
            {"hidden_size": 2048, "num_attention_heads": 20, "num_key_value_heads": 20, "kv_lora_rank": 512},
            (16, 16, 128),
        ),
        ({"hidden_size": 5120, "num_attention_heads": 96, "num_key_value_heads": 12}, (40, 10, 128)),
        ({"hidden_size": 960, "num_attention_heads": 14, "num_key_value_heads": 7}, (15, 5, 64)),
        ({"hidden_size": 40, "num_attention_heads": 3, "num_key_value_heads": 1}, (1, 1, 40)),
        ({"hidden_size": 832, "num_attention_heads": 64, "kv_lora_rank": 8}, (13, 13, 64)),  # 13 elements a head
    ],
)
def test_heads_are_the_verifiers_or_such_that_transformers_takes_the_export(
    verifier: dict[str, Any], expected: tuple[int, int, int], tmp_path: Path
) -> None:
    from transformers import AutoConfig

    config = DrafterConfig.for_verifier({**BASE, **verifier}, 32000)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == expected
    (tmp_path / "config.json").write_text(json.dumps(config.to_json()))
    read = AutoConfig.from_pretrained(tmp_path)
    assert (read.num_attention_heads, read.num_key_value_heads, read.head_dim) == expected


def test_a_width_that_no_head_size_divides_is_refused() -> None:
    with pytest.raises(DrafterError, match="100 wide with 3 heads"):
        DrafterConfig.for_verifier({**BASE, "hidden_size": 100, "num_attention_heads": 3}, 32000)


def test_parts_of_a_verifier_with_other_heads_start_at_random() -> None:
    verifier = {**BASE, "hidden_size": 64, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16}
    config = DrafterConfig.for_verifier({**verifier, "vocab_size": 50}, 30)
    theirs = replace(config, num_attention_heads=6, num_key_value_heads=2, head_dim=16)
    drafter, missing = drafter_from_verifier(config, frozen_for(theirs), DraftVocabulary(torch.arange(30), 50), 0)
    assert missing == [f"layer.self_attn.{name}_proj.weight" for name in ("o", "q", "k", "v")]
    assert drafter.midlayer.self_attn.q_proj.weight.shape == (64, 128)


@pytest.mark.parametrize(
    "change",
    [
        {"norm_before_residual": True},
        {"fc_norm": True},
        {"hidden_act": "gelu"},
        {"target_hidden_size": 99},
        {"hidden_size": 0},
    ],
)
def test_a_drafter_that_is_not_plain_eagle3_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(DrafterError):
        DrafterConfig.from_json({**CONFIG.to_json(), **change})


def frozen_for(config: DrafterConfig) -> dict[str, Tensor]:
    """A verifier's last layer, norm and head for a drafter of that shape."""
    q, kv = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    size, inner = config.hidden_size, config.intermediate_size
    shapes = {"q_proj": (q, size), "k_proj": (kv, size), "v_proj": (kv, size), "o_proj": (size, q)}
    frozen = {f"layer.self_attn.{name}.weight": torch.randn(shape) for name, shape in shapes.items()}
    frozen |= {f"layer.mlp.{name}_proj.weight": torch.randn(inner, size) for name in ("gate", "up")}
    frozen |= {"layer.mlp.down_proj.weight": torch.randn(size, inner), "norm": torch.rand(size)}
    frozen |= {f"layer.{name}.weight": torch.rand(size) for name in ("input_layernorm", "post_attention_layernorm")}
    return {**frozen, "lm_head": torch.randn(config.vocab_size, size)}


def test_a_drafter_starts_as_its_verifiers_last_layer() -> None:
    frozen, vocabulary = frozen_for(CONFIG), DraftVocabulary(torch.arange(10, 40), 50)
    drafter, missing = drafter_from_verifier(CONFIG, frozen, vocabulary, 0)
    assert missing == []
    attention = drafter.midlayer.self_attn
    assert torch.equal(attention.q_proj.weight[:, 24:], frozen["layer.self_attn.q_proj.weight"])
    assert torch.equal(drafter.lm_head.weight, frozen["lm_head"][10:40])
    aux = torch.randn(5, 72)
    torch.testing.assert_close(drafter.fc(aux), aux[:, 48:])  # the high captured state
    del frozen["layer.self_attn.q_proj.weight"]
    _, missing = drafter_from_verifier(CONFIG, frozen, vocabulary, 0)
    assert missing == ["layer.self_attn.q_proj.weight"]


def write_drafter(folder: Path, drafter: Drafter, vocabulary: DraftVocabulary, layer: str = "midlayer") -> None:
    tensors = {name.replace("midlayer", layer): value.detach().clone() for name, value in drafter.named_parameters()}
    save_file({**tensors, "d2t": vocabulary.d2t}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(drafter.config.to_json()))


def test_another_drafter_is_continued_token_by_token(tmp_path: Path) -> None:
    old, new = DraftVocabulary(torch.arange(0, 30), 50), DraftVocabulary(torch.arange(20, 50), 50)
    source, frozen = random_drafter(CONFIG, 3), frozen_for(CONFIG)
    write_drafter(tmp_path, source, old, layer="layers.0")
    drafter, taken = drafter_from_folder(tmp_path, CONFIG, frozen, new, EIGHT)
    assert taken == []
    assert torch.equal(drafter.lm_head.weight[:10], source.lm_head.weight[20:30])
    assert torch.equal(drafter.lm_head.weight[10:], frozen["lm_head"][30:])
    assert torch.equal(drafter.midlayer.mlp.up_proj.weight, source.midlayer.mlp.up_proj.weight)
    with pytest.raises(DrafterError, match="has num_key_value_heads 2, not 4"):
        drafter_from_folder(tmp_path, replace(CONFIG, num_key_value_heads=4), frozen, new, EIGHT)


def rewrite(folder: Path, **change: Any) -> None:
    """Changes keys of the config.json there; None takes one away."""
    config = {**json.loads((folder / "config.json").read_text()), **change}
    kept = {name: value for name, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))


TOP, NESTED = "eagle_aux_hidden_state_layer_ids", {"eagle_aux_hidden_state_layer_ids": [0, 3, 4]}


@pytest.mark.parametrize(
    ("written", "latent", "captured"),
    [
        ({}, False, (2, 4, 5)),  # the default of both engines, of a verifier with 8 layers
        ({TOP: [2, 4, 5]}, False, (2, 4, 5)),
        ({TOP: [1, 4, 5]}, False, (1, 4, 5)),  # vLLM's form
        ({"eagle_config": NESTED}, False, (1, 4, 5)),  # SGLang's: a layer's output
        ({"eagle_config": {TOP: [1, 3, 4]}}, False, (2, 4, 5)),
        ({TOP: [1, 4, 5], "eagle_config": NESTED}, False, (1, 4, 5)),
        ({"eagle_config": {TOP: [1, 3, 4]}}, True, (2, 4, 5)),  # DeepSeek's class: 1 more, since the first is 1
        ({"eagle_config": {TOP: [3, 4, 5]}}, True, (3, 4, 5)),  # and as they are otherwise
        ({"eagle_config": {TOP: [2, 4, 5]}}, True, (2, 4, 5)),
    ],
)
def test_only_a_drafter_of_the_same_captured_layers_is_continued(
    written: dict[str, Any], latent: bool, captured: tuple[int, int, int], tmp_path: Path
) -> None:
    vocabulary, frozen = DraftVocabulary(torch.arange(0, 30), 50), frozen_for(CONFIG)
    write_drafter(tmp_path, random_drafter(CONFIG, 3), vocabulary)
    rewrite(tmp_path, **written)
    verifier = {**EIGHT, "kv_lora_rank": 8} if latent else EIGHT
    wanted = replace(CONFIG, aux_layers=None if captured == (2, 4, 5) else captured)
    drafter, _ = drafter_from_folder(tmp_path, wanted, frozen, vocabulary, verifier)
    assert drafter.config == wanted
    with pytest.raises(DrafterError, match="states that enter layers {}, {} and {} ".format(*captured)):
        drafter_from_folder(tmp_path, replace(CONFIG, aux_layers=(3, 4, 6)), frozen, vocabulary, verifier)


def test_layers_that_the_engines_read_differently_are_refused(tmp_path: Path) -> None:
    vocabulary = DraftVocabulary(torch.arange(0, 30), 50)
    write_drafter(tmp_path, random_drafter(CONFIG, 3), vocabulary)
    rewrite(tmp_path, **{TOP: [1, 4, 5], "eagle_config": {TOP: [1, 4, 5]}})
    with pytest.raises(DrafterError, match=r"vLLM capture layers \[1, 4, 5\], SGLang \[2, 5, 6\]"):
        drafter_from_folder(tmp_path, CONFIG, frozen_for(CONFIG), vocabulary, EIGHT)
    rewrite(tmp_path, **{TOP: ["low"], "eagle_config": None})
    with pytest.raises(DrafterError, match="low"):
        load_drafter(tmp_path)


def test_rotary_positions_and_eps_are_the_continued_drafters(tmp_path: Path) -> None:
    vocabulary, frozen = DraftVocabulary(torch.arange(0, 30), 50), frozen_for(CONFIG)
    scaling = {"rope_type": "linear", "factor": 2.0}
    theirs = replace(CONFIG, rope_theta=5e5, rope_scaling=scaling, rms_norm_eps=1e-6)
    write_drafter(tmp_path, random_drafter(theirs, 3), vocabulary)
    drafter, taken = drafter_from_folder(tmp_path, CONFIG, frozen, vocabulary, EIGHT)
    assert drafter.config == theirs and drafter.midlayer.hidden_norm.eps == 1e-6
    assert [sentence.split()[0] for sentence in taken] == ["rope_theta", "rope_scaling", "rms_norm_eps"]
    assert "500000.0 as in the drafter" in taken[0] and "not 10000.0 as in the verifier" in taken[0]
    assert torch.equal(drafter.rotary(torch.arange(9))[0], random_drafter(theirs, 3).rotary(torch.arange(9))[0])
    # a type that isn't computed here would be continued with other positions than it was trained with
    rewrite(tmp_path, rope_scaling={"type": "dynamic", "factor": 2.0}, rope_parameters=None)
    with pytest.raises(DrafterError, match="dynamic"):
        drafter_from_folder(tmp_path, CONFIG, frozen, vocabulary, EIGHT)


def test_a_drafter_with_biases_is_not_continued(tmp_path: Path) -> None:
    vocabulary = DraftVocabulary(torch.arange(0, 30), 50)
    write_drafter(tmp_path, random_drafter(replace(CONFIG, attention_bias=True), 3), vocabulary)
    with pytest.raises(DrafterError, match="attention_bias True, not False"):
        drafter_from_folder(tmp_path, CONFIG, frozen_for(CONFIG), vocabulary, EIGHT)


def test_a_file_that_is_no_drafter_is_named(tmp_path: Path) -> None:
    with pytest.raises(DrafterError, match=r"There is no .*config\.json"):
        load_drafter(tmp_path)
    drafter, vocabulary = random_drafter(CONFIG, 3), DraftVocabulary(torch.arange(0, 30), 50)
    write_drafter(tmp_path, drafter, vocabulary)
    loaded, read = load_drafter(tmp_path)
    assert torch.equal(read.tokens, vocabulary.tokens)
    assert torch.equal(loaded.fc.weight, drafter.fc.weight)
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG.to_json(), "intermediate_size": 41}))
    with pytest.raises(DrafterError, match=r"no plain EAGLE-3 drafter: midlayer\.mlp"):
        load_drafter(tmp_path)
    write_drafter(tmp_path, drafter, DraftVocabulary(torch.arange(30, 60), 60))
    with pytest.raises(DrafterError, match="does not map into 50 tokens"):
        load_drafter(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x00" * 40)
    with pytest.raises(DrafterError, match="can't be read"):
        load_drafter(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_attention_heads": 96, "head_dim": 128},
        {"hidden_size": 2048, "num_attention_heads": 20, "num_key_value_heads": 20, "kv_lora_rank": 512},
        {"hidden_size": 7168, "num_attention_heads": 64, "num_key_value_heads": 64, "kv_lora_rank": 512},
    ],
    ids=["GLM-4.5-Air", "glm4_moe_lite", "Kimi-K2.5"],
)
def test_the_parameters_are_those_of_the_drafter_that_is_trained(
    changes: dict[str, Any], llama_8b: dict[str, Any], tmp_path: Path
) -> None:
    verifier = {**llama_8b, **changes}
    (tmp_path / "config.json").write_text(json.dumps(verifier))
    config = DrafterConfig.for_verifier(verifier, 32_000)
    with torch.device("meta"):
        drafter = Drafter(config)
    trained = sum(p.numel() for name, p in drafter.named_parameters() if not name.startswith("embed"))
    assert read_geometry(tmp_path).drafter_parameters(32_000) == trained
