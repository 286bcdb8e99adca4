"""Does a real engine accept as much as ours? An exported drafter in vLLM, on the prompts that deploy measured.

    python -m benchmarks.drafter_vllm --run DIR --vllm PYTHON [--model FOLDER] [--dtype float32] [--concurrency 32]
    [--json]

PYTHON is the interpreter of an environment with vLLM (its CPU build will do). The run must be through deploy: the same
prompts, k and answer length go to vLLM with the exported drafter, and acceptance is read from vLLM's own counters.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from pipeline.config import DeployParams
from pipeline.deploy.agreement import first_difference
from pipeline.deploy.body import questions_of
from pipeline.deploy.client import EngineClient, Measurement
from pipeline.deploy.engine import HOST, Engine, EngineCommand, free_port
from pipeline.failure import StageError
from pipeline.hostpath import host_path
from pipeline.rundir import RunDir, RunError, read_json, recorded_inputs


def vllm_command(python: Path, model: str, drafter: Path, k: int, dtype: str, length: int) -> EngineCommand:
    """vLLM's server on a free port with the drafter; on CPUs it gets all cores and 2 GiB of cache."""
    port, cores = free_port(), os.cpu_count() or 1
    speculative = {"method": "eagle3", "model": str(drafter), "num_speculative_tokens": k}
    argv = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--host", HOST]
    argv += ["--port", str(port), "--dtype", dtype, "--max-model-len", str(length), "--max-num-seqs", "64"]
    argv += ["--speculative-config", json.dumps(speculative)]
    env = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{cores - 1}",
        "VLLM_NO_USAGE_STATS": "1",
    }
    return EngineCommand(tuple(argv), port, ready_timeout_s=900.0, env=env)


def benchmark(run: RunDir, python: Path, model: str, dtype: str, concurrency: int) -> dict[str, Any]:
    """Both engines' figures. Raises RunError, StageError."""
    output = run.stage("deploy").current()
    report = output.report() if output is not None else None
    if output is None or report is None:
        raise RunError(f"{run.name} has no finished deploy", "Run it through deploy first")
    kept = read_json(output.path / "drafted.json")
    if kept is None:
        raise RunError(f"{output.path}/drafted.json can't be read", "Run deploy again with --restart")
    ours = Measurement.from_json(kept)
    params = DeployParams(**{key: value for key, value in output.params().items() if key in vars(DeployParams())})
    questions = questions_of(params, recorded_inputs(run, output), run.path)
    length = max(len(answer.prompt_ids) for answer in ours.answers) + params.max_tokens + 16
    drafter = output.path / report["drafter"]
    command = vllm_command(
        python, model or str(host_path(run.plan().verifier.path, run.path)), drafter, params.k, dtype, length
    )
    log = Path(tempfile.gettempdir()) / f"eagledeck-vllm-{os.getpid()}.log"
    with Engine(command, log) as engine:
        engine.wait_ready(lambda: False)
        client = EngineClient(engine.url)
        client.measure(questions[:2], 8, 2, lambda done: None, lambda: False)
        theirs = client.measure(questions, params.max_tokens, concurrency, lambda done: None, lambda: False)
    if theirs is None or theirs.counters is None or theirs.counters.acceptance_length is None:
        raise StageError("vLLM's vllm:spec_decode counters did not move", f"Look at {log}")
    log.unlink(missing_ok=True)
    same = sum(
        first_difference(one.output_ids, other.output_ids) is None for one, other in zip(ours.answers, theirs.answers)
    )
    return {
        "run": run.name,
        "k": params.k,
        "prompts": len(questions),
        "dtype": {"ours": params.dtype, "vllm": dtype},
        "ours": {"acceptance_length": report["acceptance_length"], "rate_by_position": report["rate_by_position"]},
        "vllm": {
            "acceptance_length": theirs.counters.acceptance_length,
            "rate_by_position": theirs.counters.rate_by_position,
            "tokens_per_s": theirs.tokens_per_s,
        },
        "difference": theirs.counters.acceptance_length - report["acceptance_length"],
        "identical_answers": same,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drafter_vllm", description=__doc__.split("\n")[0])
    parser.add_argument("--run", type=Path, required=True, metavar="DIR", help="a run that is through deploy")
    parser.add_argument("--vllm", type=Path, required=True, metavar="PYTHON", help="a Python that has vLLM")
    parser.add_argument("--model", default="", metavar="FOLDER", help="the verifier; default: the run's")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="what vLLM computes in")
    parser.add_argument("--concurrency", type=int, default=32, help="requests in flight")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args(argv)
    try:
        run = RunDir.open(options.run)
        found = benchmark(run, options.vllm, options.model, options.dtype, options.concurrency)
    except (RunError, StageError) as error:
        print(f"drafter_vllm: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(found))
        return 0
    print(f"{found['prompts']} prompts, k = {found['k']}, {found['identical_answers']} answers identical")
    for name in ("ours", "vllm"):
        rates = " ".join(f"{rate:.3f}" for rate in found[name]["rate_by_position"])
        print(f"{name:6} {found['dtype'][name]:9} {found[name]['acceptance_length']:.3f}   {rates}")
    print(f"difference {found['difference']:+.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
