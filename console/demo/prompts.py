"""The demo's prompt files: one to generate from, one held out for measuring the drafter."""

from __future__ import annotations

import json
from pathlib import Path

from console.demo.settings import Choice
from pipeline.verifier import instructions, tasks

SEED = 1
_SOURCES = {"tasks": tasks.prompts, "instructions": instructions.prompts}


def write_prompts(folder: Path, choice: Choice) -> list[Path]:
    """JSONL files RUN-train.jsonl and RUN-held-out.jsonl in `folder`; rows {"id", "prompt"}."""
    counts = {"train": choice.samples, "held-out": int(str(choice.recipe.stages["deploy"]["samples"]))}
    written = []
    for space, count in counts.items():
        path = folder / f"{choice.run}-{space}.jsonl"
        rows = _SOURCES[choice.recipe.prompts](SEED, count, space)
        path.write_text("".join(json.dumps({"id": row["id"], "prompt": row["prompt"]}) + "\n" for row in rows), "utf-8")
        written.append(path)
    return written
