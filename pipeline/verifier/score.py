"""Scores the bundled verifier: `python -m pipeline.verifier.score`. Imports torch through pipeline.engine.

Greedy answers to held-out prompts, decoded by the bundled engine's batch. An answer counts if it is well-formed
(reasoning, one `</think>`, an answer, `<|im_end|>`) and the task's own checker accepts it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.engine.batch import Batch
from pipeline.engine.loading import Verifier, load
from pipeline.engine.row import Row, Sampling
from pipeline.verifier import bundled_path
from pipeline.verifier.families import Task
from pipeline.verifier.tasks import tasks
from pipeline.verifier.template import render

SEED = 2
_LONGEST = 400
_TOGETHER = 64


@dataclass(frozen=True)
class Score:
    """One task's answer: whether it is well-formed, whether it is right as well, and its tokens."""

    task: Task
    well_formed: bool
    right: bool
    tokens: int
    text: str


def score(verifier: Verifier, chosen: Sequence[Task]) -> list[Score]:
    """Answers the tasks greedily and judges the answers."""
    rows: list[Row] = []
    for task in chosen:
        prompt = render([{"role": "user", "content": task.prompt}])
        ids = verifier.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        rows.append(Row(ids, _LONGEST, Sampling(temperature=0.0)))
    batch, waiting = Batch(verifier), list(rows)
    while waiting or batch.rows:
        room = _TOGETHER - len(batch.rows)
        if room and waiting:
            batch.join(waiting[:room])
            waiting = waiting[room:]
        else:
            batch.step()
        batch.leave()
    return [_judge(verifier, task, row) for task, row in zip(chosen, rows)]


def _judge(verifier: Verifier, task: Task, row: Row) -> Score:
    ids, end = row.output_ids, verifier.end_think_id
    assert end is not None
    well_formed = row.finish_reason == "stop" and ids.count(end) == 1 and 0 < ids.index(end) < len(ids) - 2
    content = verifier.decode(ids[ids.index(end) + 1 :]) if well_formed else ""
    text = str(verifier.tokenizer.decode(ids))
    return Score(task, well_formed, well_formed and task.check(content), len(ids), text)


def table(scores: Sequence[Score]) -> str:
    """Counts by family and in all, as a Markdown table."""
    lines = ["| family | prompts | well-formed | right | mean tokens |", "| --- | --- | --- | --- | --- |"]
    families = sorted({one.task.family for one in scores})
    for name in [*families, "all"]:
        part = [one for one in scores if name in (one.task.family, "all")]
        well, right = sum(one.well_formed for one in part), sum(one.right for one in part)
        tokens = sum(one.tokens for one in part) / len(part)
        lines.append(f"| {name} | {len(part)} | {well / len(part):.1%} | {right / len(part):.1%} | {tokens:.0f} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m pipeline.verifier.score", description="Score a verifier.")
    parser.add_argument("--model", type=Path, default=bundled_path())
    parser.add_argument("--count", type=int, default=1800, help="held-out prompts")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--wrong", action="store_true", help="print the answers that are not right")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    options = parser.parse_args()
    verifier = load(options.model, options.model.name, "float32", "kimi")
    scores = score(verifier, list(tasks(options.seed, options.count, "held-out")))
    if options.wrong:
        for one in scores:
            if not one.right:
                print(f"{one.task.family}: {one.task.prompt}\n  said {one.text}\n  want {one.task.answer}")
    if options.json:
        count = len(scores)
        shares = {name: sum(getattr(one, name) for one in scores) / count for name in ("well_formed", "right")}
        print(json.dumps({"prompts": count, **shares, "mean_tokens": sum(one.tokens for one in scores) / count}))
    else:
        print(table(scores))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
