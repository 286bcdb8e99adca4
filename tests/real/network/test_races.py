"""Seeded races over a real sshd: many hands on the same buttons, and kill -9 on whatever runs.

`make test-real` runs 50 rounds of each, `make soak` 200 and 1,000. A seed that fails fails again with
`pytest -k "SEED"`, as far as processes keep their order.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from typing import Any

import pytest

from pipeline.rundir import RunDir, StageState, held, status
from remote.agent.members import read_process
from remote.errors import RemoteError
from remote.link import Link
from tests.real.network import truth
from tests.real.network.laptop import Laptop, laptop
from tests.real.network.topology import alive

KINDS = ("double start", "stop during start", "kill during stop", "two clients")


def supervisors(gpu: Any) -> int:
    """A starter that waits for its grandchild's word has the same command line, but a parent of its own."""
    found = [read_process(pid) for pid in gpu.wire.processes("remote.agent", "supervise")]
    return sum(process is not None and process.parent == 1 and not process.dead for process in found)


def mains(gpu: Any) -> list[int]:
    """The processes of the stage itself."""
    return [pid for pid in gpu.wire.processes("pipeline.generate") if alive(pid)]


async def ask(link: Link, op: str) -> str:
    """Presses a button; a refusal is an answer like another. Its words, "" when it was done."""
    try:
        await link.request(op, run="r1", deadline_s=60)
    except RemoteError as error:
        refusal = error
    else:
        return ""
    assert refusal.message and refusal.code not in ("internal", "bad-request"), (op, refusal)
    return refusal.message


async def play(kind: str, one: Link, two: Link, rng: random.Random) -> None:
    async def later(link: Link, op: str) -> None:
        await asyncio.sleep(rng.random() * 0.6)
        await ask(link, op)

    if kind == "double start":
        await asyncio.gather(ask(one, "start"), ask(two, "start"))
    elif kind == "stop during start":
        await asyncio.gather(ask(one, "start"), later(two, "stop"))
    elif kind == "kill during stop":
        await ask(one, "start")
        await asyncio.gather(ask(one, "stop"), later(two, "kill"))
    else:
        hands = [[rng.choice(["start", "stop", "kill", "resume", "start"]) for _ in range(2)] for _ in range(2)]

        async def press(link: Link, ops: list[str]) -> None:
            for op in ops:
                await ask(link, op)

        await asyncio.gather(press(one, hands[0]), press(two, hands[1]))


async def races(gpu: Any, rounds: int, seed: int) -> None:
    """Whatever two consoles press, there is one supervisor, and both are told the same."""
    rng = random.Random(seed)
    run = gpu.run(changes={"generate.grace_s": "5"})
    stage = run.stage("generate")
    async with laptop(gpu.spec(), gpu.hostkeys(), "r1") as one, laptop(gpu.spec(), gpu.hostkeys(), "r1") as two:
        for here in (one, two):
            await here.live()
            await here.collector.filled()
        for number in range(rounds):
            kind = KINDS[number % len(KINDS)]
            await play(kind, one.link, two.link, rng)
            await one.until(lambda: supervisors(gpu) <= 1 and len(mains(gpu)) <= 1)
            numbers = stage.attempts()
            assert numbers == list(range(1, len(numbers) + 1)), (number, kind)
            truth.assert_counts(stage)
        await ask(one.link, "kill")
        await one.until(lambda: not held(run.path / "conductor" / "lock") and not held(stage.lock_path))
        told = status(stage).state.value
        assert told in ("KILLED", "STOPPED", "PENDING")
        for here in (one, two):
            await here.until(lambda here=here: here.state() == told)
        assert not mains(gpu)
        truth.assert_counts(stage)
        begun = [stage.attempt(number) for number in stage.attempts() if stage.attempt(number).state()]
        assert not [attempt.number for attempt in begun if attempt.exit() is None]
        for here in (one, two):
            truth.check_no_traceback(gpu, here)
    await truth.check_nothing_leaks(gpu)


def victims(gpu: Any, run: RunDir) -> dict[str, list[int]]:
    latest = run.stage("generate").latest()
    supervisor = ((latest.state() if latest else {}) or {}).get("supervisor") or {}
    found = {
        "agent": gpu.wire.agents(),
        "sshd child": gpu.sessions(),
        "conductor": gpu.wire.processes("remote.agent", "conduct"),
        "supervisor": [pid for pid in [supervisor.get("pid")] if pid and alive(pid)],
    }
    return {kind: pids for kind, pids in found.items() if pids}


async def started(here: Laptop, run: RunDir) -> None:
    """Presses start until somebody goes from stage to stage."""
    while not held(run.path / "conductor" / "lock"):
        await here.live()
        if await ask(here.link, "start"):
            await asyncio.sleep(0.05)


async def kills(gpu: Any, rounds: int, seed: int) -> None:
    """Everything but the stage is killed again and again: it is begun once, and counts on."""
    rng = random.Random(seed)
    run = gpu.run()
    stage = run.stage("generate")
    async with laptop(gpu.spec(), gpu.hostkeys(), "r1") as here:
        for number in range(rounds):
            starting = asyncio.create_task(started(here, run))
            await asyncio.sleep(rng.random() * 0.8)
            found = victims(gpu, run)
            if found:
                kind = rng.choice(sorted(found))
                os.kill(rng.choice(found[kind]), signal.SIGKILL)
            async with asyncio.timeout(60):
                await starting
            await here.until(lambda: supervisors(gpu) <= 1)
            assert len(mains(gpu)) <= 1, (number, found)
            truth.assert_counts(stage)
        async with asyncio.timeout(60):
            await started(here, run)
        await here.until(lambda: here.count() > 5)
        gpu.flag.touch()
        while status(stage).state is not StageState.DONE:
            async with asyncio.timeout(60):
                await started(here, run)
            assert status(stage).state is not StageState.FAILED, status(stage)
            await asyncio.sleep(0.1)
        await here.until(lambda: here.state() == "DONE")
        assert truth.assert_counts(stage) == here.count()
        attempts = [stage.attempt(number) for number in stage.attempts()]
        assert len([attempt for attempt in attempts if attempt.state().get("main")]) == 1, "begun more than once"
        assert stage.outputs() == [1] and not mains(gpu)
        truth.check_no_traceback(gpu, here)
    await truth.check_nothing_leaks(gpu)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2])
async def test_p6_races(gpu: Any, seed: int) -> None:
    await races(gpu, rounds=25, seed=seed)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(5))
async def test_kill_minus_nine(gpu: Any, seed: int) -> None:
    await kills(gpu, rounds=10, seed=seed)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(100, 104))
async def test_races_for_long(gpu: Any, seed: int) -> None:
    await races(gpu, rounds=50, seed=seed)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(100, 150))
async def test_kill_minus_nine_for_long(gpu: Any, seed: int) -> None:
    await kills(gpu, rounds=20, seed=seed)
