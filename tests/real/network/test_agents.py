"""Fault matrix, rows A: the agent killed, stopped, old, half uploaded, and hosts whose Python is none."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remote import bootstrap
from remote.archive import Archive, build_archive, pack, sources
from remote.bootstrap import start_agent
from remote.connection import open_connection
from remote.errors import BootstrapError, RemoteError
from remote.resolve import resolve
from tests.real.network import truth
from tests.real.network.laptop import BRISK, laptop
from tests.real.network.proxy import cutter
from tests.real.network.test_server import linked, refused, started

# ------------------------------------------------------------ A1


async def test_a1_kill_agent(gpu: Any, watched: Any) -> None:
    async with watched() as here:
        for _ in range(3):
            lives = here.link.kinds().count("LIVE")
            os.kill(here.link.session.agent.hello.pid, signal.SIGKILL)
            await here.until(lambda lives=lives: here.link.kinds().count("LIVE") > lives)


async def test_a1_kill_agent_of_the_logs(gpu: Any, watched: Any) -> None:
    """The second agent is replaced on the same connection."""
    async with watched() as here:
        await here.until(lambda: len(gpu.wire.agents()) == 2)
        (bulk,) = set(gpu.wire.agents()) - {here.link.session.agent.hello.pid}
        os.kill(bulk, signal.SIGKILL)
        await here.until(lambda: len(gpu.wire.agents()) == 2 and bulk not in gpu.wire.agents())
        assert here.link.kinds().count("LIVE") == 1


# ------------------------------------------------------------ A2


@pytest.mark.parametrize("which", ["first", "logs"])
async def test_a2_agent_stopped_30s(gpu: Any, watched: Any, which: str) -> None:
    """One that hangs is given up and replaced; when it wakes, it ends."""
    async with watched() as here:
        await here.until(lambda: len(gpu.wire.agents()) == 2)
        first = here.link.session.agent.hello.pid
        hung = first if which == "first" else next(pid for pid in gpu.wire.agents() if pid != first)
        os.kill(hung, signal.SIGSTOP)
        try:
            await here.until(lambda: len(gpu.wire.agents()) == 3)
            if which == "first":
                truth.check_staleness(here, "STALE", BRISK.stale)
                truth.check_staleness(here, "LOST", BRISK.silence)
            await here.counting(10)
            await asyncio.sleep(15)
        finally:
            os.kill(hung, signal.SIGCONT)
        await here.until(lambda: hung not in gpu.wire.agents())


# ------------------------------------------------------------ A3


def altered(**files: Callable[[bytes], bytes]) -> Archive:
    """The code with changes, as of another version."""
    found = sources()
    for path, change in files.items():
        name = path.replace("__", "/") + ".py"
        found[name] = change(found.get(name, b""))
    return pack(found)


async def test_a3_old_and_new_agents_coexist(gpu: Any, watched: Any) -> None:
    """A laptop of another version at the same host: each has its own code, and both see the run."""
    other = altered(remote__agent__older=lambda _: b"# of another version\n")
    assert other.name != build_archive().name
    async with watched() as here:
        spec = gpu.spec()
        connection = await open_connection(await resolve(spec), gpu.hostkeys())
        try:
            agent = await start_agent(connection, spec, other)
            assert agent.hello.agent == other.name and here.link.session.agent.hello.agent == build_archive().name
            assert {other.name, build_archive().name} <= set(os.listdir(gpu.root / "code"))
            await here.counting(20)
            await agent.channel.close()
        finally:
            await connection.close()
        assert here.link.kinds().count("LIVE") == 1


@pytest.mark.parametrize("protocol", [b"1", b"3"])
async def test_a3_agent_of_another_protocol_is_refused(gpu: Any, protocol: bytes) -> None:
    other = altered(remote__protocol=lambda code: code.replace(b"PROTOCOL = 2\n", b"PROTOCOL = %s\n" % protocol))
    assert other.name != build_archive().name
    spec = gpu.spec()
    connection = await open_connection(await resolve(spec), gpu.hostkeys())
    try:
        with pytest.raises(BootstrapError, match="another version of the protocol") as caught:
            await start_agent(connection, spec, other)
        assert caught.value.blocks and caught.value.remedy
    finally:
        await connection.close()
    await truth.check_nothing_leaks(gpu)


async def test_a3_run_of_a_newer_schema_is_only_shown(gpu: Any) -> None:
    run = gpu.run()
    identity = json.loads((run.path / "run.json").read_text())
    (run.path / "run.json").write_text(json.dumps({**identity, "schema": 99}))
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    async with linked(gpu) as link:
        await link.wait_for("LIVE")
        (seen,) = await link.request("runs")
        assert seen["state"] == "UNREADABLE" and "newer" in seen["message"]
        for op, args in (("start", {}), ("set", {"changes": {"through": "train"}}), ("stop", {})):
            with pytest.raises(RemoteError, match="newer"):
                await link.request(op, run="r1", **args)
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


# ------------------------------------------------------------ A4


@pytest.mark.parametrize("percent", [2, 35, 70, 99])
async def test_a4_upload_interrupted(make_host: Any, percent: int) -> None:
    gpu = make_host(code=False)
    async with cutter(gpu.wire.there) as proxy:
        proxy.limit = 4000 + len(build_archive().data) * percent // 100
        spec = gpu.spec(ssh=f"127.0.0.1:{proxy.port}", user=gpu.user)
        connection = await open_connection(await resolve(spec), gpu.hostkeys())
        with pytest.raises(RemoteError):
            await start_agent(connection, spec, build_archive())
        await connection.close()
        await truth.check_nothing_leaks(gpu)
        assert not (gpu.root / "code").exists() or os.listdir(gpu.root / "code") == []
        proxy.limit = None
        async with laptop(spec, gpu.hostkeys(), "r1") as here:
            await here.live()
            assert here.link.session.agent.uploaded
    assert os.listdir(gpu.root / "code") == [build_archive().name]


async def test_a4_hash_mismatch(make_host: Any) -> None:
    gpu = make_host(code=False)
    spec = gpu.spec()
    connection = await open_connection(await resolve(spec), gpu.hostkeys())
    try:
        with pytest.raises(BootstrapError, match="not what was sent"):
            await start_agent(connection, spec, Archive(build_archive().data, "0" * 64))
    finally:
        await connection.close()
    assert not (gpu.root / "code").exists()


async def test_a4_laptops_bootstrapping_at_once(make_host: Any) -> None:
    gpu = make_host(code=False)
    run = gpu.run()
    async with (
        laptop(gpu.spec(), gpu.hostkeys(), "r1") as one,
        laptop(gpu.spec(), gpu.hostkeys(), "r1") as two,
        laptop(gpu.spec(), gpu.hostkeys(), "r1") as three,
    ):
        for here in (one, two, three):
            await here.live()
        assert [here.link.session.agent.uploaded > 0 for here in (one, two, three)] == [True] * 3
        assert os.listdir(gpu.root / "code") == [build_archive().name]
        await one.collector.start()
        for here in (one, two, three):
            await here.until(lambda here=here: here.count() > 5)
    assert run.stage("generate").attempts() == [1]
    truth.check_no_traceback(gpu)


# ------------------------------------------------------------ A5


def stub(path: Path, script: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


PYTHONS = {
    "none": ("", "Found: none"),
    "3.6": ("echo False 3.6.15 /opt/py36/python3", "3.6.15"),
    "a stub that prints": ("echo 'Python was not found; run without arguments to install from the store'", "not run"),
    "one that crashes": ("kill -SEGV $$", "not run"),
    "one that reads": ("cat >/dev/null; exit 1", "not run"),
}


@pytest.mark.parametrize(("script", "said"), PYTHONS.values(), ids=PYTHONS)
async def test_a5_no_python_that_will_do(gpu: Any, script: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "PYTHONS", ("python3",))
    (gpu.home / "bin").mkdir()
    if script:
        stub(gpu.home / "bin" / "python3", script)
    (gpu.home / ".bashrc").write_text(f"PATH={gpu.home}/bin\n")
    error = await refused(gpu, python="")
    assert error.code == "python" and error.blocks and said in error.message and error.remedy


async def test_a5_the_first_python_that_will_do_is_taken(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    old = stub(gpu.home / "old" / "python3", "echo False 3.6.15 /opt/py36/python3")
    monkeypatch.setattr(bootstrap, "PYTHONS", (old, "/nowhere/python3", sys.executable))
    (gpu.home / ".bashrc").write_text("export PYTHONHOME=/junk PYTHONPATH=/junk PYTHONSAFEPATH=1 PYTHONOPTIMIZE=2\n")
    async with started(gpu, python="") as agent:
        assert Path(agent.python).samefile(sys.executable)


@pytest.mark.parametrize(
    "mounts", ["mount -t tmpfs -o noexec tmpfs $HOME", "mount --bind $HOME $HOME && mount -o remount,bind,ro $HOME"]
)
async def test_a5_home_noexec_or_read_only(make_host: Any, mounts: str) -> None:
    """The code goes to the root on the volume; the home is not needed."""
    gpu = make_host(code=False, mounts=mounts)
    async with started(gpu) as agent:
        assert agent.code.startswith(str(gpu.root)) and not agent.notes


async def test_a5_root_noexec(make_host: Any) -> None:
    """Nothing of ours is executed as a file."""
    gpu = make_host(code=False, mounts="mount -t tmpfs -o noexec tmpfs $ROOT")
    async with started(gpu) as agent:
        assert agent.code.startswith(str(gpu.root))


async def test_a5_root_read_only(make_host: Any) -> None:
    """The code finds a place at home, but a root that can't be written is no root."""
    gpu = make_host(code=False, mounts="mount --bind $ROOT $ROOT && mount -o remount,bind,ro $ROOT")
    async with started(gpu) as agent:
        assert agent.code.startswith(str(gpu.home)) and str(gpu.root) in agent.notes[0]


async def test_a5_nothing_can_be_written(make_host: Any) -> None:
    ro = "mount --bind {0} {0} && mount -o remount,bind,ro {0}"
    gpu = make_host(code=False, mounts=f"{ro.format('$ROOT')} && {ro.format('$HOME')}")
    error = await refused(gpu)
    assert error.code == "install" and "Read-only" in error.message and str(gpu.root) in error.remedy
