"""How long does the whole demo take, and is its drafter any good? The five stages on this machine, then the rivals.

    python -m benchmarks.demo [--verifier bundled|smollm2] [--vllm PYTHON] [--keep DIR] [--json]

Runs `eagledeck demo --headless` from the command to the table, over its SSH connection, in a folder that goes away
(with --keep in DIR, which stays). The drafter is then compared on the same answers with n-gram drafters fitted on the
same samples (benchmarks.ngram) and, with --vllm, with itself in vLLM (benchmarks.drafter_vllm).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import drafter_vllm, ngram
from pipeline.failure import StageError
from pipeline.rundir import RunDir, RunError


@dataclass(frozen=True)
class Goal:
    """What a demo is to reach: all of it in `seconds`; deploy's acceptance length; its distance to the best n-gram."""

    seconds: float
    acceptance_length: float
    margin: float


GOALS = {"bundled": Goal(180.0, 1.8, 0.3), "smollm2": Goal(720.0, 1.65, 0.0)}
VLLM_WITHIN = 0.05


def run_demo(verifier: str, folder: Path) -> dict[str, Any]:
    """What the demo's --json wrote, with its run's folder as `path`. Raises RunError when the demo failed."""
    report = folder / "report.json"
    command = [str(Path(sys.executable).with_name("eagledeck")), "demo", "--headless", "--verifier", verifier]
    command += ["--keep", str(folder), "--json", str(report)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    if done.returncode:
        raise RunError("The demo failed", "It said why above")
    found: dict[str, Any] = json.loads(report.read_text())
    return {**found, "path": str(next((folder / "volume").glob(f"*/{found['run']}")))}


def benchmark(verifier: str, vllm: Path | None, folder: Path) -> dict[str, Any]:
    """All figures. Raises RunError, StageError."""
    demo = run_demo(verifier, folder)
    run = RunDir.open(Path(demo.pop("path")))
    rivals = ngram.benchmark(run)
    found = {
        **demo,
        "verifier": verifier,
        "cores": os.cpu_count(),
        "rivals": rivals["rivals"],
        "ngram_margin": rivals["margin"],
    }
    if vllm is not None:
        compared = drafter_vllm.benchmark(run, vllm, "", "float32", 32)
        found["vllm"] = {**compared["vllm"], "difference": compared["difference"]}
    return found


def table(found: dict[str, Any], goal: Goal) -> list[str]:
    """Rows of (what, seen, goal)."""
    agreement, speed = found["greedy_agreement"], found["tokens_per_s"]
    rows = [("", "seen", "goal")]
    rows += [(f"{name}, s", f"{stage['seconds']:.1f}", "") for name, stage in found["stages"].items()]
    rows += [
        ("whole demo, s", f"{found['total_seconds']:.1f}", f"<= {goal.seconds:.0f}"),
        ("acceptance length", f"{found['acceptance_length']:.3f}", f">= {goal.acceptance_length}"),
        ("rate by position", " ".join(f"{rate:.3f}" for rate in found["rate_by_position"]), ""),
        ("above the best n-gram", f"{found['ngram_margin']:+.3f}", f">= {goal.margin}"),
        ("greedy answers that differ", f"{agreement['different']} of {agreement['prompts']}", "0"),
        ("  of them near ties", str(agreement["near_ties"]), ""),
        ("tokens/s with : without", f"{speed['drafted'] / speed['plain']:.2f}", ""),
    ]
    if "vllm" in found:
        rows.append(("vLLM's minus ours", f"{found['vllm']['difference']:+.3f}", f"within {VLLM_WITHIN}"))
    return [f"{what:28}{seen:>20}   {wanted}".rstrip() for what, seen, wanted in rows]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo", description=__doc__.split("\n")[0])
    parser.add_argument("--verifier", choices=sorted(GOALS), default="bundled")
    parser.add_argument("--vllm", type=Path, metavar="PYTHON", help="a Python that has vLLM: compare with it too")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the demo's folder there")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args(argv)
    try:
        if options.keep:
            found = benchmark(options.verifier, options.vllm, options.keep.resolve())
        else:
            with tempfile.TemporaryDirectory(prefix="eagledeck-benchmark-") as folder:
                found = benchmark(options.verifier, options.vllm, Path(folder))
    except (RunError, StageError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found) if options.json else "\n".join(table(found, GOALS[options.verifier])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
