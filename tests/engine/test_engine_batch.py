"""The running batch against one-at-a-time decoding, and the drawing of tokens."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from pipeline.engine.batch import Batch
from pipeline.engine.loading import LoadError, Verifier, load
from pipeline.engine.row import Row, Sampling
from pipeline.engine.sampling import choose
from pipeline.verifier import bundled_path
from pipeline.verifier.tasks import tasks
from pipeline.verifier.template import render

GREEDY = Sampling(temperature=0.0)


@pytest.fixture(scope="module")
def verifier() -> Verifier:
    return load(bundled_path(), "bundled", "float32", "auto")


def prompts(verifier: Verifier, count: int) -> list[list[int]]:
    texts = [render([{"role": "user", "content": task.prompt}]) for task in tasks(21, count, "held-out")]
    ids: list[list[int]] = verifier.tokenizer(texts, add_special_tokens=False)["input_ids"]
    return ids


def alone(verifier: Verifier, row: Row) -> list[int]:
    """The same row in a batch of its own."""
    single = Row(row.prompt_ids, row.max_tokens, row.sampling)
    batch = Batch(verifier)
    batch.join([single])
    while not batch.leave():
        batch.step()
    return single.output_ids


def test_rows_that_join_and_leave_at_different_times_answer_as_alone(verifier: Verifier) -> None:
    # lengths make rows leave from the middle, the front and the end, and grow the cache past its first size
    limits = [3, 60, 1, 20, 7, 120, 2, 12, 30, 5]
    rows = [Row(ids, limit, GREEDY) for ids, limit in zip(prompts(verifier, 10), limits)]
    rows.append(Row([*rows[0].prompt_ids] * 6, 12, GREEDY))
    batch, waiting = Batch(verifier), list(rows)
    left: list[Row] = []
    while waiting or batch.rows:
        if waiting and len(batch.rows) < 4:
            batch.join([waiting.pop(0) for _ in range(min(2, len(waiting)))])
        else:
            batch.step()
        left += batch.leave()
    assert {id(row) for row in left} == {id(row) for row in rows}
    for row in rows:
        assert row.output_ids == alone(verifier, row)
        assert row.finish_reason == ("stop" if row.output_ids[-1] in verifier.eos_ids else "length")


def test_a_sampled_row_does_not_depend_on_its_neighbours(verifier: Verifier) -> None:
    ids = prompts(verifier, 6)
    rows = [Row(one, 20, Sampling(6.0, 0.9, seed)) for seed, one in enumerate(ids)]
    rows[2:3] = [Row(ids[2], 20, GREEDY)]
    batch = Batch(verifier)
    batch.join(rows)
    while batch.rows:
        batch.leave()
        if batch.rows:
            batch.step()
    for row in rows:
        assert row.output_ids == alone(verifier, row)


def test_many_long_prompts_are_read_in_several_passes(verifier: Verifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.engine.batch._PREFILL_TOKENS", 60)
    widths: list[tuple[int, ...]] = []
    forward = Batch._forward

    def spy(self: Batch, ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        widths.append(tuple(ids.shape))
        return forward(self, ids, *rest)

    monkeypatch.setattr(Batch, "_forward", spy)
    rows = [Row(ids, 1, GREEDY) for ids in prompts(verifier, 6)]
    batch = Batch(verifier)
    batch.join(rows)
    assert len(batch.leave()) == 6
    assert len(widths) > 1
    assert all(count == 1 or count * width <= 60 for count, width in widths)
    for row in rows:
        assert row.output_ids == alone(verifier, row)


def draws(logits: torch.Tensor, sampling: Sampling, count: int) -> Counter[int]:
    random = Random(1)
    found: Counter[int] = Counter()
    for _ in range(count // 500):
        found.update(choose(logits.expand(500, -1), [sampling] * 500, [random] * 500))
    return found


def test_draws_follow_the_distribution_at_a_temperature() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    expected = (logits / 1.5).softmax(-1)[0]
    found = draws(logits, Sampling(1.5), 20_000)
    for token in range(4):
        assert abs(found[token] / 20_000 - float(expected[token])) < 0.015


def test_top_p_keeps_the_fewest_likeliest_tokens() -> None:
    probabilities = torch.tensor([[0.1, 0.45, 0.05, 0.25, 0.15]])
    found = draws(probabilities.log(), Sampling(1.0, 0.7), 10_000)
    assert set(found) == {1, 3}
    assert abs(found[1] / 10_000 - 0.45 / 0.70) < 0.02
    assert set(draws(probabilities.log(), Sampling(1.0, 0.71), 10_000)) == {1, 3, 4}


def test_a_flat_vocabulary_is_drawn_from_beyond_the_first_look() -> None:
    found = draws(torch.zeros(1, 3000), Sampling(1.0, 0.9), 8_000)
    assert 2400 < len(found) <= 2701


def test_the_ends_of_the_line_are_never_tokens_of_no_weight() -> None:
    class Edge(Random):
        def random(self) -> float:
            return 1.0 - 2**-53

    logits = torch.tensor([[0.0, 0.0, -torch.inf]])
    assert choose(logits, [Sampling(1.0)], [Edge()]) == [1]
    assert choose(logits, [Sampling(1.0, 0.5)], [Edge()]) == [0]


def test_what_the_engine_cannot_serve_is_refused_with_a_reason(tmp_path: Path) -> None:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 2048, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2}
    Gemma3ForCausalLM(Gemma3TextConfig(**sizes, num_hidden_layers=6, head_dim=16)).save_pretrained(tmp_path / "gemma")
    LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=1)).save_pretrained(tmp_path / "llama")
    for name in ("gemma", "llama"):
        for file in ("tokenizer.json", "tokenizer_config.json"):
            text = (bundled_path() / file).read_text().replace("think>", "thought>")
            (tmp_path / name / file).write_text(text)
    with pytest.raises(LoadError, match="sliding_attention layers"):
        load(tmp_path / "gemma", "gemma", "float32", "none")
    with pytest.raises(LoadError, match="no chat template"):
        load(tmp_path / "llama", "llama", "float32", "none")
    shutil.copy(bundled_path() / "chat_template.jinja", tmp_path / "llama")
    with pytest.raises(LoadError, match="kimi needs a token </think>"):
        load(tmp_path / "llama", "llama", "float32", "kimi")
    assert load(tmp_path / "llama", "llama", "float32", "auto").parser == "none"
