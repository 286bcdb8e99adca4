"""The budget arithmetic against the numbers that were once worked out by hand for Kimi-K2.5."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.budget import (
    BudgetRequest,
    bytes_per_token,
    explain,
    headline,
    plan_bytes,
    size_text,
)
from pipeline.drafter.heads import Heads
from pipeline.geometry import GeometryError, from_hidden_size, read_geometry

TB = 10**12


def kimi(samples: int, **changes: object) -> BudgetRequest:
    values: dict[str, object] = {
        "geometry": from_hidden_size(7168),
        "samples": samples,
        "mean_tokens": 4000,
        "capacity_bytes": 3 * TB,
        "free_bytes": 3 * TB,
        "reserve_bytes": TB // 50,
    }
    return BudgetRequest(**{**values, **changes})  # type: ignore[arg-type]


def test_kimi_costs_57344_bytes_a_token() -> None:
    assert bytes_per_token(7168) == 57_344


def test_ten_thousand_kimi_samples_fit_three_terabytes() -> None:
    budget = plan_bytes(kimi(10_000))
    assert budget.hidden_bytes == 10_000 * 4_000 * 57_344
    assert size_text(budget.hidden_bytes) == "2.29 TB (2.09 TiB)"
    assert budget.fits


def test_twenty_five_thousand_are_refused_with_the_largest_count_that_fits() -> None:
    budget = plan_bytes(kimi(25_000))
    assert size_text(budget.hidden_bytes) == "5.73 TB (5.22 TiB)"
    assert not budget.fits
    text = "\n".join(explain(budget))
    assert "Does not fit" in text
    assert f"{budget.largest_samples:,}" in text
    assert f"{budget.largest_samples:,}" in headline(budget)


def test_the_largest_count_is_exact() -> None:
    largest = plan_bytes(kimi(25_000)).largest_samples
    assert plan_bytes(kimi(largest)).fits
    assert not plan_bytes(kimi(largest + 1)).fits


def test_tokens_beyond_the_training_length_cost_nothing_in_shards() -> None:
    whole, cut = plan_bytes(kimi(10_000)), plan_bytes(kimi(10_000, length=2048))
    assert cut.hidden_bytes == 10_000 * 2048 * 57_344
    assert cut.tokens == whole.tokens
    assert plan_bytes(kimi(10_000, length=8192)).hidden_bytes == whole.hidden_bytes


def test_the_length_that_is_offered_fits() -> None:
    refused = plan_bytes(kimi(25_000))
    option = next(part for part in "\n".join(explain(refused)).split("; or ") if "extract.length" in part)
    length = int(option.split("cut at ")[1].split(" ")[0].replace(",", ""))
    assert plan_bytes(kimi(25_000, length=length, mean_tokens=length)).fits


def test_reserve_and_checkpoints_come_off_the_volume() -> None:
    budget = plan_bytes(kimi(10_000))
    assert budget.need_bytes == sum(item.bytes for item in budget.items)
    assert {item.name for item in budget.items} >= {"hidden states", "checkpoints", "reserve"}
    full = plan_bytes(kimi(10_000, free_bytes=budget.need_bytes))
    assert full.fits
    assert not plan_bytes(kimi(10_000, free_bytes=budget.need_bytes - 1)).fits


def test_nothing_fits_a_full_volume() -> None:
    budget = plan_bytes(kimi(10, free_bytes=0))
    assert not budget.fits
    assert budget.largest_samples == 0


@pytest.mark.parametrize("changes", [{"samples": 0}, {"mean_tokens": 0}, {"capacity_bytes": 0}])
def test_counts_that_mean_nothing_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(GeometryError, match="needs at least"):
        plan_bytes(kimi(**{"samples": 1, **changes}))  # type: ignore[arg-type]


def test_llama_8b_drafter_has_the_parameters_that_specforge_trains(llama_8b: dict[str, Any], tmp_path: Path) -> None:
    """424.7 M trained parameters at a draft vocabulary of 32,000, as SpecForge reports for this geometry."""
    (tmp_path / "config.json").write_text(json.dumps(llama_8b))
    geometry = read_geometry(tmp_path)
    assert geometry.drafter_parameters(32_000) / 1e6 == pytest.approx(424.7, abs=0.1)
    assert geometry.aux_layers == (2, 16, 29)


def test_text_config_is_read_where_the_text_model_is_nested(llama_8b: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "kimi_k25", "text_config": llama_8b}))
    assert read_geometry(tmp_path) == read_geometry(tmp_path / "config.json")
    assert read_geometry(tmp_path).hidden_size == 4096


def test_defaults_of_absent_keys_are_those_of_the_field(llama_8b: dict[str, Any], tmp_path: Path) -> None:
    few = {key: llama_8b[key] for key in ("hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads")}
    (tmp_path / "config.json").write_text(json.dumps(few))
    geometry = read_geometry(tmp_path)
    assert geometry.heads == Heads(32, 32, 128)


@pytest.mark.parametrize(
    ("text", "named"),
    [("", "can't be read"), ("[1]", "no JSON object"), ('{"hidden_size": "7168"}', "hidden_size is '7168'")],
)
def test_a_broken_config_names_file_and_key(tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(GeometryError, match=r"config\.json") as caught:
        read_geometry(tmp_path)
    assert named in str(caught.value)
    assert caught.value.remedy


def test_a_missing_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(GeometryError, match=r"There is no .*config\.json"):
        read_geometry(tmp_path / "nowhere")
