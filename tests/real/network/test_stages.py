"""Fault matrix, rows P: supervisors and stages killed, families of processes, reused pids, restarts, floods, logs."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline.rundir import RunDir
from remote.errors import RemoteError
from tests.real.network import truth
from tests.real.network.laptop import Laptop, laptop
from tests.real.network.topology import alive


@asynccontextmanager
async def begun(gpu: Any, *, changes: dict[str, object] | None = None, **how: Any) -> AsyncIterator[tuple[Laptop, Any]]:
    """A laptop that looks at a stage which counts, and the run as it is on the disk."""
    run = gpu.run(changes=changes, generate=how)
    async with laptop(gpu.spec(), gpu.hostkeys(), "r1") as here:
        await here.live()
        await here.collector.filled()
        await here.collector.start()
        await here.until(lambda: here.count() > 0)
        yield here, run
        truth.check_no_traceback(gpu, here)
    await truth.check_nothing_leaks(gpu)


def pid_of(run: RunDir, role: str) -> int:
    latest = run.stage("generate").latest()
    assert latest is not None
    return int(latest.state()[role]["pid"])


def conductors(gpu: Any) -> list[int]:
    return list(gpu.wire.processes("remote.agent", "conduct"))


def workers(gpu: Any) -> list[int]:
    """What belongs to the stage: neither sshd nor anything of ours."""
    ours = {*gpu.wire.processes("remote.agent"), *gpu.sessions(), gpu.listener, gpu.process.pid}
    return [pid for pid in gpu.wire.pids() if pid not in ours and alive(pid)]


def kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


# ------------------------------------------------------------ P1


async def test_p1_kill_supervisor(gpu: Any) -> None:
    """The conductor finds the members and has them supervised again; the stage never notices."""
    async with begun(gpu) as (here, run):
        main = pid_of(run, "main")
        kill(supervisor := pid_of(run, "supervisor"))
        await here.until(lambda: pid_of(run, "supervisor") != supervisor)
        await here.counting(20)
        assert here.state() == "RUNNING" and pid_of(run, "main") == main and run.stage("generate").attempts() == [1]
        gpu.flag.touch()
        await truth.check_end(here, run)
        assert here.state() == "DONE"
        truth.assert_counts(run.stage("generate"))
        truth.check_log(here, run)
        await truth.check_events(here, run)


async def lose(here: Laptop, gpu: Any, run: RunDir) -> int:
    """Nobody is left who would adopt the stage. Its main process."""
    main = pid_of(run, "main")
    kill(*conductors(gpu), pid_of(run, "supervisor"))
    await here.until(lambda: here.state() == "LOST")
    assert alive(main) and here.stage().remedy
    return main


async def test_p1_lost_and_adopted(gpu: Any) -> None:
    async with begun(gpu) as (here, run):
        main = await lose(here, gpu, run)
        await here.link.request("adopt", run="r1", stage="generate")
        await here.until(lambda: here.state() == "RUNNING")
        await here.counting()
        assert pid_of(run, "main") == main
        await here.collector.stop("generate")
        await truth.check_end(here, run)
        assert here.state() == "STOPPED" and here.stage().resumable and not workers(gpu)
        truth.assert_counts(run.stage("generate"))


async def test_p1_lost_and_killed(gpu: Any) -> None:
    async with begun(gpu, then="family") as (here, run):
        await here.until(lambda: len(workers(gpu)) >= 7)
        main = await lose(here, gpu, run)
        await here.collector.kill("generate")
        await truth.check_end(here, run)
        assert here.state() == "KILLED" and not alive(main) and not workers(gpu)


async def test_p1_lost_and_ends_by_itself(gpu: Any) -> None:
    """Its own outcome says that it is done."""
    async with begun(gpu) as (here, run):
        await lose(here, gpu, run)
        gpu.flag.touch()
        await here.until(lambda: here.state() == "DONE")
        truth.assert_counts(run.stage("generate"))
        assert run.stage("generate").latest().exit() is None  # type: ignore[union-attr]


# ------------------------------------------------------------ P2

ENDS = {
    "SIGKILL": ({"then": "kill"}, "FAILED", "SIGKILL"),
    "segv": ({"then": "segv"}, "FAILED", "SIGSEGV"),
    "a failure in words": ({"then": "fail"}, "FAILED", "the counting fails"),
    "exit 0 with live children": ({"then": "leave"}, "DONE", ""),
}


@pytest.mark.parametrize(("how", "state", "said"), ENDS.values(), ids=ENDS)
async def test_p2_stage_ends(gpu: Any, how: dict[str, Any], state: str, said: str) -> None:
    async with begun(gpu, changes={"generate.grace_s": "2"}, **how) as (here, run):
        await truth.check_end(here, run)
        assert here.state() == state and said in here.stage().message
        assert not workers(gpu), "leftovers"
        truth.assert_counts(run.stage("generate"))
        truth.check_log(here, run)
        await truth.check_events(here, run)
        assert run.stage("generate").attempts() == [1], "nothing is started again by itself"


async def test_p2_killed_from_outside(gpu: Any) -> None:
    async with begun(gpu) as (here, run):
        kill(pid_of(run, "main"))
        await truth.check_end(here, run)
        assert here.state() == "FAILED" and "SIGKILL" in here.stage().message and here.stage().resumable
        counted = truth.assert_counts(run.stage("generate"))
        gpu.flag.touch()
        await here.collector.resume("generate")
        await here.until(lambda: here.state() == "DONE")
        assert truth.assert_counts(run.stage("generate")) >= counted


# ------------------------------------------------------------ P3


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_p3_family_leaves_no_survivor(gpu: Any, how: str) -> None:
    """Own sessions, another title, deaf to TERM, forked twice: as torchrun and vLLM leave them."""
    async with begun(gpu, changes={"generate.grace_s": "2"}, then="family") as (here, run):
        await here.until(lambda: len(workers(gpu)) >= 7)
        await (here.collector.stop("generate") if how == "stop" else here.collector.kill("generate"))
        await truth.check_end(here, run)
        assert here.state() == ("STOPPED" if how == "stop" else "KILLED")
        assert not workers(gpu)
        truth.assert_counts(run.stage("generate"))


# ------------------------------------------------------------ P4, P7: in a container of its own


@pytest.fixture
def container(make_host: Callable[..., Any]) -> Any:
    return make_host(container=True)


def stranger(gpu: Any, pid: int) -> None:
    """A process of somebody else under ``pid``."""
    script = f"echo {pid - 1} > /proc/sys/kernel/ns_last_pid; sleep 600 >/dev/null 2>&1 & echo $!"
    for _ in range(50):
        if int(gpu.enter("sh", "-c", script).stdout) == pid:
            return
    raise AssertionError(f"pid {pid} is not to be had")


async def test_p4_reused_pid_is_never_signalled(container: Any) -> None:
    async with begun(container) as (here, run):
        remembered = [pid_of(run, "supervisor"), pid_of(run, "main")]
        conductor = container.enter("pgrep", "-f", "remote.agent conduct").stdout.split()
        container.enter("kill", "-9", *conductor, *remembered)
        await here.until(lambda: here.state() in ("LOST", "FAILED"))
        gone = f"for p in {' '.join(map(str, remembered))}; do while kill -0 $p 2>/dev/null; do sleep 0.05; done; done"
        container.enter("timeout", "20", "sh", "-c", gone)
        for pid in remembered:
            stranger(container, pid)
        assert here.state() == "LOST"
        with pytest.raises(RemoteError, match="nothing of generate runs"):
            await here.collector.kill("generate")
        await here.collector.resume("generate")
        await here.until(lambda: here.state() == "RUNNING")
        await here.counting()
        await here.collector.kill("generate")
        await here.until(lambda: here.state() == "KILLED")
        for pid in remembered:
            assert container.enter("cat", f"/proc/{pid}/comm").stdout == "sleep\n"
        assert run.stage("generate").attempts() == [1, 2]
        truth.assert_counts(run.stage("generate"))


async def test_p7_container_restart(container: Any) -> None:
    async with begun(container) as (here, run):
        await here.counting(20)
        container.stop()
        await here.until(lambda: here.snapshot.link.state not in ("LIVE", "STALE"))
        counted = truth.assert_counts(run.stage("generate"))
        container.start()
        await here.live()
        await here.until(lambda: here.state() == "INTERRUPTED")
        assert here.stage().resumable
        await here.collector.resume("generate")
        await here.until(lambda: here.count() > counted)
        container.flag.touch()
        await here.until(lambda: here.state() == "DONE")
        truth.assert_counts(run.stage("generate"))
        assert run.stage("generate").attempts() == [1, 2]


# ------------------------------------------------------------ P8


async def test_p8_flood(gpu: Any) -> None:
    """A log as fast as the disk, a line of 50 MB, bytes, bombs for terminals: requests go on, memory stays small."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with begun(gpu, then="flood", flood_s=4, after=5) as (here, run):
        log = run.stage("generate").attempt(1).path / "stage.log"
        await here.until(lambda: log.stat().st_size > 60_000_000)
        rounds, shown = [], set()
        while here.count() < 20:
            before = time.monotonic()
            await here.link.session.ping()
            rounds.append(time.monotonic() - before)
            shown.update(here.snapshot.log)
            await asyncio.sleep(0.1)
        assert max(rounds) < 2.0 + here.lag_s, max(rounds)
        assert here.link.kinds().count("LIVE") == 1 and "STALE" not in here.link.kinds()
        for line in shown:
            assert not re.search(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]", line) and len(line) <= 4096
        for pid in gpu.wire.agents():
            high = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
            assert high and int(high[1]) < 80_000, high
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 200_000
        gpu.flag.touch()
        await truth.check_end(here, run)


# ------------------------------------------------------------ P9


@pytest.mark.parametrize("what", ["rotate", "truncate", "delete", "replace"])
async def test_p9_log(gpu: Any, what: str) -> None:
    """Somebody meddles with the log while it is read: a new one is read from its start, none is mixed with another."""
    async with begun(gpu, pause=0.05) as (here, run):
        log = run.stage("generate").attempt(1).path / "stage.log"
        await here.until(lambda: log.stat().st_size > 3000 and here.link.log)
        kept = log.open("rb")  # the file that the stage goes on writing to, whatever becomes of its name
        first = generation(log)
        if what == "truncate":
            read = here.log_pieces()[-1][2]
            os.truncate(log, 0)
            await here.until(lambda: here.log_pieces()[-1][2] < read and log.stat().st_size > 200)
        elif what == "delete":
            log.unlink()
        else:
            fresh = log.with_suffix(".new")
            fresh.write_bytes(b"another log\n" * 50)
            if what == "rotate":
                log.rename(log.with_suffix(".log.1"))
            os.replace(fresh, log)
            with log.open("ab") as file:
                file.write(b"the new one goes on\n")
            await here.until(lambda: any("the new one goes on" in line for line in here.snapshot.log))
        await here.counting(20)
        seen: dict[str, bytes] = {}
        for _, name, offset, piece in here.log_pieces():
            if piece and offset == 0:
                seen[name] = b""
            assert not piece or offset == len(seen[name]), "a gap, or read twice"
            seen[name] = seen.get(name, b"") + piece
        with kept:
            assert kept.read().startswith(seen[first])
        if what in ("rotate", "replace"):
            assert log.read_bytes() == seen[generation(log)]
        gpu.flag.touch()
        await here.until(lambda: here.state() == "DONE")


def generation(log: Path) -> str:
    """As the agent names a log."""
    seen = log.stat()
    return f"{seen.st_dev:x}-{seen.st_ino:x}"
