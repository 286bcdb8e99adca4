"""Is the drafter more than a table of frequent sequences? It against n-gram drafters fitted on the same samples.

    python -m benchmarks.ngram --run DIR [--json] [--k 3]

Rivals: a back-off n-gram model (the longest context seen in training decides) of every order up to 12; prompt lookup
(the continuation of the latest earlier occurrence of the last tokens, as vLLM's ngram method); and both together.
Each rival's settings are chosen on the validation split. Every rival then walks deploy's held-out answers exactly as
an engine would verify its drafts; the drafter's figure is the one the engine measured on the same answers.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config import TrainParams
from pipeline.rundir import RunDir, RunError, iter_jsonl, read_json
from pipeline.train.rows import serving_walk
from pipeline.train.split import split

ORDERS = range(2, 13)
LOOKUPS = range(1, 7)

Draft = Callable[[Sequence[int], int], list[int]]
"""Tokens so far, and how many to draft -> drafts (fewer where it knows nothing)."""


@dataclass(frozen=True)
class Answered:
    """One prompt with its greedy or sampled answer; cut: the answer was cut by length."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    cut: bool


@dataclass(frozen=True)
class Score:
    """What a drafter reaches on some answers. rate_by_position: share of verifications that accepted position i."""

    name: str
    acceptance_length: float
    rate_by_position: list[float]


class NGram:
    """Back-off: the longest context of at most order-1 tokens that was seen decides, by its most frequent follower."""

    def __init__(self, samples: Sequence[Answered], order: int) -> None:
        counts: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for sample in samples:
            tokens = sample.prompt + sample.answer
            for place in range(len(sample.prompt), len(tokens)):
                for size in range(min(order - 1, place) + 1):
                    counts[tokens[place - size : place]][tokens[place]] += 1
        # the lower id on a tie, so that the order of the samples does not matter
        self.order = order
        self.best = {context: min(found, key=lambda t: (-found[t], t)) for context, found in counts.items()}

    def draft(self, tokens: Sequence[int], count: int) -> list[int]:
        recent = tuple(tokens[max(0, len(tokens) - self.order + 1) :])
        drafts: list[int] = []
        for _ in range(count):
            context = recent
            while context not in self.best and context:
                context = context[1:]
            if context not in self.best:
                break
            drafts.append(self.best[context])
            recent = (*recent, drafts[-1])[-(self.order - 1) :]
        return drafts


def prompt_lookup(longest: int, shortest: int = 1) -> Draft:
    """Drafts what followed the latest earlier occurrence of the last `longest` … `shortest` tokens."""

    def draft(tokens: Sequence[int], count: int) -> list[int]:
        for size in range(longest, shortest - 1, -1):
            tail = tuple(tokens[-size:])
            for start in range(len(tokens) - size - 1, -1, -1):
                if tuple(tokens[start : start + size]) == tail:
                    return list(tokens[start + size : start + size + count])
        return []

    return draft


def together(first: Draft, second: Draft) -> Draft:
    """The first drafter where it has anything to say, else the second."""
    return lambda tokens, count: first(tokens, count) or second(tokens, count)


def score(name: str, draft: Draft, answers: Sequence[Answered], k: int) -> Score:
    """Walks the answers as an engine does: drafts from the true tokens so far, accepts the leading matches."""
    rounds, accepted = 0, np.zeros(k, dtype=np.int64)
    for one in answers:
        tokens = one.prompt + one.answer
        hits = np.zeros((len(tokens), k), dtype=bool)
        for slot in range(len(one.prompt) - 1, len(tokens) - 2):
            for place, token in enumerate(draft(tokens[: slot + 2], k)):
                if slot + 2 + place >= len(tokens) or token != tokens[slot + 2 + place]:
                    break
                hits[slot, place] = True
        generated = np.array([False] * len(one.prompt) + [True] * len(one.answer))
        count, by_position = serving_walk(hits, generated, one.cut)
        rounds += count
        accepted += by_position
    if not rounds:
        raise RunError("No answer is long enough to draft for", "Measure with longer answers")
    return Score(name, 1.0 + float(accepted.sum()) / rounds, [float(one) / rounds for one in accepted])


def rivals(fit: Sequence[Answered], choose: Sequence[Answered], k: int) -> list[tuple[str, Draft]]:
    """The best of each kind, chosen on answers that are neither fitted nor scored."""

    def best(found: dict[str, Draft]) -> tuple[str, Draft]:
        name = max(found, key=lambda one: score(one, found[one], choose, k).acceptance_length)
        return name, found[name]

    ngram = best({f"n-gram, order {order}": NGram(fit, order).draft for order in ORDERS})
    lookup = best({f"prompt lookup, {size} tokens": prompt_lookup(size) for size in LOOKUPS})
    both = best(
        {f"prompt lookup of {size}, then {ngram[0]}": together(prompt_lookup(size, size), ngram[1]) for size in LOOKUPS}
    )
    return [ngram, lookup, both]


def read_samples(run: RunDir) -> tuple[list[Answered], list[Answered]]:
    """(training, validation) samples of a run, by the split that train used."""
    outputs = {name: run.stage(name).current() for name in ("generate", "train")}
    generated, trained = outputs["generate"], outputs["train"]
    if generated is None or trained is None:
        raise RunError(f"{run.name} has no samples or no drafter yet", "Run it through deploy first")
    rows = [row for row, _ in iter_jsonl(generated.path / "samples.jsonl")]
    samples = [Answered(tuple(r["prompt_ids"]), tuple(r["output_ids"]), r["finish_reason"] == "length") for r in rows]
    fraction = TrainParams(**trained.params()).val_fraction
    training, validation = split([str(row["id"]) for row in rows], fraction)
    return [samples[number] for number in training], [samples[number] for number in validation]


def benchmark(run: RunDir) -> dict[str, Any]:
    """The table as JSON values. Raises RunError when the run is not through deploy."""
    output = run.stage("deploy").current()
    report = output.report() if output is not None else None
    measured = read_json(output.path / "drafted.json") if output is not None else None
    if report is None or measured is None:
        raise RunError(f"{run.name} has no finished deploy", "Run it through deploy first")
    if report["k"] is None or report["acceptance_length"] is None:
        raise RunError(f"deploy of {run.name} could not tell k or acceptance", "Measure in an engine with metrics")
    held = [
        Answered(tuple(one["prompt_ids"]), tuple(one["output_ids"]), one["finish_reason"] == "length")
        for one in measured["answers"]
    ]
    training, validation = read_samples(run)
    k = int(report["k"])
    scores = [score(name, draft, held, k) for name, draft in rivals(training, validation, k)]
    strongest = max(scores, key=lambda one: one.acceptance_length)
    return {
        "run": run.name,
        "k": k,
        "fitted_on": len(training),
        "held_out": len(held),
        "tokens": sum(len(one.answer) for one in held),
        "rivals": [asdict(one) for one in scores],
        "drafter": {
            "acceptance_length": report["acceptance_length"],
            "rate_by_position": report["rate_by_position"],
        },
        "margin": report["acceptance_length"] - strongest.acceptance_length,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ngram", description=__doc__.split("\n")[0])
    parser.add_argument("--run", type=Path, required=True, metavar="DIR", help="a run that is through deploy")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args(argv)
    try:
        found = benchmark(RunDir.open(options.run))
    except RunError as error:
        print(f"ngram: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(found))
        return 0
    print(
        f"{found['held_out']} held-out answers, {found['tokens']} tokens, k = {found['k']}; "
        f"rivals fitted on {found['fitted_on']} samples"
    )
    for row in [*found["rivals"], {"name": "EAGLE-3 drafter", **found["drafter"]}]:
        rates = " ".join(f"{rate:.3f}" for rate in row["rate_by_position"])
        print(f"{row['name']:52} {row['acceptance_length']:.3f}   {rates}")
    print(f"the drafter is {found['margin']:+.3f} from the best rival")
    return 0


if __name__ == "__main__":
    sys.exit(main())
