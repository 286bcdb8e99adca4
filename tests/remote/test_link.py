"""The link: live, stale, lost and back, blocked; over a proxy that misbehaves, to both servers, with the real agent."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import Plan
from remote import link as module
from remote.errors import (
    AuthenticationError,
    ConnectionLost,
    HostConfigError,
    HostKeyChanged,
    HostKeyUnknown,
    NotConnected,
    RemoteError,
    UnreachableError,
)
from remote.hostkeys import HostKey, HostKeyStore
from remote.link import Kind, Link, LinkState, Pace

EMBEDDED = pytest.mark.parametrize("host", ["embedded"], indirect=True)
REAL = pytest.mark.parametrize("host", ["real"], indirect=True)
QUICK = Pace(keepalive=0.2, ping=0.1, stale=0.5, silence=1.0, backoff=0.05, backoff_cap=0.3, viewer_cap=0.1)
PATIENT = replace(QUICK, backoff=1000, backoff_cap=1000, viewer_cap=0.05)


pytestmark = pytest.mark.usefixtures("shared_code")


@asynccontextmanager
async def linked(target: Any, *, port: int = 0, pace: Pace = QUICK, **settings: Any) -> AsyncIterator[Link]:
    spec = target.through(port) if port else target.spec
    async with Link(spec, settings.pop("hostkeys", target.hostkeys), pace=pace, **settings) as link:
        yield link


def kinds(link: Link) -> list[str]:
    """Every state the link goes through from now on."""
    seen: list[str] = []
    link.on_state(lambda state: seen.append(state.kind) if not seen or seen[-1] != state.kind else None)
    return seen


async def until(condition: Any) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_it_becomes_live_and_answers(host: Any) -> None:
    async with linked(host) as link:
        seen = kinds(link)
        await link.wait_for(Kind.LIVE)
        assert seen == [Kind.BOOTSTRAP, Kind.LIVE]
        assert await link.request("runs") == []
        await until(lambda: link.state.rtt_ms is not None)
        state = link.state
        assert state.skew_s == pytest.approx(0, abs=1) and state.age_s is not None and state.message == ""
    assert link.state.kind == Kind.IDLE
    with pytest.raises(NotConnected):
        await link.request("runs")


async def test_refusals_of_the_host_are_typed(embedded: Any) -> None:
    async with linked(embedded) as link:
        await link.wait_for(Kind.LIVE)
        with pytest.raises(RemoteError) as caught:
            await link.request("plan", run="no-such-run")
        assert caught.value.code == "not-found" and "no-such-run" in caught.value.message


async def test_a_silent_network_is_stale_then_lost_then_live_again_and_still_watching(host: Any, proxy: Any) -> None:
    async with linked(host, port=proxy.port) as link:
        pushes: list[str] = []
        link.subscribe(lambda name, data: pushes.append(data["run"]) if name == "run" else None)
        await link.wait_for(Kind.LIVE)
        await link.request("create", name="watched", plan=Plan().to_json())
        await link.watch("watched", every_s=0.2)
        await until(lambda: pushes)
        seen = kinds(link)
        proxy.mode = "swallow"
        await link.wait_for(Kind.LOST)
        assert seen[:2] == [Kind.STALE, Kind.LOST]
        with pytest.raises(NotConnected):
            await link.request("runs")
        pushes.clear()
        proxy.mode = "pass"
        await link.wait_for(Kind.LIVE)
        await until(lambda: pushes)
        assert set(pushes) == {"watched"}


@REAL
async def test_a_short_silence_is_stale_and_no_loss(host: Any, proxy: Any) -> None:
    async with linked(host, port=proxy.port, pace=replace(QUICK, silence=30, keepalive=30)) as link:
        await link.wait_for(Kind.LIVE)
        await until(lambda: link.state.rtt_ms is not None)
        os.kill(link.session.agent.hello.pid, signal.SIGSTOP)
        await link.wait_for(Kind.STALE)
        os.kill(link.session.agent.hello.pid, signal.SIGCONT)
        await link.wait_for(Kind.LIVE)
        assert proxy.accepted == 1


@REAL
async def test_a_hung_agent_is_replaced_though_the_connection_stands(host: Any) -> None:
    async with linked(host) as link:
        await link.wait_for(Kind.LIVE)
        hung = link.session.agent.hello.pid
        os.kill(hung, signal.SIGSTOP)
        try:
            await link.wait_for(Kind.LOST)
            await link.wait_for(Kind.LIVE)
            assert link.session.agent.hello.pid != hung
        finally:
            os.kill(hung, signal.SIGKILL)


@EMBEDDED
async def test_a_killed_agent_is_replaced(host: Any) -> None:
    async with linked(host) as link:
        await link.wait_for(Kind.LIVE)
        killed = link.session.agent.hello.pid
        os.kill(killed, signal.SIGKILL)
        await link.wait_for(Kind.LOST)
        await link.wait_for(Kind.LIVE)
        assert link.session.agent.hello.pid != killed


@EMBEDDED
async def test_a_request_in_flight_hears_of_the_loss(host: Any, proxy: Any) -> None:
    async with linked(host, port=proxy.port, pace=replace(QUICK, silence=30, keepalive=30)) as link:
        await link.wait_for(Kind.LIVE)
        proxy.mode = "swallow"
        asked = asyncio.create_task(link.request("runs"))
        await asyncio.sleep(0.05)
        proxy.mode = "pass"
        proxy.reset_all()
        with pytest.raises(ConnectionLost):
            await asked
        await link.wait_for(Kind.LIVE)


@REAL
async def test_flapping_never_makes_two_connections_and_ends_live(host: Any, proxy: Any) -> None:
    async with linked(host, port=proxy.port) as link:
        for _ in range(4):
            await link.wait_for(Kind.LIVE)
            before = proxy.accepted
            proxy.reset_all()
            await link.wait_for(Kind.LOST)
            await link.wait_for(Kind.LIVE)
            assert proxy.accepted == before + 1


@EMBEDDED
async def test_bytes_one_at_a_time_are_enough(host: Any, proxy: Any) -> None:
    async with linked(host) as link:
        await link.wait_for(Kind.LIVE)
    proxy.mode = "slice"
    async with linked(host, port=proxy.port, pace=Pace()) as link:
        await link.wait_for(Kind.LIVE)
        assert await link.request("runs") == []


async def test_the_server_going_away_and_coming_back(real: Any, sshd: Any) -> None:
    async with linked(real) as link:
        await link.wait_for(Kind.LIVE)
        stat = Path(f"/proc/{link.session.agent.hello.pid}/stat").read_text()
        session_child = int(stat.rpartition(")")[2].split()[1])
        sshd.stop()
        os.kill(session_child, signal.SIGKILL)
        state = await link.wait_for(Kind.BACKOFF)
        assert state.retry_in_s is not None
        await until(lambda: isinstance(link.state.error, UnreachableError))
        assert "refuses connections" in link.state.message
        sshd.start()
        await link.wait_for(Kind.LIVE)


@pytest.mark.parametrize("sshd", ["MaxSessions 1"], indirect=True)
async def test_a_host_that_allows_one_session_still_gives_logs_and_metrics(real: Any) -> None:
    async with linked(real) as link:
        await link.wait_for(Kind.LIVE)
        assert "columns" in await link.request("telemetry")
        assert await link.request("runs") == []


@REAL
async def test_a_stalled_log_channel_delays_no_request(host: Any) -> None:
    async with linked(host, pace=replace(QUICK, silence=30)) as link:
        await link.wait_for(Kind.LIVE)
        await link.request("telemetry")
        main = link.session.agent.hello.pid
        others = [pid for pid in agents_of(host.root) if pid != main]
        assert len(others) == 1
        os.kill(others[0], signal.SIGSTOP)
        try:
            stalled = asyncio.create_task(link.request("telemetry", deadline_s=60))
            assert await link.request("runs") == []
            assert not stalled.done()
        finally:
            os.kill(others[0], signal.SIGCONT)
        await stalled


def agents_of(root: Path) -> list[int]:
    """The agents that serve ``root`` on this machine."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            argv = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if b"serve" in argv and str(root).encode() in argv and b"remote.agent" in argv:
            found.append(int(entry.name))
    return found


@REAL
async def test_closing_leaves_no_agent(host: Any) -> None:
    async with linked(host) as link:
        await link.wait_for(Kind.LIVE)
        await link.request("telemetry")
        assert len(agents_of(host.root)) == 2
    await until(lambda: not agents_of(host.root))


@REAL
async def test_closing_is_quick_when_the_network_swallows_everything(host: Any, proxy: Any) -> None:
    link = Link(host.through(proxy.port), host.hostkeys)
    await link.__aenter__()
    await link.wait_for(Kind.LIVE)
    await link.request("telemetry")
    proxy.mode = "swallow"
    async with asyncio.timeout(module.CLOSE_S + 0.5):
        await link.__aexit__(None, None, None)
    assert all(task.done() for task in link._tasks)


@EMBEDDED
async def test_an_unknown_key_blocks_until_its_fingerprint_is_confirmed(host: Any, tmp_path: Path) -> None:
    empty = HostKeyStore(tmp_path / "empty")
    async with linked(host, hostkeys=empty) as link:
        state = await link.wait_for(Kind.BLOCKED)
        assert isinstance(state.error, HostKeyUnknown)
        assert state.error.fingerprint == host.hostkeys.get("box").fingerprint
        for wrong in ("", "SHA256:" + "A" * 43):
            with pytest.raises(RemoteError):
                link.confirm_host_key(wrong)
        assert link.state.kind == Kind.BLOCKED and empty.get("box") is None
        link.confirm_host_key(state.error.fingerprint)
        await link.wait_for(Kind.LIVE)
    assert empty.get("box") == host.hostkeys.get("box")


@REAL
async def test_a_changed_key_blocks_until_the_name_is_typed(host: Any, tmp_path: Path) -> None:
    store = HostKeyStore(tmp_path / "other")
    subprocess.run(  # noqa: ASYNC221
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "k"], check=True
    )
    store.pin("box", HostKey.parse((tmp_path / "k.pub").read_text()))
    async with linked(host, hostkeys=store) as link:
        state = await link.wait_for(Kind.BLOCKED)
        assert isinstance(state.error, HostKeyChanged) and state.error.phrase == "box"
        fingerprint = state.error.fingerprint
        for shown, typed in ((fingerprint, "yes"), (state.error.old_fingerprint, "box")):
            with pytest.raises(RemoteError):
                link.replace_host_key(shown, typed)
        with pytest.raises(RemoteError):
            link.confirm_host_key(fingerprint)
        assert link.state.kind == Kind.BLOCKED
        link.replace_host_key(fingerprint, "box")
        await link.wait_for(Kind.LIVE)


@REAL
async def test_refused_keys_are_not_tried_again_by_themselves(host: Any, proxy: Any, tmp_path: Path) -> None:
    subprocess.run(  # noqa: ASYNC221
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "k"], check=True
    )
    spec = replace(host.through(proxy.port), identity_files=(str(tmp_path / "k"),))
    async with Link(spec, host.hostkeys, pace=replace(QUICK, backoff=0.01, backoff_cap=0.01)) as link:
        link.viewer = True
        state = await link.wait_for(Kind.BLOCKED)
        assert isinstance(state.error, AuthenticationError) and "authorized_keys" in state.remedy
        await asyncio.sleep(0.4)
        assert proxy.accepted == 1
        link.retry_now()
        await until(lambda: proxy.accepted == 2)
        await link.wait_for(Kind.BLOCKED)


async def test_a_description_that_cannot_be_used_blocks(embedded: Any) -> None:
    async with Link(replace(embedded.spec, root="relative"), embedded.hostkeys, pace=QUICK) as link:
        state = await link.wait_for(Kind.BLOCKED)
    assert isinstance(state.error, HostConfigError)


async def backing_off(link: Link) -> LinkState:
    state = await link.wait_for(Kind.BACKOFF)
    assert state.retry_in_s is not None and state.retry_in_s > 50
    return state


@EMBEDDED
async def test_retry_now_ends_a_wait(host: Any, proxy: Any) -> None:
    proxy.mode = "reset"
    async with linked(host, port=proxy.port, pace=PATIENT) as link:
        await backing_off(link)
        proxy.mode = "pass"
        link.retry_now()
        await link.wait_for(Kind.LIVE)


@EMBEDDED
async def test_someone_looking_shortens_a_wait(host: Any, proxy: Any) -> None:
    proxy.mode = "reset"
    async with linked(host, port=proxy.port, pace=PATIENT) as link:
        await backing_off(link)
        proxy.mode = "pass"
        link.viewer = True
        await link.wait_for(Kind.LIVE)


@EMBEDDED
async def test_a_try_that_began_on_a_dead_network_is_short_while_someone_looks(host: Any, proxy: Any) -> None:
    async with linked(host, port=proxy.port, pace=replace(QUICK, hurry=0.2, silent_cap=0.1)) as link:
        link.viewer = True
        await link.wait_for(Kind.LIVE)
        proxy.mode = "swallow"
        async with asyncio.timeout(9):  # one try that is not short takes 10 s
            await until(lambda: proxy.accepted == 3)
            assert link.state.error is None or link.state.error.code == "timeout"
        proxy.mode = "pass"
        await link.wait_for(Kind.LIVE)


@EMBEDDED
async def test_waking_from_a_suspend_ends_a_wait(host: Any, proxy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy.mode = "reset"
    async with linked(host, port=proxy.port, pace=PATIENT) as link:
        await backing_off(link)
        proxy.mode = "pass"
        monkeypatch.setattr(module.time, "time", lambda real=time.time: real() + 3600)
        await link.wait_for(Kind.LIVE)


@REAL
async def test_waking_from_a_suspend_probes_a_connection_that_died_meanwhile(
    host: Any, proxy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PROBE_S", 0.2)
    slow = replace(QUICK, silence=1000, keepalive=1000)
    async with linked(host, port=proxy.port, pace=slow) as link:
        await link.wait_for(Kind.LIVE)
        proxy.mode = "swallow"
        monkeypatch.setattr(module.time, "time", lambda real=time.time: real() + 3600)
        await link.wait_for(Kind.LOST)
        proxy.mode = "pass"
        await link.wait_for(Kind.LIVE)


def test_the_wait_grows_to_its_cap_is_drawn_anew_and_is_short_while_someone_looks(tmp_path: Path) -> None:
    from remote.resolve import HostSpec

    link = Link(HostSpec("box", "box", "/data"), HostKeyStore(tmp_path), pace=Pace())
    longest, refused = [], UnreachableError("", "", "refused")
    for failures in range(1, 12):
        link._failures = failures
        draws = [link._delay(refused) for _ in range(200)]
        longest.append(max(draws))
        assert len(set(draws)) > 100 and min(draws) < max(draws) / 2
    assert longest[0] <= 1 and longest[1] <= 2 and 20 < longest[-1] <= 30
    link.viewer = True
    assert 4 < max(link._delay(refused) for _ in range(200)) <= 5
    assert max(link._delay(UnreachableError("", "", "timeout")) for _ in range(200)) <= 1.5


async def test_a_listener_that_fails_costs_nothing(embedded: Any) -> None:
    async with linked(embedded) as link:
        link.on_state(lambda state: 1 // 0)
        link.subscribe(lambda name, data: 1 // 0)
        await link.wait_for(Kind.LIVE)
        await link.request("create", name="r", plan=Plan().to_json())
        await link.watch("r", every_s=0.2)
        assert [run["name"] for run in await link.request("runs")] == ["r"]


def test_importing_the_link_loads_no_asyncssh() -> None:
    program = (
        "import sys, remote.link, remote.transfer; print(*(m in sys.modules for m in ('asyncssh', 'cryptography')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
