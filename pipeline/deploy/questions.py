"""The prompts deploy measures on: a file of the plan, or the validation split of the run's own samples.

Imports pipeline.prompts and pipeline.rundir; no torch.
"""

from __future__ import annotations

from pathlib import Path

from pipeline.deploy.client import Question
from pipeline.failure import StageError
from pipeline.prompts import PromptError, index_prompts
from pipeline.rundir import iter_jsonl
from pipeline.train.split import split


def from_file(path: Path, count: int) -> list[Question]:
    """The first `count` prompts of a file. Raises StageError."""
    try:
        index = index_prompts(path)
        reader = index.open()
        try:
            prompts = [reader.read(position) for position in range(min(count, len(index)))]
        finally:
            reader.close()
    except PromptError as error:
        raise StageError(error.message.rstrip("."), error.remedy.rstrip(".").replace("generate.", "deploy.")) from None
    return [Question(prompt.id, prompt.messages, prompt.tools) for prompt in prompts]


def from_samples(samples: Path, fraction: float, count: int) -> list[Question]:
    """Up to `count` samples that training did not see: the same split by id. Raises StageError without one."""
    ids = [str(row["id"]) for row, _ in iter_jsonl(samples)]
    chosen = {ids[number] for number in split(ids, fraction)[1][:count]}
    found = [
        Question(str(row["id"]), tuple(row["messages"]), tuple(row.get("tools", ())))
        for row, _ in iter_jsonl(samples)
        if row["id"] in chosen
    ]
    if not found:
        raise StageError("No sample was held out from training", "Name a file of prompts in deploy.prompts")
    return found
