"""Fault matrix, rows N: what the network does. The invariants are those of the fixture `watched`."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import json
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from remote.connection import open_connection
from remote.errors import UnreachableError
from remote.link import Kind, Pace
from remote.resolve import resolve
from remote.transfer import fetch, put
from tests.real.network import truth
from tests.real.network.laptop import BRISK, laptop


async def test_n1_blackhole_5s(gpu: Any, watched: Any) -> None:
    """Shorter than any patience: no new connection; it is caught up with."""
    async with watched(pace=Pace(stale=3.0)) as here:
        connections = gpu.accepted()
        gpu.wire.blackhole()
        await asyncio.sleep(5)
        assert here.snapshot.link.state == "STALE" and here.snapshot.link.age_s > 3
        gpu.wire.heal()
        await here.until(lambda: here.snapshot.link.state == "LIVE")
        await here.counting()
        truth.check_staleness(here, "STALE", 3.0)
        assert here.link.kinds().count("LOST") == 0 and gpu.accepted() == connections


@pytest.mark.timeout(240)
async def test_n2_blackhole_60s(gpu: Any, watched: Any) -> None:
    """The design's own clocks: lost within 21 s, live within 5 s of the return, and nothing is missing."""
    async with watched(pace=Pace()) as here:
        gpu.wire.blackhole()
        await asyncio.sleep(60)
        truth.check_staleness(here, "STALE", 10.0)
        truth.check_staleness(here, "LOST", 20.0)
        view = here.snapshot.link
        assert view.state in ("LOST", "BACKOFF", "CONNECTING") and view.age_s > 55
        assert any("did not answer" in state.message for state in here.link.states)
        assert here.state() == "RUNNING", "what was last known stays on screen"
        gpu.wire.heal()
        healed = time.monotonic()
        await here.until(lambda: here.snapshot.link.state == "LIVE")
        assert time.monotonic() - healed <= 5.0 + here.lag_s


@pytest.mark.parametrize("way", ["in", "out"])
async def test_n3_one_way_drop(gpu: Any, watched: Any, way: str) -> None:
    async with watched() as here:
        gpu.wire.blackhole(way)
        await here.until(lambda: here.link.kinds().count("LOST"), 30)
        truth.check_staleness(here, "STALE", BRISK.stale)
        truth.check_staleness(here, "LOST", BRISK.silence)
        await asyncio.sleep(3)
        assert here.link.kinds().count("LIVE") == 1
        gpu.wire.heal()
        await here.until(lambda: here.link.state.kind == Kind.LIVE, 30)


async def test_n4_reset(gpu: Any, watched: Any) -> None:
    """A connection that is reset is back before anyone has read the message."""
    async with watched(pace=Pace()) as here:
        gpu.wire.reset()
        await here.until(lambda: here.link.kinds().count("LOST"), 30)
        lost = time.monotonic()
        gpu.wire.heal()
        await here.until(lambda: here.link.state.kind == Kind.LIVE)
        assert time.monotonic() - lost <= 3.0 + here.lag_s


async def test_n6_slow_link_64kbit(gpu: Any, watched: Any) -> None:
    """A log that grows faster than the link stands in nobody's way: pings come back, the screen stays live."""
    async with watched(pace=Pace(), how={"noise": 600, "pause": 0.05}, jumps=100, settle=90) as here:
        gpu.wire.slow("64kbit")
        await pinged(here, 10)  # the piece of the log that is on its way was as large as the fast link allowed
        rounds = await pinged(here, 12)
        gpu.wire.fast()
    assert max(rounds) < 3.0 + here.lag_s, sorted(rounds)[-5:]
    assert here.link.kinds().count("LIVE") == 1, here.link.kinds()


async def test_n6_connecting_over_a_slow_link(gpu: Any) -> None:
    run = gpu.run(generate={"noise": 600, "pause": 0.05})
    gpu.wire.slow("64kbit")
    async with laptop(gpu.spec(), gpu.hostkeys(), "r1", Pace()) as here:
        await here.live()
        await here.collector.start()
        await here.until(lambda: here.count() > 5)
        rounds = await pinged(here, 8)
        gpu.wire.fast()
        await here.counting()
        truth.check_log(here, run, jumps=100)
        truth.check_no_traceback(gpu, here)
    assert max(rounds) < 3.0 + here.lag_s, sorted(rounds)[-5:]
    assert here.link.kinds().count("LIVE") == 1, here.link.kinds()


async def test_n6_put_over_a_slow_link(gpu: Any, tmp_path: Path) -> None:
    """An upload that takes longer than a silence may stands in nobody's way either."""
    (tmp_path / "up").write_bytes(os.urandom(160_000))
    gpu.run()
    async with laptop(gpu.spec(), gpu.hostkeys(), "r1", Pace()) as here:
        await here.live()
        gpu.wire.slow("64kbit")
        putting = asyncio.create_task(put(here.link, tmp_path / "up", "up"))
        await pinged(here, 8)
        rounds = await pinged(here, 10)
        await putting
        assert (gpu.root / "up").read_bytes() == (tmp_path / "up").read_bytes()
        truth.check_no_traceback(gpu, here)
    assert max(rounds) < 3.0 + here.lag_s, sorted(rounds)[-5:]
    assert here.link.kinds().count("LIVE") == 1, here.link.kinds()


@pytest.mark.parametrize("backend", ["asyncssh", "openssh"])
async def test_n6_fetch_over_a_slow_link(gpu: Any, tmp_path: Path, backend: str) -> None:
    """What is on its way down never fills the pipe for longer than about a second."""
    (gpu.root / "down").write_bytes(os.urandom(300_000))
    gpu.run()
    async with laptop(gpu.spec(backend=backend), gpu.hostkeys(), "r1", Pace()) as here:
        await here.live()
        gpu.wire.slow("64kbit")
        fetching = asyncio.create_task(fetch(here.link, "down", tmp_path / "down"))
        rounds = await pinged(here, until=fetching.done)
        await fetching
        assert (gpu.root / "down").read_bytes() == (tmp_path / "down").read_bytes()
        truth.check_no_traceback(gpu, here)
    assert max(rounds) < 3.0 + here.lag_s, sorted(rounds)[-5:]
    assert here.link.kinds().count("LIVE") == 1, here.link.kinds()


@pytest.mark.timeout(240)
async def test_n6_a_long_curve_over_a_slow_link(gpu: Any) -> None:
    """Whoever connects sees the state and the newest numbers at once; the curve of 100,000 steps becomes finer then."""
    steps = 100_000
    few = {"steps": 3}
    gpu.run(changes={"through": "train"}, generate=few, extract=few, vocab=few, train={"curve": steps, "pause": 0.2})
    async with laptop(gpu.spec(), gpu.hostkeys(), "r1", Pace()) as here:
        await here.live()
        await here.collector.start()
        await here.until(lambda: trained(here) > steps, 90)
    gpu.wire.slow("64kbit")
    async with laptop(gpu.spec(), gpu.hostkeys(), "r1", Pace()) as here:
        await here.live()
        await here.until(lambda: here.snapshot.curves)
        rough = here.snapshot.curves[0].steps
        assert rough[0] == 1 and rough[-1] > steps, "all of it, in few points"
        seen = trained(here)
        rounds = await pinged(here, until=lambda: len(here.snapshot.curves[0].steps) >= 550)
        assert here.state("train") == "RUNNING" and trained(here) > seen + 20
        await here.collector.filled()
        truth.check_no_traceback(gpu, here)
    assert max(rounds) < 3.0 + here.lag_s, sorted(rounds)[-5:]
    assert here.link.kinds().count("LIVE") == 1 and "STALE" not in here.link.kinds(), here.link.kinds()


@pytest.mark.timeout(240)
async def test_n6_catching_up_over_a_slow_link(gpu: Any) -> None:
    """What happened while nobody was connected comes in pieces too."""
    run = gpu.run(generate={"pause": 0.1})
    async with laptop(gpu.spec(), gpu.hostkeys(), "r1", Pace()) as here:
        await here.live()
        await here.collector.filled()
        await here.collector.start()
        await here.until(lambda: here.count() > 5)
        gpu.wire.reset()
        await here.until(lambda: here.link.kinds().count("LOST"), 30)
        with (run.stage("generate").attempt(1).path / "events.jsonl").open("a") as file:
            for number in range(1000):
                message = f"{number} {base64.b64encode(os.urandom(90)).decode()}"
                file.write(json.dumps({"t": time.time(), "kind": "info", "message": message}) + "\n")
        gpu.wire.slow("64kbit")
        gpu.wire.heal()
        await here.live()
        rounds = await pinged(here, until=lambda: any(one.message.startswith("999 ") for one in here.snapshot.events))
        told = [one.message for one in here.snapshot.events if re.match(r"\d+ ", one.message)]
        assert [message.split()[0] for message in told] == [str(number) for number in range(1000 - len(told), 1000)]
        await here.counting()
        truth.check_no_traceback(gpu, here)
    assert len(told) > 300 and max(rounds) < 3.0 + here.lag_s, (len(told), sorted(rounds)[-5:])
    assert here.link.kinds().count("LIVE") == 2 and "STALE" not in here.link.kinds(), here.link.kinds()


def trained(here: Any) -> int:
    """Steps that the screen shows."""
    return next((stage.done or 0 for stage in here.snapshot.stages if stage.name == "train"), 0)


async def pinged(here: Any, seconds: float = 120, until: Any = lambda: False) -> list[float]:
    """Round trips, one after the other."""
    rounds, end = [], time.monotonic() + seconds
    while time.monotonic() < end and not until():
        before = time.monotonic()
        await here.link.session.ping()
        rounds.append(time.monotonic() - before)
        await asyncio.sleep(0.3)
    return rounds


@pytest.mark.timeout(240)
async def test_n9_flapping(gpu: Any, watched: Any) -> None:
    """20 times 2 s up and 3 s down: one connection at a time, and no more of them than the backoff allows."""
    flighty = Pace(keepalive=0.4, ping=0.2, stale=0.8, silence=1.5, backoff=0.2, backoff_cap=2.0, viewer_cap=1.0)
    async with watched(pace=flighty) as here:
        connections, most = gpu.accepted(), 0
        for _ in range(20):
            gpu.wire.blackhole()
            await asyncio.sleep(3)
            gpu.wire.heal()
            end = time.monotonic() + 2
            while time.monotonic() < end:
                most = max(most, gpu.wire.established())
                await asyncio.sleep(0.1)
        assert most <= 1 and here.link.kinds().count("LOST") >= 10
        # each of the tries that got through began after a pause; a tight loop would make hundreds
        assert gpu.accepted() - connections <= 3 * 20


BANNERS = {
    "nothing": b"",
    "garbage": b"\x00\xff\x16\x03\x01" * 20 + b"\r\n",
    "another protocol": b"220 mail.example ESMTP\r\n",
    "200 lines": b"".join(b"Welcome, line %d\r\n" % line for line in range(200)),
    "no end": b"x" * 200_000,
}


async def test_n8_no_banner_garbage_banner_long_banner(gpu: Any) -> None:
    """Something that accepts connections and is no SSH server: given up within 10 s, in words."""
    said: dict[str, UnreachableError] = {}

    async def ask(name: str, banner: bytes) -> None:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(banner)
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        spec = gpu.spec(ssh=f"127.0.0.1:{server.sockets[0].getsockname()[1]}", user="root")
        began = time.monotonic()
        try:
            with pytest.raises(UnreachableError) as caught:
                await open_connection(await resolve(spec), gpu.hostkeys())
            said[name] = caught.value
            assert time.monotonic() - began < 12
        finally:
            server.close()

    await asyncio.gather(*(ask(name, banner) for name, banner in BANNERS.items()))
    for name, error in said.items():
        assert "127.0.0.1:" in error.message and error.remedy and not error.blocks, (name, error)
        assert error.code == "timeout" if name in ("nothing", "200 lines") else error.code, (name, str(error))


async def test_n8_a_banner_of_200_lines_before_ssh_is_read(gpu: Any, watched: Any) -> None:
    """RFC 4253 lets a server say other lines first; here a proxy says 200 of them."""
    async with (
        greeting(gpu.wire.there, BANNERS["200 lines"]) as port,
        watched(spec=gpu.spec(ssh=f"127.0.0.1:{port}", user=gpu.user)),
    ):
        pass


@pytest.mark.timeout(300)
async def test_n10_laptop_suspended_120s(gpu: Any) -> None:
    """The laptop sleeps for two minutes; the stage does not notice, and waking probes at once."""
    run = gpu.run()
    spec = dataclasses.asdict(gpu.spec())
    del spec["keyring"]  # opened keys are a process's own
    given = {"spec": spec, "state": str(gpu.hostkeys().path.parent), "run": "r1", "pace": dataclasses.asdict(Pace())}
    argv = [sys.executable, "-m", "tests.real.network.laptop", json.dumps(given)]
    child = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        limit=1 << 24,
    )  # fmt: skip
    assert child.stdin is not None and child.stdout is not None

    async def line_with(want: Any, seconds: float = 60) -> dict[str, Any]:
        async with asyncio.timeout(seconds):
            while True:
                line = await child.stdout.readline()
                assert line, await child.stderr.read()
                if want(found := json.loads(line)):
                    return found

    try:
        await line_with(lambda line: line["link"] == "LIVE")
        async with laptop(gpu.spec(), gpu.hostkeys(), "r1") as other:
            await other.live()
            await other.collector.start()
            await other.until(lambda: other.count() > 5)
        untouched = truth.Untouched.of(run)
        before = await line_with(lambda line: (line["count"] or 0) > 5)
        await truth.check_nothing_leaks(gpu, agents=2)
        child.send_signal(signal.SIGSTOP)
        await asyncio.sleep(60)
        assert not gpu.wire.agents(), "an agent that hears nothing for 45 s ends"
        await asyncio.sleep(60)
        counted = truth.assert_counts(run.stage("generate"))
        child.send_signal(signal.SIGCONT)
        woke = time.monotonic()
        after = await line_with(lambda line: line["link"] == "LIVE" and line["count"] >= counted, 30)
        assert after["mono"] - woke <= 5.0, after
        assert after["states"].count("LIVE") == before["states"].count("LIVE") + 1
        untouched.check()
        gpu.flag.touch()
        await line_with(lambda line: line["stage"] == "DONE")
        log = (run.stage("generate").attempt(1).path / "stage.log").read_bytes()
        child.stdin.close()
        told = await line_with(lambda line: "log" in line)
        position = 0
        for jumped, offset, data in told["log"]:
            assert offset == position or (jumped and offset > 0), "a gap, or read twice"
            piece = bytes.fromhex(data)
            position = offset + len(piece)
            assert log[offset:position] == piece
        assert position == len(log) and told["log"][0][1] == 0
        assert await child.wait() == 0
        assert b"Traceback" not in await child.stderr.read() and not after["troubles"]
        await truth.check_nothing_leaks(gpu)
        truth.check_no_traceback(gpu)
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


@contextlib.asynccontextmanager
async def greeting(host: str, banner: bytes) -> AsyncIterator[int]:
    """A proxy to an sshd that says something first. Its port."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(banner)
        far_reader, far_writer = await asyncio.open_connection(host, 22)
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
