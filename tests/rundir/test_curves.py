"""Curves across attempts: cut where the next attempt took up, torn tails ignored, streamed."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import Plan
from pipeline.rundir import Attempt, RunDir, StageDir, iter_metrics, joined_metrics

Begin = Callable[..., Attempt]


def attempts_of(run: RunDir, name: str = "generate") -> Iterator[Path]:
    """Folders of new attempts on output 1, as plain files."""
    stage = run.stage(name).make()
    (stage.path / "out" / "0001").mkdir(parents=True, exist_ok=True)
    number = 0
    while True:
        number += 1
        folder = stage.path / "attempts" / f"{number:04d}"
        folder.mkdir(parents=True)
        (folder / "spec.json").write_text('{"output": 1}')
        yield folder


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def joined(stage: StageDir) -> list[dict[str, Any]]:
    return joined_metrics(stage, stage.output(1))


def test_cut_at_the_resumed_step(run: RunDir) -> None:
    attempt = attempts_of(run)
    first = [{"step": step, "a": 1} for step in (10, 20, 30, 40)]
    (next(attempt) / "metrics.jsonl").write_text(lines(first))
    second = [{"resume_step": 20}, {"step": 30, "a": 2}, {"step": 40, "a": 2}, {"step": 50, "a": 2}]
    (next(attempt) / "metrics.jsonl").write_text(lines(second))
    assert [(row["step"], row["a"]) for row in joined(run.stage("generate"))] == [
        (10, 1), (20, 1), (30, 2), (40, 2), (50, 2),
    ]  # fmt: skip


def test_going_back_behind_an_earlier_resume_cuts_both(run: RunDir) -> None:
    attempt = attempts_of(run)
    (next(attempt) / "metrics.jsonl").write_text(lines([{"step": step, "a": 1} for step in (1, 2, 3, 4)]))
    (next(attempt) / "metrics.jsonl").write_text(lines([{"resume_step": 3}, {"step": 4, "a": 2}, {"step": 5, "a": 2}]))
    (next(attempt) / "metrics.jsonl").write_text(lines([{"resume_step": 1}, {"step": 2, "a": 3}]))
    assert [(row["step"], row["a"]) for row in joined(run.stage("generate"))] == [(1, 1), (2, 3)]


def test_an_attempt_that_wrote_nothing_cuts_nothing(run: RunDir) -> None:
    attempt = attempts_of(run)
    (next(attempt) / "metrics.jsonl").write_text(lines([{"step": 1}, {"step": 2}]))
    next(attempt)
    (next(attempt) / "metrics.jsonl").write_text('{"resume_step": 1')
    assert [row["step"] for row in joined(run.stage("generate"))] == [1, 2]


def test_an_attempt_that_does_not_say_where_it_resumed_replaces_what_it_does_again(run: RunDir) -> None:
    attempt = attempts_of(run)
    (next(attempt) / "metrics.jsonl").write_text(lines([{"step": 1, "a": 1}, {"step": 2, "a": 1}, {"step": 3, "a": 1}]))
    (next(attempt) / "metrics.jsonl").write_text(lines([{"step": 2, "a": 2}]))
    assert [(row["step"], row["a"]) for row in joined(run.stage("generate"))] == [(1, 1), (2, 2)]


def test_torn_tails_broken_lines_and_rows_without_a_step_are_passed_over(run: RunDir) -> None:
    attempt = attempts_of(run)
    text = lines([{"step": 1, "a": 1}, {"note": "x"}]) + "garbage\n[1]\n" + lines([{"step": 2, "a": 1}]) + '{"step": 3'
    (next(attempt) / "metrics.jsonl").write_text(text)
    assert [row["step"] for row in joined(run.stage("generate"))] == [1, 2]


def test_rows_of_the_same_step_are_all_kept(run: RunDir) -> None:
    (next(attempts_of(run)) / "metrics.jsonl").write_text(
        lines([{"step": 5, "train/loss": 1}, {"step": 5, "val/loss": 2}])
    )
    assert joined(run.stage("generate")) == [{"step": 5, "train/loss": 1}, {"step": 5, "val/loss": 2}]


def test_only_the_attempts_of_the_output(run: RunDir, begin: Begin) -> None:
    stage = run.stage("generate")
    for restart in (False, True):
        attempt = begin(stage, restart=restart)
        (attempt.output().path / "data").write_text("x")
        (attempt.path / "metrics.jsonl").write_text(lines([{"step": 1, "output": attempt.output().number}]))
    assert joined_metrics(stage, stage.output(1)) == [{"step": 1, "output": 1}]
    assert joined_metrics(stage, stage.output(2)) == [{"step": 1, "output": 2}]


session = st.fixed_dictionaries(
    {
        "back": st.integers(0, 6),
        "steps": st.integers(0, 8),
        "stride": st.integers(1, 3),
        "tail": st.sampled_from(["", '{"step": 9', '{"t": 1, "step": 5, "x"', "\x00\x00"]),
        "says": st.booleans(),
    }
)


@settings(deadline=None, max_examples=150)
@given(sessions=st.lists(session, min_size=1, max_size=6))
def test_any_history_of_crashes_and_resumes_gives_the_curve_that_counts(
    fresh: Callable[[], Path], sessions: list[dict[str, Any]]
) -> None:
    run = RunDir.create(fresh(), "one", Plan())
    truth: list[dict[str, Any]] = []
    for number, (plan, folder) in enumerate(zip(sessions, attempts_of(run), strict=False)):
        last = truth[-1]["step"] if truth else 0
        resumed = max(0, last - plan["back"]) if number else 0
        rows = [{"step": resumed + plan["stride"] * (i + 1), "by": number} for i in range(plan["steps"])]
        # an attempt says where it resumed unless it was killed before it could
        head = [{"resume_step": resumed}] if number and (rows or plan["says"]) else []
        if head or rows:
            truth = [row for row in truth if row["step"] <= resumed] if number else truth
        truth += rows
        (folder / "metrics.jsonl").write_text(lines(head + rows) + plan["tail"])
    assert joined(run.stage("generate")) == truth


def test_a_long_curve_is_streamed(run: RunDir) -> None:
    attempt = attempts_of(run)
    for number in range(2):
        rows: list[dict[str, float]] = [] if number == 0 else [{"resume_step": 60_000}]
        start = 60_000 * number
        rows += [{"step": start + i, "train/loss": 1.0, "train/acc_0": 0.5, "lr": 1e-4} for i in range(1, 60_001)]
        (next(attempt) / "metrics.jsonl").write_text(lines(rows))
    stage = run.stage("generate")
    tracemalloc.start()
    count = sum(1 for _ in iter_metrics(stage, stage.output(1)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 120_000
    assert peak < 2_000_000
