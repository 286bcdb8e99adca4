"""Snapshots to draw and a collector that records what it is asked: shared by the tests of the console's screens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings

from console.snapshot import (
    BudgetView,
    ConductorView,
    Curve,
    DiskView,
    EventView,
    GpuView,
    LinkView,
    Snapshot,
    StageView,
)
from pipeline.config import Plan, set_values

settings.register_profile("console", deadline=None)  # a busy machine is no fault of the code
settings.load_profile("console")

NOW = 1_764_511_327.0
"""2025-11-30 14:02:07 UTC."""
GIB = 2**30
STAGES = ("generate", "extract", "vocab", "train", "deploy")
UNITS = {"generate": "samples", "extract": "tokens", "vocab": "tokens", "train": "steps", "deploy": "prompts"}


def stage(name: str, state: str = "PENDING", **fields: Any) -> StageView:
    began = state != "PENDING"
    values: dict[str, Any] = {
        "name": name,
        "state": state,
        "attempt": 1 if began else None,
        "output": 1 if began else None,
        "stale": False,
        "stale_reason": "",
        "stale_root": "",
        "kept": False,
        "resumable": False,
        "message": "",
        "remedy": "",
        "done": None,
        "total": None,
        "unit": UNITS[name] if began else "",
        "saved": None,
        "rate": None,
        "eta_s": None,
        "elapsed_s": None,
        "phase": "",
        "note": "",
        "counts": {},
        "report": {},
        "stop_grace_s": 60.0,
        "stop_since": None,
    }
    return StageView(**{**values, **fields})


def stages(*states: str, **by_name: StageView) -> tuple[StageView, ...]:
    found = [stage(name, state) for name, state in zip(STAGES, [*states, *["PENDING"] * 5])]
    return tuple(by_name.get(one.name, one) for one in found)


def gpus(count: int = 8) -> tuple[GpuView, ...]:
    rng = random.Random(7)
    found = []
    for index in range(count):
        slow = index == 5
        found.append(
            GpuView(
                index,
                "NVIDIA RTX PRO 6000 Blackwell",
                212.0 if slow else 560 + rng.uniform(0, 38),
                600.0,
                31.0 if slow else 97 + rng.uniform(0, 2),
                (60.2 if slow else 85 + rng.uniform(0, 4)) * GIB,
                95.6 * GIB,
                52.0 if slow else 66 + rng.uniform(0, 9),
                "",
            )
        )
    return tuple(found)


def curves(steps: int = 18_450, points: int = 600, per_epoch: int = 9000, seed: int = 3) -> tuple[Curve, ...]:
    """Curves as the collector makes them: all share their rows, validation is known twice an epoch."""
    rng = random.Random(seed)
    rows: list[tuple[float, float, dict[str, float]]] = []
    for index in range(points):
        step = round((index + 1) * steps / points)
        trend = 1.86 + 4.2 * math.exp(-step / 2600) + 0.5 * math.exp(-step / 16000)
        noise = rng.gauss(0, 0.05 + 0.1 * math.exp(-step / 9000))
        row = {"train/loss": trend + noise, "lr": 1e-4 * (1 - step / 50_000), "grad_norm": 0.4 + rng.random() / 10}
        rows.append((step, step / per_epoch, row))
    for end in range(per_epoch // 2, steps + 1, per_epoch // 2):
        loss = 1.9 + 4.0 * math.exp(-end / 2600) + 0.5 * math.exp(-end / 15000)
        accuracy = 0.76 - 0.4 * math.exp(-end / 5000)
        row = {"val/loss": loss, "val/acceptance_length": 1 + accuracy + accuracy**2.2 + accuracy**3.6}
        row |= {f"val/acc_{place}": accuracy ** (1 + 0.45 * place) for place in range(3)}
        row |= {f"val/rate_{place}": accuracy ** (1, 2.2, 3.6)[place] for place in range(3)}
        rows.append((end, end / per_epoch, row))
    rows.sort(key=lambda one: one[0])
    names = sorted({name for _, _, row in rows for name in row})
    at, epochs = tuple(step for step, _, _ in rows), tuple(epoch for _, epoch, _ in rows)
    return tuple(Curve(name, at, epochs, tuple(row.get(name) for _, _, row in rows)) for name in names)


def disk(used: float = 2.31e12, rate: float | None = 1.06e7) -> DiskView:
    capacity, reserve = 3_000_000_000_000, 100_000_000_000
    free = capacity - int(used)
    full = (free - reserve) / rate if rate else None
    return DiskView("/data", capacity, int(used), free, reserve, rate, full)


def link(state: str = "LIVE", **fields: Any) -> LinkView:
    values: dict[str, Any] = {
        "state": state,
        "age_s": 0.4,
        "rtt_ms": 38.2,
        "retry_in_s": None,
        "host": "gpu-box",
        "message": "",
        "remedy": "",
        "skew_s": 0.0,
    }
    return LinkView(**{**values, **fields})


def plan_json(**changes: object) -> Mapping[str, object]:
    plan: dict[str, object] = set_values(Plan(revision=3), changes).to_json()
    return plan


LOG = tuple(
    f"step {12_300 + i}/45000 loss {1.842 - i / 9000:.3f} acc .71 .58 .47 lr 6.1e-05 grad {0.42 + i % 7 / 100:.2f} "
    f"tokens/s {18_200 + 13 * i}"
    for i in range(60)
)
EVENTS = (
    EventView(NOW - 86_400, "generate", "saved", "10,000 samples, 21,033,536 tokens"),
    EventView(NOW - 15_000, "extract", "info", "1,180 shards"),
    EventView(NOW - 6_700, "train", "checkpoint", "checkpoint step-009000, val loss 2.114"),
    EventView(NOW - 3_500, "train", "warning", "3 sequences longer than 2048 tokens were cut"),
    EventView(NOW - 260, "train", "checkpoint", "checkpoint step-018000, val loss 2.031"),
)


def _base(**fields: Any) -> Snapshot:
    values: dict[str, Any] = {
        "link": link(),
        "run": "kimi-k25-10k",
        "host": "gpu-box",
        "plan_revision": 3,
        "through": "deploy",
        "verifier": "Kimi-K2.5",
        "stages": stages(),
        "gpus": gpus(),
        "gpu_note": "",
        "disk": disk(),
        "samples": None,
        "tokens": None,
        "tokens_target": None,
        "samples_target": 10_000,
        "curves": (),
        "acceptance_length": None,
        "log": (),
        "log_source": "",
        "events": (),
        "budget": BudgetView(2_293_760_000_000, 2_890_000_000_000, True, ""),
        "services": (),
        "conductor": ConductorView(),
        "runs": ("kimi-k25-10k", "kimi-k25-lr3e5", "smoke"),
        "taken_wall": NOW,
        "plan": plan_json(),
    }
    return Snapshot(**{**values, **fields})


def before_start() -> Snapshot:
    return _base(disk=disk(4.1e11, None), gpus=tuple(replace(g, util_pct=0.0, power_w=31.0) for g in gpus()))


def generating() -> Snapshot:
    at_work = stage(
        "generate", "RUNNING", done=4120, total=10_000, rate=1.21, eta_s=4860, elapsed_s=3420, counts={"rejected": 12}
    )
    return _base(
        stages=stages(generate=at_work),
        samples=4120,
        tokens=8_664_360,
        disk=disk(4.2e11, 2.1e5),
        log=tuple(f"sample {i} ok 2,{i % 1000:03d} tokens stop" for i in range(4080, 4121)),
        log_source="generate",
        events=(EventView(NOW - 900, "generate", "reject", "row 1733: the answer holds no </think>"),),
    )


def training() -> Snapshot:
    done = {
        "generate": stage("generate", "DONE", done=10_000, total=10_000, elapsed_s=33_600),
        "extract": stage("extract", "DONE", done=21_033_536, total=21_033_536, elapsed_s=24_060),
        "vocab": stage("vocab", "DONE", elapsed_s=64),
        "train": stage(
            "train", "RUNNING", done=18_450, total=45_000, rate=1.22, eta_s=21_762, elapsed_s=15_123, attempt=2
        ),
    }
    return _base(
        stages=stages(**done),
        samples=10_000,
        tokens=21_033_536,
        curves=curves(),
        acceptance_length=2.41,
        log=LOG,
        log_source="train",
        events=EVENTS,
    )


def done() -> Snapshot:
    report = {
        "acceptance_length": 2.47,
        "rate_by_position": [0.742, 0.551, 0.402],
        "tokens_per_s": {"plain": 61.2, "drafted": 118.7},
    }
    base = training()
    finished = tuple(
        replace(one, state="DONE", done=one.total, eta_s=None, elapsed_s=one.elapsed_s or 412, rate=None)
        for one in base.stages
    )
    deploy = replace(finished[4], report=report, attempt=1, output=1, unit="prompts", done=64, total=64)
    idle = tuple(replace(g, util_pct=0.0, power_w=34.0, mem_used=0.6 * GIB) for g in base.gpus)
    return replace(
        base,
        stages=(*finished[:4], deploy),
        curves=curves(45_000),
        acceptance_length=2.47,
        gpus=idle,
        disk=disk(2.34e12, None),
        log_source="deploy",
        log=("greedy output identical on 63 of 64 prompts, 1 near tie", "acceptance length 2.470 at k=3"),
    )


def lost() -> Snapshot:
    away = link("BACKOFF", age_s=47.0, rtt_ms=None, retry_in_s=6.0, message="The connection to gpu-box was lost")
    return replace(training(), link=away)


def failed() -> Snapshot:
    base = training()
    broken = replace(
        base.stages[3],
        state="FAILED",
        resumable=True,
        saved=18_000,
        eta_s=None,
        rate=None,
        message="CUDA ran out of memory at step 18,450 (94.1 of 95.6 GiB were in use)",
        remedy="Lower train.batch_tokens to 4096 (e), then resume (r) from step-018000",
    )
    stale = replace(base.stages[2], stale=True, stale_reason="vocab.size is 16000 now, was 32000")
    idle = tuple(replace(g, util_pct=0.0, power_w=33.0, mem_used=0.6 * GIB) for g in base.gpus)
    return replace(base, stages=(*base.stages[:2], stale, broken, base.stages[4]), gpus=idle, disk=disk(rate=None))


STATES: Mapping[str, Callable[[], Snapshot]] = {
    "before_start": before_start,
    "generating": generating,
    "training": training,
    "done": done,
    "lost": lost,
    "failed": failed,
}


class FakeCollector:
    """Records every action in `calls`; raises `error` if it is set; while `slow`, answers when `go` is set."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.calls: list[tuple[Any, ...]] = []
        self.error: Exception | None = None
        self.slow = False
        self.go = asyncio.Event()
        self.preview: BudgetView | None = BudgetView(10**9, 10**12, True, "")
        self._callbacks: list[Callable[[], None]] = []

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    @property
    def subscribers(self) -> int:
        return len(self._callbacks)

    def publish(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        for callback in tuple(self._callbacks):
            callback()

    async def _act(self, *call: Any) -> None:
        self.calls.append(call)
        if self.slow:
            await self.go.wait()
        if self.error is not None:
            raise self.error

    async def start(self, *, first: str | None = None, through: str | None = None, stale: str = "refuse") -> None:
        await self._act("start", stale)

    async def stop(self, stage: str | None = None) -> None:
        await self._act("stop", stage)

    async def resume(self, stage: str | None = None, *, stale: str = "refuse") -> None:
        await self._act("resume", stage, stale)

    async def restart(self, stage: str, *, stale: str = "refuse") -> None:
        await self._act("restart", stage, stale)

    async def kill(self, stage: str | None = None) -> None:
        await self._act("kill", stage)

    async def set(self, changes: Mapping[str, object], note: str = "") -> None:
        await self._act("set", dict(changes))

    async def budget(self, plan: Mapping[str, object]) -> BudgetView | None:
        self.calls.append(("budget", json.loads(json.dumps(plan))["revision"]))
        return self.preview

    async def select(self, run: str) -> None:
        await self._act("select", run)

    def retry_now(self) -> None:
        self.calls.append(("retry",))

    async def unlock(self, file: str, passphrase: str) -> None:
        await self._act("unlock", file, passphrase)

    async def confirm_host_key(self, fingerprint: str) -> None:
        await self._act("confirm", fingerprint)


def screen_lines(app: Any) -> list[str]:
    """What the terminal shows, line by line."""
    return ["".join(segment.text for segment in strip) for strip in app.screen._compositor.render_strips()]


@contextlib.asynccontextmanager
async def console(
    snapshot: Snapshot, size: tuple[int, int] = (80, 24), clock: Callable[[], float] = lambda: NOW
) -> AsyncIterator[tuple[Any, Any, FakeCollector]]:
    """(app, pilot, collector) of a console that shows `snapshot`, its clock standing still."""
    from console.app import ConsoleApp

    collector = FakeCollector(snapshot)
    app = ConsoleApp(collector, clock=clock)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        yield app, pilot, collector


class Scenes:
    """What the tests draw: `scenes.training()`, `scenes.stage("train", "FAILED")`, …"""

    NOW = NOW
    STATES = STATES
    FakeCollector = FakeCollector
    console = staticmethod(console)
    screen_lines = staticmethod(screen_lines)
    stage = staticmethod(stage)
    stages = staticmethod(stages)
    gpus = staticmethod(gpus)
    curves = staticmethod(curves)
    disk = staticmethod(disk)
    link = staticmethod(link)
    plan_json = staticmethod(plan_json)
    before_start = staticmethod(before_start)
    generating = staticmethod(generating)
    training = staticmethod(training)
    done = staticmethod(done)
    lost = staticmethod(lost)
    failed = staticmethod(failed)


@pytest.fixture
def scenes() -> type[Scenes]:
    return Scenes


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """UTC clocks and a terminal with true colour and braille, whatever the machine has."""
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    for name in ("NO_COLOR", "TEXTUAL_THEME"):
        monkeypatch.delenv(name, raising=False)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
