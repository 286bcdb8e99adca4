"""What a run is going to need of its volume: its plan, its prompts and what it has measured so far, as a budget.

Standard library only (Python >= 3.9); imports pipeline.budget, pipeline.fate, pipeline.volume and their neighbours.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import cast

from pipeline.budget import TEXT_BYTES, WRITERS, Budget, BudgetRequest, plan_bytes
from pipeline.config import ExtractParams, GenerateParams, TrainParams, VocabParams
from pipeline.counts import counted
from pipeline.fate import ANEW, AS_PLANNED, CONTINUED, KEPT, Fate, Intent, fates
from pipeline.geometry import GeometryError, read_geometry
from pipeline.hostpath import host_path
from pipeline.rundir import Output, RunDir
from pipeline.rundir.lineage import holder_of
from pipeline.volume import space, tree_bytes, volume_of

ENOUGH = 20
"""Samples from which their mean length is believed."""


def check_run(run: RunDir, intent: Intent = AS_PLANNED) -> Budget:
    """The budget of a run as it stands. Raises GeometryError, OSError or pipeline.rundir.RunError."""
    return plan_bytes(request_of_run(run, intent))


def request_of_run(run: RunDir, intent: Intent = AS_PLANNED) -> BudgetRequest:
    """The budget request of a run: what is still to be written by its plan, and the volume as it is now.

    What the run has already written to outputs that go on is not needed twice; an output that is kept, borrowed or
    left behind by a restart needs nothing and offers nothing. Raises GeometryError, OSError, RunError.
    """
    plan = run.plan()
    extract = cast(ExtractParams, plan.stages["extract"].params)
    vocab = cast(VocabParams, plan.stages["vocab"].params)
    train = cast(TrainParams, plan.stages["train"].params)
    fate_of = fates(run, plan, intent)
    ahead = {name: fate for name, fate in fate_of.items() if name in WRITERS and fate.kind != KEPT}
    seen = space(volume_of(run, plan))
    samples, mean, basis = _samples(run, extract.length, fate_of)
    written = {
        name: tree_bytes(run.stage(name).output(fate.output).path)
        for name, fate in ahead.items()
        if fate.kind == CONTINUED and fate.output in run.stage(name).outputs()
    }
    return BudgetRequest(
        geometry=read_geometry(host_path(plan.verifier.path, run.path)),
        samples=samples,
        mean_tokens=mean,
        capacity_bytes=seen.capacity,
        free_bytes=seen.free,
        reserve_bytes=plan.volume.reserve_bytes,
        length=extract.length,
        draft_vocab=vocab.size,
        checkpoints=train.keep_checkpoints + 1,
        basis=basis,
        stages=frozenset(ahead),
        written=written,
    )


def _samples(run: RunDir, length: int, fate_of: Mapping[str, Fate]) -> tuple[int, float, str]:
    """(samples, mean tokens, basis) of the output of generate that counts, a lender's under the lender's plan.

    Tokens a sample come from its counts once it has 20 samples; until then from generate.expected_tokens, and without
    that every sample is taken to fill the length. Samples that nobody is going to add to are as many as there are.
    """
    holder, plan = holder_of(run, "generate")
    params = cast(GenerateParams, plan.stages["generate"].params)
    output = holder.current()
    report = (output.report() if output else None) or {}
    counts = report.get("counts") or counted(holder, output.number if output else None).get("counts") or {}
    done = int(counts.get("samples", 0))
    if done >= ENOUGH or (done and report):
        mean, basis = counts.get("tokens", 0) / done, "measured"
    elif params.expected_tokens:
        mean, basis = float(params.expected_tokens), "expected"
    else:
        mean, basis = float(length), "worst case"
    generate = fate_of["generate"].kind
    final = done and output is not None and report and (generate == KEPT or _met(output, params))
    if final or (generate == KEPT and fate_of["extract"].kind == KEPT):
        return done, mean, basis
    there = 0 if generate == ANEW else done
    return max(there, samples_ahead(params, mean, holder.run.path)), mean, basis


def samples_ahead(params: GenerateParams, mean_tokens: float, run: Path) -> int:
    """How many samples generate makes at most: its targets, and the lines of its prompts file where that can be read.

    `run` is the folder of the run, where a relative path lies. Raises GeometryError when nothing bounds them.
    """
    bounds = [params.max_samples] if params.max_samples else []
    if params.token_budget:
        bounds.append(math.ceil(params.token_budget / mean_tokens))
    if params.byte_budget:
        bounds.append(math.ceil(params.byte_budget / (mean_tokens * TEXT_BYTES)))
    prompts = host_path(params.prompts, run) if params.prompts else None
    lines = prompt_lines(prompts) if prompts else 0
    if lines:
        bounds.append(lines)
    if not bounds:
        raise GeometryError(
            f"How many samples there will be is not known: generate.max_samples is 0 (all prompts) and "
            f"{prompts or 'generate.prompts'} can't be read.",
            "Put the prompts there, or set generate.max_samples.",
        )
    return max(1, min(bounds))


def prompt_lines(path: Path) -> int:
    """Lines of a prompts file that are not blank; 0 where it can't be read. A file is counted again once it changed."""
    try:
        found = os.stat(path)
        return _lines(str(path), found.st_size, found.st_mtime_ns)
    except OSError:
        return 0


@lru_cache(maxsize=8)
def _lines(path: str, size: int, changed_ns: int) -> int:
    with open(path, "rb") as file:
        return sum(1 for line in file if not line.isspace())


def _met(output: Output, params: GenerateParams) -> bool:
    """Whether a finished output of generate was made for the targets that the plan has now."""
    made = output.params()
    targets = ("prompts", "max_samples", "token_budget", "byte_budget")
    return all(name not in made or made[name] == getattr(params, name) for name in targets)
