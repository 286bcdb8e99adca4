"""Stage processes as they run: alone and supervised, stopped, killed, failing, out of space; and what is left."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import Plan
from pipeline.rundir import Attempt, Output, RunDir, held, read_jsonl, status

ROOT = Path(__file__).resolve().parents[2]
WORKS = """
    have = len(list(stage.output.glob("*.row")))
    for number in range(have, 3):
        (stage.output / f"{number}.row").write_text("row")
        stage.progress(number + 1, 3, "samples", counts={"samples": number + 1}, bytes=3)
        stage.metric(number, 0.5, {"train/loss": 1.0}, lr=1e-4)
    stage.event("saved", "three rows", rows=3)
    stage.finish({"samples": 3}, "abc", note="fine")
"""
POLLS = """
    stage.log("polling")
    (stage.output / "begun").touch()
    (stage.output / "data").write_text("x")
    while not stage.stopping():
        time.sleep(0.005)
    stage.log("now it saves")
    while (stage.output / "slow").exists():
        time.sleep(0.005)
    (stage.output / "saved").write_text("whole")
    raise Stopped
"""


Start = Callable[..., Any]
Change = Callable[..., Plan]
Complete = Callable[..., Output]


def latest(run: RunDir, stage: str = "generate") -> Attempt:
    attempt = run.stage(stage).latest()
    assert attempt is not None
    return attempt


def test_alone_from_start_to_done(run: RunDir, start: Start) -> None:
    code, out, err = start(WORKS).end()
    assert (code, err) == (0, "")
    assert out == "generate: attempt 1, output 0001\ngenerate: done\n"
    attempt = latest(run)
    assert (attempt.path / "stage.log").read_text() == out
    report = attempt.output().report()
    assert report is not None
    assert (report["fingerprint"], report["counts"], report["note"]) == ("abc", {"samples": 3}, "fine")
    assert (report["stage"], report["plan_revision"], report["attempt"]) == ("generate", 1, 1)
    assert report["params"]["max_samples"] == 10_000
    progress = attempt.progress()
    assert progress is not None
    assert (progress["done"], progress["total"], progress["unit"], progress["eta_s"]) == (3, 3, "samples", 0.0)
    rows = read_jsonl(attempt.path / "metrics.jsonl")[0]
    assert [(row["step"], row["epoch"], row["train/loss"], row["lr"]) for row in rows][-1] == (2, 0.5, 1.0, 1e-4)
    event = read_jsonl(attempt.path / "events.jsonl")[0][0]
    assert (event["kind"], event["message"], event["rows"]) == ("saved", "three rows", 3)
    assert (attempt.exit() or {})["reason"] == "done"
    assert (attempt.exit() or {})["code"] == 0
    assert (attempt.outcome() or {})["result"] == "done"
    assert attempt.state()["phase"] == "ended"
    assert not (attempt.path / "spare").exists()
    found = status(run.stage("generate"))
    assert (found.state, found.attempt, found.output, found.resumable, found.stale) == ("DONE", 1, 1, False, False)
    assert not held(run.stage("generate").lock_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_it_and_again_does_not_cut_the_save_short(run: RunDir, start: Start, number: int) -> None:
    process = start(POLLS)
    process.hears("polling")
    output = latest(run).output().path
    (output / "slow").touch()
    process.signal(number)
    process.hears("now it saves")
    assert status(run.stage("generate")).state == "STOPPING"
    for _ in range(3):
        process.signal(signal.SIGINT)
        process.hears("still saving")
    (output / "slow").unlink()
    code, _, err = process.end()
    assert (code, err) == (0, "")
    assert (output / "saved").read_text() == "whole"
    found = status(run.stage("generate"))
    assert (found.state, found.resumable) == ("STOPPED", True)
    name = signal.Signals(number).name
    assert found.message == f"stopped by {name}; resume goes on from what was saved"


def test_a_request_stops_it_and_resume_goes_on(run: RunDir, start: Start) -> None:
    process = start(POLLS)
    process.hears("polling")
    latest(run).request("stop", by="anna")
    assert process.end()[0] == 0
    assert status(run.stage("generate")).message == "stopped by anna; resume goes on from what was saved"
    assert start(WORKS).end()[1].startswith("generate: attempt 2, output 0001, resumed\n")
    assert status(run.stage("generate")).state == "DONE"


def test_kill_9_leaves_it_lost_and_resumable_at_once(run: RunDir, start: Start) -> None:
    process = start(POLLS)
    process.hears("polling")
    assert status(run.stage("generate")).state == "RUNNING"
    process.process.kill()
    process.process.wait()
    found = status(run.stage("generate"))
    assert (found.state, found.resumable) == ("LOST", True)
    assert start(WORKS).end()[0] == 0
    assert status(run.stage("generate")).state == "DONE"


def test_a_terminal_that_goes_away_takes_nothing_with_it(run: RunDir, start: Start) -> None:
    process = start(
        """
    stage.log("begun")
    while not (stage.output / "go").exists():
        time.sleep(0.005)
    for number in range(1000):
        stage.log("nobody reads this " * 10)
    stage.finish({}, "abc")
"""
    )
    process.hears("begun")
    process.process.stdout.close()
    (latest(run).output().path / "go").touch()
    process.process.wait()
    assert process.process.returncode == 0
    assert status(run.stage("generate")).state == "DONE"
    assert (latest(run).path / "stage.log").read_text().endswith("generate: done\n")


def test_a_stage_error_is_one_line_and_no_traceback(run: RunDir, start: Start) -> None:
    process = start(
        "    raise StageError('The server answers\\n  without reasoning', 'Start vLLM with --reasoning-parser')"
    )
    code, out, err = process.end()
    line = "generate: failed: The server answers without reasoning. Start vLLM with --reasoning-parser"
    assert (code, err) == (1, "")
    assert out.splitlines()[1:] == [line]
    assert (latest(run).path / "stage.log").read_text() == out
    found = status(run.stage("generate"))
    assert (found.state, found.resumable) == ("FAILED", True)
    assert found.remedy == "Start vLLM with --reasoning-parser"


@pytest.mark.parametrize("end", ["raise StageError('no', 'yes', resumable=False)", "raise StageError('no')"])
def test_a_stage_error_says_whether_it_can_be_resumed(run: RunDir, start: Start, end: str) -> None:
    start(f"    (stage.output / 'x').write_text('x')\n    {end}").end()
    assert status(run.stage("generate")).resumable is ("resumable" not in end)


def test_an_unexpected_error_has_its_traceback_in_the_log_only(run: RunDir, start: Start) -> None:
    code, out, err = start("    return {}['missing']").end()
    assert (code, err) == (1, "")
    assert "Traceback" not in out
    assert "generate: failed: generate ended on an unexpected error: KeyError: 'missing'." in out
    log = (latest(run).path / "stage.log").read_text()
    assert "Traceback (most recent call last)" in log
    assert "return {}['missing']" in log
    found = status(run.stage("generate"))
    assert (found.state, found.message) == (
        "FAILED",
        "generate ended on an unexpected error: KeyError: 'missing'",
    )
    assert "stage.log" in found.remedy


@pytest.mark.parametrize(
    ("body", "state", "words"),
    [
        ("raise MemoryError", "FAILED", "generate ran out of memory on the host"),
        (
            "raise type('OutOfMemoryError', (RuntimeError,), {})('CUDA out of memory. Tried to allocate 2 GiB')",
            "FAILED",
            "generate ran out of memory on the GPU",
        ),
        ("raise KeyboardInterrupt", "STOPPED", "stopped; resume goes on"),
        ("raise Stopped('the reserve of the volume is reached')", "STOPPED", "the reserve of the volume is reached"),
        ("return 'stopped'", "STOPPED", "stopped; resume goes on"),
        ("return None", "FAILED", "generate ended without completing its output"),
        ("sys.exit(3)", "FAILED", "SystemExit: 3"),
        ("stage.finish({}, '')", "FAILED", "an output needs a fingerprint"),
        ("stage.finish({}, 'f'); sys.exit(0)", "DONE", ""),
        ("stage.finish({}, 'f'); raise ValueError('after the end')", "FAILED", "ValueError: after the end"),
    ],
)
def test_every_other_end(run: RunDir, start: Start, body: str, state: str, words: str) -> None:
    code, _, err = start(f"    (stage.output / 'x').write_text('x')\n    {body}").end()
    found = status(run.stage("generate"))
    assert found.state == state
    assert words in found.message
    assert code == (1 if state == "FAILED" else 0)
    assert err == ""


def test_a_second_one_is_refused_while_one_runs(run: RunDir, start: Start) -> None:
    process = start(POLLS)
    process.hears("polling")
    code, out, err = start(WORKS).end()
    assert (code, out) == (1, "")
    assert err == ("generate: one/generate is running already. Stop it first, or look at it with `eagledeck status`\n")
    assert run.stage("generate").attempts() == [1]


def test_missing_inputs_are_named(run: RunDir, start: Start) -> None:
    code, out, err = start(WORKS, stage="train").end()
    assert (code, out) == (1, "")
    assert err.startswith("train: train needs an output of extract, and there is none yet. Run extract first")
    assert run.stage("train").attempts() == []


def test_a_run_that_is_not_there(run: RunDir, start: Start) -> None:
    code, _, err = start(WORKS, "--run", str(run.root / "other")).end()
    assert code == 1
    assert err.startswith("generate: There is no run at")
    assert "Traceback" not in err


def test_what_is_done_is_not_done_again_unless_asked(run: RunDir, start: Start, change: Change) -> None:
    assert start(WORKS).end()[0] == 0
    code, out, _ = start(WORKS).end()
    assert (code, out) == (0, "one/generate is done already (output 1); --restart opens a new output\n")
    change(run, generate__top_p="0.5")
    code, _, err = start(WORKS).end()
    assert code == 1
    assert err == (
        "generate: one/generate is done and stale: generate.top_p is 0.5 now, was 0.95. --restart opens a new output\n"
    )
    code, out, _ = start(WORKS, "--restart").end()
    assert (code, out) == (0, "generate: attempt 2, output 0002\ngenerate: done\n")


def test_a_higher_target_goes_on_with_what_is_done(run: RunDir, start: Start, change: Change) -> None:
    start(WORKS).end()
    change(run, generate__max_samples="20000")
    assert start(WORKS).end()[1] == "generate: attempt 2, output 0001, resumed\ngenerate: done\n"
    assert status(run.stage("generate")).stale is False


def test_a_running_stage_takes_up_a_live_change(run: RunDir, start: Start, change: Change) -> None:
    process = start(
        """
    stage.log("waiting")
    while stage.live_params().max_samples != 7:
        time.sleep(0.01)
    assert stage.params.max_samples == 7 and stage.params.temperature == 0.7
    stage.finish({"samples": 7}, "seven")
"""
    )
    process.hears("waiting")
    change(run, generate__max_samples="7", generate__temperature="0.1")
    code, out, _ = process.end()
    assert code == 0
    assert "taken up from the plan: generate.max_samples = 7" in out
    assert latest(run).output().params()["max_samples"] == 7
    assert status(run.stage("generate")).stale_reason == "generate.temperature is 0.1 now, was 0.7"
    change(run, generate__temperature="0.7")
    assert status(run.stage("generate")).stale is False


def test_a_full_volume_is_named_and_the_outcome_is_still_written(
    tmp_path: Path, on_small_volume: Callable[..., None], stage_script: Callable[..., Path]
) -> None:
    volume = tmp_path / "volume"
    body = """
    with (stage.output / "data").open("wb", buffering=0) as file:
        while os.write(file.fileno(), bytes(1 << 14)):
            stage.progress(1, None, "samples")
"""

    def fill() -> None:
        run = RunDir.create(volume, "one", Plan())
        script = stage_script(tmp_path / "stage.py", body)
        argv = [sys.executable, str(script), "--run", str(run.path)]
        environment: dict[str, Any] = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 1, done
        assert done.stderr == ""
        want = f"The volume {volume} is full (0 bytes free) while generate wrote to"
        assert want in done.stdout
        assert "Traceback" not in done.stdout
        outcome = latest(run).outcome()
        assert outcome is not None
        assert outcome["result"] == "failed"
        assert want in outcome["message"]
        assert outcome["remedy"] == "Free space there, then resume; what was saved is intact"
        found = status(run.stage("generate"))
        assert (found.state, found.resumable) == ("FAILED", True)

    on_small_volume(volume, "1m", fill)


def test_a_stage_may_open_as_many_files_as_its_hard_limit_allows(run: RunDir, start: Start) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 512 if hard == resource.RLIM_INFINITY else min(512, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted // 2, hard))
    try:
        begun = start("    import resource; stage.log(str(resource.getrlimit(resource.RLIMIT_NOFILE)))\n" + WORKS)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    code, out, err = begun.end()
    assert (code, err) == (0, "")
    raised = 1 << 16 if hard == resource.RLIM_INFINITY else min(hard, 1 << 16)
    assert str((raised, hard)) in out
