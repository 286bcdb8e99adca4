"""The measurements themselves, each on the product's own link and collector. Seconds, bytes, MB of 10^6 bytes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.remote.footprint import carried, cpu_s, family, pss_mb
from benchmarks.remote.host import Host, Unmeasurable, write_stage, write_verifier
from console.collector import Collector
from console.log_tail import LogTail
from pipeline.config import Plan, VerifierPlan
from remote.archive import build_archive
from remote.link import Kind, Link
from remote.transfer import fetch

WORKING, QUIET = "working", "quiet"
"""Two runs: one trains, the other was never started."""
FETCHED = 100_000_000
"""Bytes of the file that is fetched."""
KEY_EVERY_S = 0.1
SETTLE_S = 5.0
PATIENCE_S = 90.0
OUTAGE_S = (2.0, 7.0, 12.0)
"""How long the network stays away after its loss was seen: the return meets the link's tries at different moments."""


# ------------------------------------------------------------ connecting


def _seconds(argv: list[str], data: bytes = b"") -> float:
    began = time.perf_counter()
    done = subprocess.run(argv, input=data, capture_output=True)
    if done.returncode:
        raise Unmeasurable(f"`{argv[0]}` failed: {done.stderr.decode(errors='replace').strip()[-300:]}")
    return time.perf_counter() - began


def _connected(host: Host, root: Path) -> dict[str, float]:
    spec = dataclasses.asdict(host.spec(root))
    del spec["keyring"]  # opened keys are a process's own
    asked = {"spec": spec, "state": str(host.folder / "state")}
    argv = [sys.executable, "-m", "benchmarks.remote.laptop"]
    done = subprocess.run(argv, input=json.dumps(asked), capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {"error": done.stderr[-500:]}
    if found["error"]:
        raise Unmeasurable(f"no connection: {found['error']}")
    seconds: dict[str, float] = found["seconds"]
    return seconds


def connecting(host: Host, rounds: int) -> dict[str, Any]:
    """To LIVE with and without the code there, beside OpenSSH's own client on the same server. In turn, by rounds."""
    archive = build_archive()
    copy = host.ssh(f"cat > {host.folder}/archive")
    taken: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        root = host.root.parent / f"first-{number}"
        first, copied = _connected(host, root), _seconds(copy, archive.data)
        again, true = _connected(host, root), _seconds(host.ssh("true"))
        seen = {"live_first_s": first["LIVE"], "copy_s": copied, "live_again_s": again["LIVE"], "ssh_true_s": true}
        seen |= {"again_connected_s": again["BOOTSTRAP"]}
        for name, seconds in seen.items() if number else ():  # the first round fills caches
            taken.setdefault(name, []).append(seconds)
    found: dict[str, Any] = {name: statistics.median(seconds) for name, seconds in taken.items()}
    return {
        **found,
        "archive_bytes": len(archive.data),
        "live_first_to_copy": found["live_first_s"] / found["copy_s"],
        "live_again_to_ssh_true": found["live_again_s"] / found["ssh_true_s"],
        "connecting_all": taken,
    }


def fetching(host: Host, rounds: int) -> dict[str, Any]:
    """A file that comes home, resumable and hashed, beside `ssh host cat file` on the same server. In turn."""
    there, here = host.root / "down", host.folder / "down"
    there.write_bytes(random.Random(1).randbytes(FETCHED))
    taken: dict[str, list[float]] = {"fetch_s": [], "cat_s": []}

    async def fetched() -> float:
        async with Link(host.spec(), host.hostkeys) as link:
            await within(link.wait_for(Kind.LIVE), "the link did not become LIVE")
            began = time.perf_counter()
            await fetch(link, there.name, here)
            return time.perf_counter() - began

    for _ in range(rounds):
        taken["fetch_s"].append(asyncio.run(fetched()))
        taken["cat_s"].append(_seconds(host.ssh(f"cat {there}")))
    found = {name: statistics.median(seconds) for name, seconds in taken.items()}
    return {
        **found,
        "fetched_mb_per_s": FETCHED / found["fetch_s"] / 1e6,
        "fetch_to_cat": found["fetch_s"] / found["cat_s"],
        "fetching_all": taken,
    }


# ------------------------------------------------------------ a console that stays


@asynccontextmanager
async def console(host: Host, run: str) -> AsyncIterator[tuple[Link, Collector]]:
    """What the console holds of one run, with somebody looking, once the link is LIVE."""
    link = Link(host.spec(), host.hostkeys)
    link.viewer = True
    async with link, Collector(link, run) as collector:
        await within(link.wait_for(Kind.LIVE, Kind.BLOCKED), "the link did not become LIVE")
        yield link, collector


async def within(waiting: Any, otherwise: str, seconds: float = PATIENCE_S) -> Any:
    """The result of ``waiting``. Unmeasurable when it takes longer than anything that is worth a number."""
    try:
        async with asyncio.timeout(seconds):
            return await waiting
    except TimeoutError:
        raise Unmeasurable(f"{otherwise} within {seconds:.0f} s") from None


async def until(true: Callable[[], object], every_s: float = 0.02) -> None:
    while not true():  # noqa: ASYNC110 (processes and snapshots set no event)
        await asyncio.sleep(every_s)


async def begin(host: Host) -> None:
    """Both runs; the working one as far as its training."""
    stage, verifier = write_stage(host.folder), write_verifier(host.folder)
    plan = Plan(verifier=VerifierPlan(str(verifier), "made up"), through="train")
    stages = {name: dataclasses.replace(one, python=str(stage), grace_s=10.0) for name, one in plan.stages.items()}
    plan = dataclasses.replace(plan, stages=stages)
    async with Link(host.spec(), host.hostkeys) as link:
        await within(link.wait_for(Kind.LIVE), "the link did not become LIVE")
        for run in (QUIET, WORKING):
            await link.request("create", name=run, plan=plan.to_json())
    async with console(host, WORKING) as (_, collector):
        await collector.start()

        def training() -> bool:
            seen = collector.snapshot
            if seen.conductor is not None and seen.conductor.state in ("halted", "failed"):
                raise Unmeasurable(f"the run of the measurements halted: {seen.conductor.message}")
            return any(stage.name == "train" and stage.state == "RUNNING" for stage in seen.stages)

        await within(until(training), "the stages did not get as far as the training")


async def end(host: Host) -> None:
    """Kills the training, by the product's own means."""
    async with console(host, WORKING) as (_, collector):
        await collector.kill()
        await within(until(lambda: not host.subcommand("supervise"), 0.2), "the supervisor did not end")


async def standing(host: Host, seconds: float) -> dict[str, Any]:
    """Memory, processor time and bytes on the wire while a stage works and somebody looks; then of a quiet run."""
    async with console(host, WORKING) as (link, collector):
        python, agent = link.session.agent.python, link.session.agent.hello.pid
        bare = await asyncio.create_subprocess_exec(python, "-I", "-S", "-c", "import signal; signal.pause()")
        try:
            await within(collector.filled(), "the host told nothing about the run")
            await asyncio.sleep(SETTLE_S)
            groups = {"agent": family(agent), "supervisor": host.subcommand("supervise")}
            others = set(host.subcommand("serve")) - {agent}
            groups |= {"second_agent": sorted(others), "recorder": host.subcommand("record")}
            groups |= {"conductor": host.subcommand("conduct")}
            before = {name: cpu_s(pids) for name, pids in groups.items()}
            sent, began = carried(host.address, host.port), time.perf_counter()
            memory: dict[str, list[float]] = {name: [] for name in (*groups, "bare")}
            while time.perf_counter() - began < seconds:
                await asyncio.sleep(seconds / 5)
                for name, pids in {**groups, "bare": [bare.pid]}.items():
                    memory[name].append(pss_mb(pids))
            passed = time.perf_counter() - began
            busy = carried(host.address, host.port) - sent
            used = {name: 100 * (cpu_s(pids) - before[name]) / passed for name, pids in groups.items()}
        finally:
            bare.kill()
            await bare.wait()
        await collector.select(QUIET)
        await within(collector.filled(), "the host told nothing about the quiet run")
        await asyncio.sleep(SETTLE_S)
        sent, began = carried(host.address, host.port), time.perf_counter()
        await asyncio.sleep(seconds)
        passed_quiet = time.perf_counter() - began
        calm = carried(host.address, host.port) - sent
    pushes = await _pushed(host, seconds)
    megabytes = {name: statistics.median(values) for name, values in memory.items()}
    return {
        "agent_rss_mb": megabytes["agent"],
        "agent_cpu_pct": used["agent"],
        "supervisor_above_bare_mb": megabytes["supervisor"] - megabytes["bare"],
        "supervisor_cpu_pct": used["supervisor"],
        "wire_bytes_per_s": calm.payload / passed_quiet,
        "wire_with_headers_bytes_per_s": calm.wire / passed_quiet,
        "working_wire_bytes_per_s": busy.payload / passed,
        "working_wire_with_headers_bytes_per_s": busy.wire / passed,
        "working_pushes_bytes_per_s": pushes,
        "memory_mb": megabytes,
        "cpu_pct": used,
        "gpus": len(collector.snapshot.gpus),
        "host_python": python,
    }


async def _pushed(host: Host, seconds: float) -> float:
    """Bytes a second of what is told unasked while a stage works: telemetry and the run's section, no curve, no log."""
    async with Link(host.spec(), host.hostkeys) as link:
        await within(link.wait_for(Kind.LIVE, Kind.BLOCKED), "the link did not become LIVE")
        await link.watch(WORKING)
        await asyncio.sleep(SETTLE_S)
        sent, began = carried(host.address, host.port), time.perf_counter()
        await asyncio.sleep(seconds)
        told = carried(host.address, host.port) - sent
        return told.payload / (time.perf_counter() - began)


# ------------------------------------------------------------ a log that floods


async def flooded(host: Host, seconds: float) -> dict[str, Any]:
    """Round trips and heartbeats while a log is followed: a calm one, then the same at 50 MB/s."""
    async with console(host, WORKING) as (link, collector):
        await within(collector.filled(), "the host told nothing about the run")
        await asyncio.sleep(1.0)
        calm = await _followed(host, link, seconds)
        switch = host.root / WORKING / "flood"
        switch.touch()
        try:
            await asyncio.sleep(1.0)
            flood = await _followed(host, link, seconds)
        finally:
            switch.unlink()
    return {"calm": calm, "flood": flood}


async def _followed(host: Host, link: Link, seconds: float) -> dict[str, Any]:
    log = next((host.root / WORKING / "train" / "attempts").glob("*/stage.log"))
    pushes: list[float] = [time.perf_counter()]
    keys: list[float] = []
    pings: list[float] = []
    read = 0
    end = time.perf_counter() + seconds

    async def press() -> None:
        while time.perf_counter() < end:
            began = time.perf_counter()
            await link.request("plan", run=WORKING)
            keys.append(time.perf_counter() - began)
            await asyncio.sleep(KEY_EVERY_S)

    async def beat() -> None:
        while time.perf_counter() < end:
            began = time.perf_counter()
            await link.session.ping()
            pings.append(time.perf_counter() - began)
            await asyncio.sleep(KEY_EVERY_S)

    async def follow() -> None:  # as `eagledeck logs -f` does, beside the collector
        nonlocal read
        tail = LogTail(first_bytes=0)
        while time.perf_counter() < end:
            before = tail.offset
            tail.add(await link.request("tail", run=WORKING, stage="train", **tail.request()))
            read += tail.offset - before if before > 0 else 0
            if not tail.behind:
                await asyncio.sleep(0.5)

    written, began = log.stat().st_size, time.perf_counter()
    forget = link.subscribe(lambda name, data: pushes.append(time.perf_counter()) if name == "host" else None)
    try:
        await asyncio.gather(press(), beat(), follow())
    finally:
        forget()
    passed = time.perf_counter() - began
    gaps = [later - earlier for earlier, later in pairwise([*pushes, time.perf_counter()])]
    return {
        "written_mb_per_s": (log.stat().st_size - written) / passed / 1e6,
        "followed_mb_per_s": read / passed / 1e6,
        "key_ms": 1000 * statistics.median(keys),
        "key_worst_ms": 1000 * max(keys),
        "heartbeat_ms": 1000 * statistics.median(pings),
        "heartbeat_worst_ms": 1000 * max(pings),
        "telemetry_gap_s": max(gaps),
    }


# ------------------------------------------------------------ a network that goes away


async def lost(host: Host) -> dict[str, Any]:
    """A cable that is pulled: until the screen says so, until it is LIVE again, and what the curve missed."""
    taken: dict[str, list[float]] = {}
    for outage in OUTAGE_S:
        for name, value in (await _one_loss(host, outage)).items():
            taken.setdefault(name, []).append(value)
    found: dict[str, Any] = {name: statistics.median(values) for name, values in taken.items()}
    found |= {"loss_seen_worst_s": max(taken["loss_seen_s"]), "back_live_worst_s": max(taken["back_live_s"])}
    return {**found, "hole_steps": max(taken["hole_steps"]), "loss_all": taken}


async def _one_loss(host: Host, outage: float) -> dict[str, float]:
    metrics = next((host.root / WORKING / "train" / "attempts").glob("*/metrics.jsonl"))
    async with console(host, WORKING) as (link, collector):
        await within(collector.filled(), "the host told nothing about the run")
        await asyncio.sleep(3.0)
        last_before = _steps(collector)[-1]
        began = time.perf_counter()
        stale = asyncio.create_task(link.wait_for(Kind.STALE))
        stale_s = 0.0

        def note(task: Any) -> None:
            nonlocal stale_s
            stale_s = time.perf_counter() - began

        stale.add_done_callback(note)
        host.cut()
        try:
            await within(link.wait_for(Kind.LOST, Kind.BACKOFF), "nobody noticed that the network was gone")
            seen = time.perf_counter() - began
            await asyncio.sleep(outage)
        finally:
            stale.cancel()
            host.join()
        back = time.perf_counter()
        await within(link.wait_for(Kind.LIVE), "the link did not come back")
        live = time.perf_counter()
        with metrics.open("rb") as file:
            newest = json.loads(file.readlines()[-2])["step"]
        await within(until(lambda: _steps(collector)[-1] >= newest), "the curve was not filled")
        await within(collector.filled(), "the curve was not filled")
        filled = time.perf_counter()
        steps = [step for step in _steps(collector) if step >= last_before]
    return {
        "stale_seen_s": stale_s,
        "loss_seen_s": seen,
        "back_live_s": live - back,
        "filled_s": filled - live,
        "hole_steps": max((later - earlier for earlier, later in pairwise(steps)), default=0.0) - 1,
    }


def _steps(collector: Collector) -> tuple[float, ...]:
    with contextlib.suppress(StopIteration):
        return next(curve.steps for curve in collector.snapshot.curves if curve.name == "train/loss") or (0.0,)
    return (0.0,)
