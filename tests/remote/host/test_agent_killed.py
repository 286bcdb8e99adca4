"""kill -9 on whatever runs, at random moments, and many hands on the same buttons: no count lost, no stage doubled."""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import pytest

from pipeline.rundir import StageState, held, process_start, status
from remote.agent.conducted import conductor_view
from remote.agent.members import process_table
from remote.protocol import Failure


def victims(host, run, agent):
    stage = run.stage("generate")
    state = (stage.latest().state() if stage.latest() else {}) or {}
    return {
        "agent": agent.process.pid,
        "conductor": conductor_view(run)["pid"],
        "supervisor": (state.get("supervisor") or {}).get("pid"),
        "main": (state.get("main") or {}).get("pid"),
    }


def supervisors(host):
    found = 0
    for pid in host.ours():
        try:
            with open(f"/proc/{pid}/cmdline") as file:
                words = file.read().split("\0")
        except OSError:
            continue
        process = process_table().get(pid)
        # A starter, which waits for the word of its grandchild, has the same command line and its own parent.
        found += "supervise" in words and "remote.agent" in words and process is not None and process.parent == 1
    return found


def punish(host, wait_for, rounds, seed):
    steps = 40 + rounds * 12
    run = host.run(generate={"steps": steps, "pause": 0.02}, changes={"through": "generate"})
    stage, rng = run.stage("generate"), random.Random(seed)
    agent = host.agent()
    for number in range(rounds):
        if status(stage).state is StageState.DONE:
            break
        if agent.process.poll() is not None:
            agent = host.agent()
        asked = agent.answer(agent.post("start", run="r1"))
        if isinstance(asked, Failure):
            assert asked.message and status(stage).state is not StageState.FAILED, (number, asked)
        time.sleep(rng.random() * 0.6)
        _, pid = rng.choice(sorted(victims(host, run, agent).items()))
        if pid is not None and process_start(pid) is not None:
            os.kill(pid, signal.SIGKILL)
            if pid == agent.process.pid:
                # dead only once it is reaped: asking it meanwhile would find a closed pipe
                agent.process.wait()
        # A starter that lost its conductor looks like a supervisor until its grandchild has spoken.
        wait_for(lambda: supervisors(host) <= 1)
    if agent.process.poll() is not None:
        agent = host.agent()
    end = time.monotonic() + 120
    while status(stage).state is not StageState.DONE:
        assert time.monotonic() < end, (status(stage), conductor_view(run))
        if not held(run.path / "conductor" / "lock"):
            agent.post("start", run="r1")
        agent.ask("ping")
        time.sleep(0.1)
    counted = (stage.current().path / "counts.txt").read_text().split()
    assert counted == [str(step) for step in range(1, steps + 1)]
    assert stage.outputs() == [1]


def test_kill_minus_nine_anything(host, wait_for):
    punish(host, wait_for, rounds=6, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(10))
def test_kill_minus_nine_for_long(host, wait_for, seed):
    punish(host, wait_for, rounds=100, seed=seed)


def race(host, wait_for, rounds, seed):
    """Two consoles press start, stop, kill and resume at once: whatever they get, there is one supervisor."""
    run = host.run(generate={"steps": 100_000, "pause": 0.01}, changes={"through": "generate", "generate.grace_s": "5"})
    stage, rng = run.stage("generate"), random.Random(seed)
    agents = [host.agent(), host.agent()]
    for _ in range(rounds):
        pressed = [[rng.choice(["start", "stop", "kill", "resume", "start"]) for _ in range(2)] for _ in agents]

        def press(agent, ops):
            for op in ops:
                agent.answer(agent.post(op, run="r1"))

        threads = [threading.Thread(target=press, args=pair) for pair in zip(agents, pressed)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # A starter that lost its conductor looks like a supervisor until its grandchild has spoken.
        wait_for(lambda: supervisors(host) <= 1)
        numbers = stage.attempts()
        assert numbers == list(range(1, len(numbers) + 1))
    agents[0].answer(agents[0].post("kill", run="r1"))
    wait_for(lambda: not held(run.path / "conductor" / "lock") and not held(stage.lock_path), 60)
    assert status(stage).state.value in ("KILLED", "STOPPED", "PENDING")
    counts = stage.current().path / "counts.txt" if stage.current() else None
    # killed before its first step, there is none
    counted = counts.read_text().split() if counts and counts.exists() else []
    assert counted == [str(step) for step in range(1, len(counted) + 1)]
    assert [
        number for number in stage.attempts() if stage.attempt(number).state() and not stage.attempt(number).exit()
    ] == []


def test_two_consoles_at_once(host, wait_for):
    race(host, wait_for, rounds=3, seed=2)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(4))
def test_two_consoles_for_long(host, wait_for, seed):
    race(host, wait_for, rounds=50, seed=seed)
