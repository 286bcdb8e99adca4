"""Checkpoints that take longer than the plan's grace: under torchrun with two ranks, and first ones."""

from __future__ import annotations

import sys

import pytest

from pipeline.config import Plan, set_values
from pipeline.rundir import RunDir, process_start, status
from remote.agent import starting
from remote.agent.operations import Operations
from remote.agent.run_view import stage_view

RANKS = '''
"""Two ranks that agree at every step whether to stop; each saves for SAVE seconds."""
import os, sys, time
sys.path.insert(0, os.getcwd())
import torch, torch.distributed as dist
from pipeline.stage import Stopped, run_stage
SAVE, BEFORE = float(os.environ["SAVE"]), os.environ.get("BEFORE")
def save(run, step):
    with run.saving():
        time.sleep(SAVE)
        (run.output / f"rank-{run.rank}").write_text(str(step))
def body(run):
    dist.init_process_group("gloo")
    step = 0
    if BEFORE:
        with run.saving():
            time.sleep(float(BEFORE))
    print("up", flush=True)
    while True:
        step += 1
        told = torch.tensor([int(run.stopping())])
        dist.all_reduce(told, op=dist.ReduceOp.MAX)
        run.progress(step, None, "steps")
        if told.item():
            save(run, step)
            dist.barrier()
            raise Stopped("saved")
        time.sleep(0.02)
sys.exit(run_stage("generate", body, ["--run", sys.argv[1], "--attempt", sys.argv[2]]))
'''


def start_ranks(host, tmp_path, save, grace, before=""):
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    changes = {"generate.grace_s": str(grace), "generate.env.SAVE": str(save)}
    if before:
        changes["generate.env.BEFORE"] = before
    stage = RunDir.create(host.root, "r1", set_values(Plan(), changes)).stage("generate")
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        "--standalone",
        "--local-addr=127.0.0.1",
    ]
    with starting.locked(stage, "r1") as lock:
        attempt = stage.new_attempt(argv=[*torchrun, str(script), "{run}", "{attempt}"], cwd=str(starting.CODE))
        starting.launch(attempt, lock, "r1")
    return stage, attempt


def stopped_after_saving(stage, attempt, wait_for, seconds):
    wait_for(lambda: attempt.file("stage.log").read_text().count("up\n") == 2 or attempt.exit())
    assert attempt.exit() is None, attempt.file("stage.log").read_text()
    Operations(stage.run.root).call("stop", {"run": "r1"})
    end = wait_for(attempt.exit, seconds)
    assert (end["reason"], end["code"], end["message"]) == ("stopped", 0, "saved"), end
    saved = {(attempt.output().path / f"rank-{rank}").read_text() for rank in (0, 1)}
    assert len(saved) == 1  # both at the same step
    notes = attempt.file("supervision.jsonl").read_text()
    assert '"kind":"signal"' not in notes.replace(" ", "")
    assert all(process_start(entry["pid"]) is None for entry in attempt.state()["members"])
    assert status(stage).resumable


@pytest.mark.real
def test_a_first_checkpoint_under_torchrun_outlasts_the_grace(host, tmp_path, wait_for):
    stage, attempt = start_ranks(host, tmp_path, save=16, grace=4)
    stopped_after_saving(stage, attempt, wait_for, 120)
    assert attempt.progress()["save_s"] >= 16
    assert attempt.progress()["saving_since"] is None


@pytest.mark.real
def test_the_grace_is_twice_the_last_checkpoint_and_shown_so(host, tmp_path, wait_for):
    stage, attempt = start_ranks(host, tmp_path, save=17, grace=4, before="16")
    wait_for(lambda: (attempt.progress() or {}).get("save_s"))
    Operations(host.root).call("stop", {"run": "r1"})
    shown = wait_for(lambda: stage_view(stage.run, "generate", stage.run.plan())["stop_grace_s"] or 0)
    given = wait_for(lambda: attempt.state().get("grace_s"))
    assert 32 <= given < 60
    assert stage_view(stage.run, "generate", stage.run.plan())["stop_grace_s"] == given
    assert shown in (4, given)  # the plan's until the supervisor has said more
    stopped = wait_for(attempt.exit, 120)
    assert (stopped["reason"], stopped["message"]) == ("stopped", "saved")


@pytest.mark.real
def test_ninety_seconds_of_saving_under_torchrun_survive_a_stop(host, tmp_path, wait_for):
    stage, attempt = start_ranks(host, tmp_path, save=90, grace=60)
    stopped_after_saving(stage, attempt, wait_for, 300)
