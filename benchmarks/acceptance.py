"""What a drafter is worth by draft length and by requests in flight, in the bundled decoder.

    python -m benchmarks.acceptance --run DIR [--k 1,2,3,5] [--batch 1,16] [--threads N] [--json]

Takes the exported drafter and the held-out prompts of a run that is through deploy, decodes them greedily in fp32
without and with the drafter, and gives acceptance length and tokens/s. Verification costs compute, so a drafter pays
most with few requests in flight.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.failure import StageError
from pipeline.hostpath import host_path
from pipeline.rundir import RunDir, RunError, read_json


def decode(model: Any, drafter: Path, k: int, prompts: Sequence[list[int]], limit: int, batch: int) -> dict[str, Any]:
    """Acceptance length, rate by position and tokens/s of speculative decoding in batches."""
    from pipeline.engine.speculative import SpeculativeDecoder

    decoder = SpeculativeDecoder(model, drafter, k)
    stop = _end_tokens(model)
    decoder.generate(prompts[:1], [4], stop)
    decoder.counters.drafts = decoder.counters.accepted = 0
    decoder.counters.accepted_per_pos = [0] * k
    start, tokens = time.perf_counter(), 0
    for first in range(0, len(prompts), batch):
        part = prompts[first : first + batch]
        tokens += sum(len(one.ids) for one in decoder.generate(part, [limit] * len(part), stop))
    seconds, counters = time.perf_counter() - start, decoder.counters
    return {
        "k": k,
        "batch": batch,
        "acceptance_length": 1 + counters.accepted / max(1, counters.drafts),
        "rate_by_position": [count / max(1, counters.drafts) for count in counters.accepted_per_pos],
        "tokens_per_s": tokens / seconds,
    }


def plain(model: Any, prompts: Sequence[list[int]], limit: int, batch: int) -> float:
    """Tokens/s of transformers' own greedy decoding in batches, padded on the left."""
    import torch

    stop, pad = sorted(_end_tokens(model)), 0
    start, tokens = time.perf_counter(), 0
    for first in range(0, len(prompts), batch):
        part = prompts[first : first + batch]
        width = max(map(len, part))
        ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in part])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in part])
        with torch.inference_mode():
            out = model.generate(
                ids, attention_mask=mask, max_new_tokens=limit, do_sample=False, eos_token_id=stop, pad_token_id=pad
            )
        for row in out[:, width:].tolist():
            ends = [place for place, token in enumerate(row) if token in stop]
            tokens += ends[0] + 1 if ends else len(row)
    return tokens / (time.perf_counter() - start)


def _end_tokens(model: Any) -> set[int]:
    """The end tokens of a loaded verifier, its generation config included."""
    found: set[int] = set()
    for value in (model.config.get_text_config().eos_token_id, model.generation_config.eos_token_id):
        found.update(value if isinstance(value, list) else [] if value is None else [value])
    return found


def benchmark(run: RunDir, ks: Sequence[int], batches: Sequence[int], threads: int) -> dict[str, Any]:
    """The table as JSON values. Raises RunError, StageError."""
    output = run.stage("deploy").current()
    report = output.report() if output is not None else None
    kept = read_json(output.path / "drafted.json") if output is not None else None
    if output is None or report is None or kept is None:
        raise RunError(f"{run.name} has no finished deploy", "Run it through deploy first")
    import torch

    from pipeline.extract.capture import load_verifier

    if threads:
        torch.set_num_threads(threads)
    model = load_verifier(host_path(run.plan().verifier.path, run.path), torch.float32).eval()
    prompts = [list(one["prompt_ids"]) for one in kept["answers"]]
    limit = int(output.params()["max_tokens"])
    rows = []
    for batch in batches:
        speed = plain(model, prompts, limit, batch)
        for k in ks:
            row = decode(model, output.path / report["drafter"], k, prompts, limit, batch)
            rows.append(row | {"plain_tokens_per_s": speed, "speedup": row["tokens_per_s"] / speed})
    return {"run": run.name, "prompts": len(prompts), "max_tokens": limit, "rows": rows}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.acceptance", description=__doc__.split("\n")[0])
    parser.add_argument("--run", type=Path, required=True, metavar="DIR", help="a run that is through deploy")
    parser.add_argument("--k", default="1,2,3,5", help="draft lengths")
    parser.add_argument("--batch", default="1,16", help="requests in flight")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0: what torch chooses")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args(argv)
    try:
        ks, batches = ([int(word) for word in text.split(",")] for text in (options.k, options.batch))
        found = benchmark(RunDir.open(options.run), ks, batches, options.threads)
    except (RunError, StageError, ValueError) as error:
        print(f"acceptance: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(found))
        return 0
    print(f"{found['prompts']} prompts, answers of at most {found['max_tokens']} tokens, fp32")
    print("in flight   k   acceptance   tokens/s   plain   speed-up   rate by position")
    for row in found["rows"]:
        rates = " ".join(f"{rate:.2f}" for rate in row["rate_by_position"])
        print(
            f"{row['batch']:9} {row['k']:3} {row['acceptance_length']:12.3f} {row['tokens_per_s']:10.1f} "
            f"{row['plain_tokens_per_s']:7.1f} {row['speedup']:10.2f}   {rates}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
