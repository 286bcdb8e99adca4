"""Prompt files: `python -m pipeline.verifier.prompts --count N --seed S --out FILE`. Standard library only.

JSON lines of {"id", "prompt"}: tasks for the bundled verifier, or instructions for a general chat model. Prompts of
the held-out space never occur in the training space, whatever the seeds.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from pipeline.verifier import instructions, tasks
from pipeline.verifier.tasks import SPACES

KINDS = {"tasks": tasks.prompts, "instructions": instructions.prompts}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m pipeline.verifier.prompts", description="Write a prompts file.")
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--space", choices=SPACES, default="train", help="train, or held out from all training")
    parser.add_argument("--kind", choices=tuple(KINDS), default="tasks")
    options = parser.parse_args()
    rows = KINDS[options.kind](options.seed, options.count, options.space)
    text = "".join(json.dumps({"id": row["id"], "prompt": row["prompt"]}, ensure_ascii=False) + "\n" for row in rows)
    try:
        options.out.write_text(text, "utf-8")
    except OSError as error:
        print(f"{options.out} can't be written: {error.strerror}. Name another --out.", file=sys.stderr)
        return 1
    print(f"{len(rows)} prompts in {options.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
