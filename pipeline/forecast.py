"""What a run is going to need of its volume: its plan, its prompts and what it has measured so far, as a budget.

Standard library only (Python >= 3.9); imports pipeline.budget, pipeline.geometry, pipeline.config and pipeline.rundir.
"""

from __future__ import annotations

import math
import os
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from pipeline.budget import TEXT_BYTES, Budget, BudgetRequest, default_reserve, plan_bytes
from pipeline.config import ExtractParams, GenerateParams, TrainParams, VocabParams
from pipeline.geometry import GeometryError, read_geometry
from pipeline.rundir import RunDir

ENOUGH = 20
"""Samples from which their mean length is believed."""


def check_run(run: RunDir) -> Budget:
    """The budget of a run as it stands. Raises GeometryError, OSError or pipeline.rundir.RunError."""
    return plan_bytes(request_of_run(run))


def request_of_run(run: RunDir) -> BudgetRequest:
    """The budget request of a run: its plan, what generate has measured, and the volume as it is now.

    Tokens a sample come from generate's counts once it has 20 samples; until then from generate.expected_tokens, and
    without that every sample is taken to fill the length. Bytes that the run has already written are not needed
    twice. Raises GeometryError, OSError.
    """
    plan = run.plan()
    generate = cast(GenerateParams, plan.stages["generate"].params)
    extract = cast(ExtractParams, plan.stages["extract"].params)
    vocab = cast(VocabParams, plan.stages["vocab"].params)
    train = cast(TrainParams, plan.stages["train"].params)
    geometry = read_geometry(plan.verifier.path)
    capacity, free = volume_space(Path(plan.volume.path or run.path), plan.volume.capacity_bytes)
    counts = _generate_counts(run)
    done = int(counts.get("samples", 0))
    if done >= ENOUGH or (done and counts.get("finished")):
        mean, basis = counts.get("tokens", 0) / done, "measured"
    elif generate.expected_tokens:
        mean, basis = float(generate.expected_tokens), "expected"
    else:
        mean, basis = float(extract.length), "worst case"
    return BudgetRequest(
        geometry=geometry,
        samples=done if done and _met(run, generate) else max(done, samples_ahead(generate, mean)),
        mean_tokens=mean,
        capacity_bytes=capacity,
        available_bytes=free + _written(run),
        reserve_bytes=plan.volume.reserve_bytes or default_reserve(capacity),
        length=extract.length,
        draft_vocab=vocab.size,
        checkpoints=train.keep_checkpoints + 1,
        basis=basis,
    )


def samples_ahead(params: GenerateParams, mean_tokens: float) -> int:
    """How many samples generate makes at most: its targets, and the lines of its prompts file where that can be read.

    Raises GeometryError when nothing bounds them.
    """
    bounds = [params.max_samples] if params.max_samples else []
    if params.token_budget:
        bounds.append(math.ceil(params.token_budget / mean_tokens))
    if params.byte_budget:
        bounds.append(math.ceil(params.byte_budget / (mean_tokens * TEXT_BYTES)))
    lines = prompt_lines(Path(params.prompts)) if params.prompts else 0
    if lines:
        bounds.append(lines)
    if not bounds:
        raise GeometryError(
            f"How many samples there will be is not known: generate.max_samples is 0 (all prompts) and "
            f"{params.prompts or 'generate.prompts'} can't be read.",
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


def volume_space(path: Path, capacity_bytes: int = 0) -> tuple[int, int]:
    """(capacity, free) of the volume that holds `path`, in bytes.

    A declared capacity (a quota that statvfs can't see) bounds the free space to what is left of it. The nearest
    existing parent is asked, since a run's folder may not be there yet. Raises OSError where none answers.
    """
    place = path
    while not place.exists() and place != place.parent:
        place = place.parent
    stat = os.statvfs(place)
    total = stat.f_blocks * stat.f_frsize
    free = stat.f_bavail * stat.f_frsize
    if not capacity_bytes:
        return total, free
    used = (stat.f_blocks - stat.f_bfree) * stat.f_frsize
    return capacity_bytes, max(0, min(free, capacity_bytes - used))


def _met(run: RunDir, params: GenerateParams) -> bool:
    """Whether generate's output is finished and was made for the targets that the plan has now."""
    output = run.stage("generate").current()
    if output is None or not output.report():
        return False
    made = output.params()
    targets = ("prompts", "max_samples", "token_budget", "byte_budget")
    return all(name not in made or made[name] == getattr(params, name) for name in targets)


def _generate_counts(run: RunDir) -> dict[str, float]:
    stage = run.stage("generate")
    output = stage.current()
    report: dict[str, Any] | None = output.report() if output else None
    if report:
        return {**report.get("counts", {}), "finished": 1}
    attempt = stage.latest()
    progress = attempt.progress() if attempt else None
    return dict((progress or {}).get("counts", {}))


def _written(run: RunDir) -> int:
    total = 0
    for name in ("generate", "extract", "train"):
        output = run.stage(name).current()
        if output is None or run.path not in output.path.parents:
            continue
        for folder, _, files in os.walk(output.path):
            for file in files:
                try:
                    total += os.lstat(os.path.join(folder, file)).st_blocks * 512
                except OSError:
                    continue
    return total
