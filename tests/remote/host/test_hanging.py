"""Something on the host hangs: what concerns another run goes on, and stop and kill get through in any case."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.config import Plan
from pipeline.rundir import RunDir, StageState, status
from remote.agent.agent import WORKERS
from remote.agent.attempts import ServiceDir
from remote.agent.operations import Operations, Refused
from remote.agent.turns import Turns

CODE = Path(__file__).resolve().parents[3]
HOLD = """
import sys
from pathlib import Path
from pipeline.rundir import Lock
lock = Lock.acquire(Path(sys.argv[1]))
print("held" if lock else "taken", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def held_elsewhere(path: Path) -> Iterator[None]:
    """Another process has the lock until the block ends."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], cwd=CODE, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdin is not None and holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        yield
    finally:
        holder.stdin.close()
        holder.wait(30)
        holder.stdout.close()


def with_service(host, name: str) -> RunDir:
    """A run whose generate needs the service `engine`, which nobody has started."""
    raw = host.plan().to_json()
    raw["services"]["engine"] = {"command": [sys.executable, "-c", "import time; time.sleep(1000)"], "port": 0}
    raw["stages"]["generate"]["services"] = ["engine"]
    return RunDir.create(host.root, name, Plan.from_json(raw))


@pytest.fixture
def hanging(host) -> Iterator[RunDir]:
    """A run whose service can neither be started nor stopped now."""
    run = with_service(host, "r2")
    with held_elsewhere(ServiceDir.of(host.root, "engine").make().path / "use.lock"):
        yield run


def at_work(host, agent, wait_for, name: str) -> RunDir:
    run = host.run(name, generate={"steps": 100_000, "pause": 0.01})
    agent.ask("start", run=name)
    stage = run.stage("generate")
    wait_for(lambda: status(stage).state is StageState.RUNNING and stage.latest() and stage.latest().progress())
    return run


def test_a_service_that_hangs_keeps_nobody_from_ending_another_run(host, hanging, wait_for):
    agent = host.agent()
    stopped, killed = (at_work(host, agent, wait_for, name) for name in ("r1", "r3"))
    # more of them than there are workers, and without a deadline within this test
    for _ in range(WORKERS + 2):
        agent.post("service_start", 3000.0, run="r2", service="engine")
    assert agent.ask("stop", run="r1", stage="generate")["stages"] == ["generate"]
    assert agent.ask("kill", run="r3")["stages"] == ["generate"]
    assert agent.ask("set", run="r2", changes={"generate.max_samples": "10"})["revision"] == 2
    assert agent.ask("create", name="r4", plan=host.plan().to_json())["revision"] == 1
    assert {row["name"] for row in agent.ask("runs")} == {"r1", "r2", "r3", "r4"}
    agent.ask("watch", run="r1", every_s=0.2)
    assert agent.push("run")["run"] == "r1"
    wait_for(lambda: status(stopped.stage("generate")).state is StageState.STOPPED)
    wait_for(lambda: status(killed.stage("generate")).state is StageState.KILLED)


def test_what_a_killed_conductor_left_is_not_waited_for(host, hanging):
    refused = host.agent().refused("stop", run="r2")
    assert "service engine is being started or stopped" in refused.message and refused.remedy


def test_a_change_behind_one_that_hangs_is_refused_and_not_done_later(host, hanging):
    agent = host.agent()
    agent.post("service_start", 3000.0, run="r2", service="engine")
    second = agent.answer(agent.post("service_stop", 2.0, run="r2", service="engine"))
    assert (second.code, second.message) == (
        "refused",
        "service engine: an earlier service start is still under way, so this was not done",
    )
    assert second.remedy


def test_a_stop_behind_a_start_that_hangs_says_so(host):
    host.run("r1")
    operations = Operations(host.root)
    said = "nothing of r1 runs, but an earlier start is still under way"
    with operations._turns.of("r1", "start", 0), pytest.raises(Refused, match=said):
        operations.call("stop", {"run": "r1"}, 0.1)
    with pytest.raises(Refused, match=r"nothing of r1 runs$"):
        operations.call("stop", {"run": "r1"}, 0.1)


def test_turns_are_of_one_subject_each():
    turns = Turns()
    with turns.of("r1", "start", 0) as before, turns.of("r2", "set", 0) as other:
        assert before == other == ""
        with turns.of("r1", "stop", 0.01) as at_work:
            assert at_work == "start"
        with turns.of("r1", "set", 0) as still:
            assert still == "start"
    with turns.of("r1", "set", 0) as free:
        assert free == ""


def test_a_turn_ends_with_its_operation_however_that_ends(host):
    operations = Operations(host.root)
    for _ in range(2):
        with pytest.raises(Refused, match="no run r9"):
            operations.call("set", {"run": "r9", "changes": {}}, 0.1)
