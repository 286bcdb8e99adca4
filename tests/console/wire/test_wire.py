"""The collector on a real agent over the embedded server: a connection that is cut, curves without a gap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from console.collector import Collector
from remote.link import Kind, Pace
from remote.loopback import Loopback, serve

FAST = Pace(backoff=0.2, backoff_cap=0.5)


@pytest.fixture
async def loopback(tmp_path: Path) -> AsyncIterator[Loopback]:
    served = await serve(tmp_path / "sshd")
    yield served
    await served.close()


@pytest.fixture
def box(container_at: Any, loopback: Loopback) -> Any:
    return container_at(vars(loopback.address))


async def until(collector: Collector, what: Any) -> None:
    changed = asyncio.Event()
    forget = collector.subscribe(changed.set)
    async with asyncio.timeout(60):
        while not what(collector.snapshot):
            changed.clear()
            await changed.wait()
    forget()


def state(snapshot: Any, name: str) -> str:
    return next((stage.state for stage in snapshot.stages if stage.name == name), "")


async def test_a_cut_connection_costs_no_point_of_the_curve(box: Any, loopback: Loopback) -> None:
    config = box.configure(train={"steps": 120, "pause": 0.05})
    async with box.link(FAST) as link, Collector(link, "r1") as collector:
        await link.wait_for(Kind.LIVE)
        await link.request("create", name="r1", plan=config.runs["r1"].plan.to_json())
        await until(collector, lambda now: now.stages)
        await collector.start()
        await until(collector, lambda now: now.curves and len(now.curves[0].steps) > 10)
        loopback.hang_up()
        await link.wait_for(Kind.LOST, Kind.BACKOFF)
        away = collector.snapshot
        assert away.link.state in ("LOST", "BACKOFF", "CONNECTING")
        assert state(away, "train") == "RUNNING"
        assert away.curves
        await until(collector, lambda now: state(now, "deploy") == "DONE")
        await collector.refresh()
        last = collector.snapshot
        seen = [text for text in last.log if text.startswith("step ")]
    loss = next(curve for curve in last.curves if curve.name == "train/loss")
    pairs = [(step, value) for step, value in zip(loss.steps, loss.values) if value is not None]
    assert [step for step, _ in pairs] == list(range(1, 121))
    assert [value for _, value in pairs] == pytest.approx([1 / step for step in range(1, 121)], rel=1e-4)
    validation = next(curve for curve in last.curves if curve.name == "val/loss")
    assert [step for step, value in zip(validation.steps, validation.values) if value is not None] == list(
        range(5, 121, 5)
    )
    assert (last.samples, last.tokens) == (3, 30)
    assert [stage.counts["samples"] for stage in last.stages] == [3, 3, 3, 120, 3]
    assert sorted({event.stage for event in last.events if event.kind == "saved"}) == sorted(box.state())
    assert last.log_source == "deploy"
    assert seen == ["step 1", "step 2", "step 3"]
    assert last.disk is not None
    assert last.disk.free
    assert last.runs == ("r1",)


async def test_a_failed_stage_says_why_and_a_resume_joins_the_curve(box: Any) -> None:
    config = box.configure(train={"steps": 20, "fail_at": 12})
    async with box.link(FAST) as link, Collector(link, "r1") as collector:
        await link.wait_for(Kind.LIVE)
        await link.request("create", name="r1", plan=config.runs["r1"].plan.to_json())
        await until(collector, lambda now: now.stages)
        await collector.start()
        await until(collector, lambda now: state(now, "train") == "FAILED")
        train = collector.snapshot.stages[3]
        assert (train.message, train.resumable) == ("The double fails", True)
        await until(
            collector, lambda now: now.log_source == "train" and any("double fails" in line for line in now.log)
        )
        await collector.set({"train.grace_s": "5"})
        assert collector.snapshot.plan["revision"] == 2
        await collector.set({"through": "train"})
        await collector.resume("train")
        await until(collector, lambda now: state(now, "train") == "DONE")
        await collector.refresh()
        loss = next(curve for curve in collector.snapshot.curves if curve.name == "train/loss")
    steps = [step for step, value in zip(loss.steps, loss.values) if value is not None]
    assert steps == list(range(1, 21))
    assert collector.snapshot.stages[3].attempt == 2
