"""The plan as a list, and what a change of it does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from console.screens.plan_list import list_lines, matching
from console.screens.plan_rows import FIRST, budget_words, effect_of, plan_rows
from console.widgets.ink import text_of, width_of
from pipeline.config import STAGES, Plan, ServicePlan, set_value
from pipeline.fields import ConfigError

PLAN = set_value(Plan(revision=3), "generate.max_samples", 25_000)


def test_every_parameter_can_be_set_to_what_the_list_shows() -> None:
    rows = plan_rows(PLAN)
    assert len({row.key for row in rows}) == len(rows)
    assert {row.key.partition(".")[0] for row in rows} == {"through", "verifier", "volume", *STAGES}
    for row in rows:
        assert set_value(PLAN, row.key, row.raw) == PLAN, row.key


def test_services_are_listed_too() -> None:
    service = ServicePlan(command=("vllm", "serve", "{verifier}"), port=8001)
    plan = Plan.from_json(
        {**PLAN.to_json(), "services": {"vllm": Plan(services={"v": service}).to_json()["services"]["v"]}}
    )
    shown = {row.key: row.shown for row in plan_rows(plan)}
    assert shown["services.vllm.port"] == "8,001"
    assert shown["services.vllm.command"] == "vllm serve {verifier}"


def test_values_read_well() -> None:
    shown = {row.key: row.shown for row in plan_rows(PLAN)}
    assert shown[FIRST] == "25,000"
    assert shown["extract.shard_bytes"] == "2 GB"
    assert shown["generate.prompts"] == "—"
    assert shown["train.gpus"] == "all"
    assert shown["verifier.reasoning"] == "found out"


def test_a_bar_says_how_much_of_the_list_is_on_show_and_where() -> None:
    rows = plan_rows(PLAN)

    def bar(top: int, height: int = 12) -> str:
        lines = list_lines(rows, top, top, {}, True, 60, height)
        assert {width_of(line) for line in lines} == {60}
        return "".join(text_of(line)[-1] for line in lines)

    last = len(rows) - 12
    assert bar(0).startswith("┃")
    assert bar(0).endswith("│")
    assert bar(1).startswith("│")
    assert bar(last - 1).endswith("│")
    assert bar(last).endswith("┃")
    assert {bar(top).count("┃") for top in range(last + 1)} == {bar(0).count("┃")}
    assert "┃" not in "".join(text_of(line) for line in list_lines(rows, 0, 0, {}, True, 60, len(rows)))


def test_keys_are_found_by_their_words_and_then_by_what_they_mean() -> None:
    rows = plan_rows(PLAN)
    assert [row.key for row in matching(rows, "train lr")] == ["train.lr"]
    assert [row.key for row in matching(rows, "LEARNING rate")] == ["train.lr", "train.warmup_ratio"]
    assert matching(rows, "") == rows
    assert matching(rows, "no such thing") == []


def test_one_edit_takes_the_target_down(scenes: Any) -> None:
    effect = effect_of(PLAN, {FIRST: "10000"}, scenes.stages())
    assert Plan.from_json(dict(effect.plan)).params("generate").max_samples == 10_000  # type: ignore[union-attr]
    assert effect.stale == ()
    assert effect.live == ()


def test_a_running_stage_takes_up_a_live_parameter(scenes: Any) -> None:
    effect = effect_of(PLAN, {FIRST: "10000"}, scenes.stages("RUNNING"))
    assert effect.live == (FIRST,)
    assert effect.stale == ()


def test_an_unfinished_output_goes_on_to_another_target_and_to_nothing_else(scenes: Any) -> None:
    stopped = scenes.stages("STOPPED")
    resumable = (replace(stopped[0], resumable=True), *stopped[1:])
    assert effect_of(PLAN, {FIRST: "10000"}, resumable).stale == ()
    assert effect_of(PLAN, {FIRST: "10000", "generate.max_tokens": "9"}, resumable).stale == ("generate",)
    assert effect_of(PLAN, {FIRST: "10000"}, stopped).stale == ("generate",)


def test_what_is_done_becomes_stale_with_all_that_depends_on_it(scenes: Any) -> None:
    done = scenes.stages("DONE", "DONE", "DONE", "DONE")
    assert effect_of(PLAN, {"vocab.size": "16000"}, done).stale == ("vocab", "train")
    assert effect_of(PLAN, {FIRST: "10000"}, done).stale == ("generate", "extract", "vocab", "train")
    assert effect_of(PLAN, {"train.lr": "3e-5"}, done).stale == ("train",)
    assert effect_of(PLAN, {"extract.from_run": "other/extract"}, done).stale == ("extract", "train")


def test_how_it_is_done_makes_nothing_stale(scenes: Any) -> None:
    done = scenes.stages("DONE", "DONE", "DONE", "DONE")
    changes = {"generate.concurrency": "64", "train.threads": "2", "train.grace_s": "90"}
    assert effect_of(PLAN, changes, done).stale == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({FIRST: "many"}, "generate.max_samples"),
        ({FIRST: "-5"}, "at least 0"),
        ({"through": "vocabulary"}, "vocab"),
        ({"train.length": "4096"}, "extract.length"),
    ],
)
def test_a_refused_value_names_what_is_allowed(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        effect_of(PLAN, changes, ())
    assert words in str(refused.value)


def test_two_changes_may_only_hold_together() -> None:
    effect = effect_of(PLAN, {"train.length": "4096", "extract.length": "4096"}, ())
    assert Plan.from_json(dict(effect.plan)).params("train").length == 4096  # type: ignore[union-attr]


def test_the_list_marks_the_cursor_and_the_changes() -> None:
    rows = plan_rows(PLAN)
    place = next(index for index, row in enumerate(rows) if row.key == FIRST)
    lines = list_lines(rows, place + 1, place, {FIRST: "10,000"}, True, 60, 3)
    assert [width_of(line) for line in lines] == [60, 60, 60]
    assert text_of(lines[0]).rstrip(" ┃│") == "•generate.max_samples         25,000 → 10,000"
    assert {role for _, role in lines[1][:-2]} == {"cursor"}


def test_budgets_in_words() -> None:
    assert budget_words(2.29e12, 2.89e12) == "2.29 TB needed, 2.89 TB available"
    assert budget_words(None, 1.0) == ""
