"""Fault matrix, rows S: what the SSH server, the account and its startup files do."""

# ruff: noqa: ASYNC220, ASYNC221

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from remote import bootstrap
from remote.archive import build_archive
from remote.bootstrap import Agent, start_agent
from remote.connection import open_connection
from remote.errors import AuthenticationError, BootstrapError, HostConfigError, HostKeyChanged, HostKeyUnknown
from remote.hostkeys import HostKey, HostKeyStore
from remote.link import Kind, Link
from remote.resolve import resolve
from remote.transfer import fetch, put
from tests.real.network import truth
from tests.real.network.laptop import BRISK
from tests.real.network.topology import keypair

# ------------------------------------------------------------ S1


async def test_s1_kill_sshd_session(gpu: Any, watched: Any) -> None:
    async with watched() as here:
        for pid in gpu.sessions():
            os.kill(pid, signal.SIGKILL)
        await here.until(lambda: "LOST" in here.link.kinds())


async def test_s1_kill_sshd_listener(gpu: Any, watched: Any) -> None:
    """The connection stands; only a new one would be refused."""
    async with watched() as here:
        gpu.stop()
        await here.counting(20)
        assert here.link.kinds().count("LIVE") == 1
        for pid in gpu.sessions():
            os.kill(pid, signal.SIGKILL)
        await here.until(lambda: "refuses connections" in here.snapshot.link.message)
        gpu.start()


async def test_s1_restart_sshd(gpu: Any, watched: Any) -> None:
    async with watched() as here:
        gpu.stop()
        for pid in gpu.sessions():
            os.kill(pid, signal.SIGKILL)
        gpu.start()
        await here.until(lambda: here.link.kinds().count("LIVE") == 2)


# ------------------------------------------------------------ S2


@pytest.mark.parametrize("gpu", ["MaxSessions 2", "MaxSessions 1"], indirect=True)
async def test_s2_few_sessions(gpu: Any, watched: Any, tmp_path: Path) -> None:
    """Logs share a channel with the rest, and where there is one to spare a transfer takes it."""
    (tmp_path / "up").write_bytes(os.urandom(300_000))
    alone = "MaxSessions 1\n" in gpu.config.read_text()
    async with watched() as here:
        await here.until(lambda: here.link.log)
        if alone:
            await here.until(lambda: "MaxSessions" in here.snapshot.link.message)
            with pytest.raises(Exception, match="no further session"):
                await put(here.link, tmp_path / "up", "up")
        else:
            await put(here.link, tmp_path / "up", "up")
            await fetch(here.link, "up", tmp_path / "down")
            assert (tmp_path / "down").read_bytes() == (tmp_path / "up").read_bytes()
        await here.counting()
        assert here.link.kinds().count("LIVE") == 1


# ------------------------------------------------------------ S4


@pytest.mark.parametrize(
    "gpu", ["AllowTcpForwarding no\nDisableForwarding yes\nPermitTTY no\nAllowAgentForwarding no"], indirect=True
)
async def test_s4_no_sftp_server_no_forwarding_no_tty(gpu: Any, watched: Any, tmp_path: Path) -> None:
    (tmp_path / "up").write_bytes(os.urandom(1_000_000))
    assert "Subsystem" not in gpu.config.read_text()
    async with watched() as here:
        await put(here.link, tmp_path / "up", "folder/up")
        await fetch(here.link, "folder/up", tmp_path / "down")
        assert (tmp_path / "down").read_bytes() == (tmp_path / "up").read_bytes()


@pytest.mark.parametrize(
    ("gpu", "said"),
    [
        ("ForceCommand echo This account is closed; exit 1", "This account is closed"),
        ("ForceCommand internal-sftp\nSubsystem sftp internal-sftp", "sftp connections only"),
        ("ForceCommand /no/such/command", "No such file"),
    ],
    indirect=["gpu"],
)
async def test_s4_force_command(gpu: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "SHELL_S", 3.0)
    error = await refused(gpu)
    assert error.code == "shell" and said in error.message and error.remedy, str(error)


# ------------------------------------------------------------ S5


@pytest.mark.parametrize("shell", ["bash", "dash", "fish", "tcsh", "ash"])
async def test_s5_login_shell(gpu: Any, watched: Any, shell: str, tmp_path: Path) -> None:
    gpu.set_shell(str(shell_named(shell, tmp_path)))
    async with started(gpu, python="") as agent:
        assert agent.hello.root == str(gpu.root)
    async with watched(spec=gpu.spec(python="")):
        pass


def shell_named(name: str, folder: Path) -> Path:
    if name == "ash":  # busybox is what it is called as
        (folder / "ash").symlink_to(str(shutil.which("busybox")))
        return folder / "ash"
    found = shutil.which(name)
    assert found, f"{name} is not installed (tests/real/install.sh installs it)"
    return Path(found)


async def test_s5_nologin(gpu: Any) -> None:
    gpu.set_shell("/usr/sbin/nologin")
    error = await refused(gpu)
    assert error.code == "shell" and "not available" in error.message


# ------------------------------------------------------------ S6

QUIET_ENOUGH = {
    "prints": "echo Welcome to the GPU cloud; printf 'no newline '",
    "JSON": 'echo "{\\"hello\\": {\\"protocol\\": 9}}"; echo "{\\"push\\": \\"run\\"}"',
    "like a sentinel": 'echo "@@0123456789abcdef@@ sh"; echo "@@0123456789abcdef@@ need"; echo "@@x@@ fail {}"',
    "stderr": "head -c 3000000 /dev/zero | tr '\\0' x >&2",
    "binary": "printf '\\377\\376\\000\\033]0;x\\007'",
    "a python of its own": "export PYTHONHOME=/nonsense PYTHONPATH=/nonsense PYTHONSTARTUP=/nonsense PYTHONINSPECT=1",
}
TELLS_WHY = {
    "exits": ("echo 'Maintenance until Monday'; exit 1", "Maintenance until Monday"),
    "reads": ("echo 'Accept the terms? '; read -r answer", "Accept the terms?"),
    "exec fish": ("echo to the fish; exec fish", "to the fish"),
    "prints without end": ("while :; do echo spam spam spam; done", "spam"),
}


@pytest.mark.parametrize("noise", QUIET_ENOUGH.values(), ids=QUIET_ENOUGH)
async def test_s6_startup_file_that_does_no_harm(gpu: Any, noise: str) -> None:
    (gpu.home / ".bashrc").write_text(noise + "\n")
    async with started(gpu) as agent:
        assert agent.hello.root == str(gpu.root)


@pytest.mark.parametrize(("noise", "said"), TELLS_WHY.values(), ids=TELLS_WHY)
async def test_s6_startup_file_that_stands_in_the_way(
    gpu: Any, noise: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "SHELL_S", 3.0)
    (gpu.home / ".bashrc").write_text(noise + "\n")
    error = await refused(gpu)
    assert error.code == "shell" and said in error.message, str(error)
    await truth.check_nothing_leaks(gpu)


@pytest.mark.parametrize(
    ("shell", "file"), [("fish", ".config/fish/config.fish"), ("tcsh", ".tcshrc"), ("tcsh", ".cshrc")]
)
async def test_s6_startup_file_of_another_shell(gpu: Any, shell: str, file: str, tmp_path: Path) -> None:
    gpu.set_shell(str(shell_named(shell, tmp_path)))
    path = gpu.home / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("echo 'Welcome! \\n {\"hello\": 1}'\n")
    async with started(gpu, python="") as agent:
        assert agent.hello.root == str(gpu.root)


# ------------------------------------------------------------ S7


async def test_s7_unknown_host_key(gpu: Any) -> None:
    async with linked(gpu, HostKeyStore(gpu.folder / "empty")) as link:
        state = await link.wait_for(Kind.BLOCKED)
        assert isinstance(state.error, HostKeyUnknown)
        assert state.error.fingerprint == fingerprint(gpu.hostkey)
        await asyncio.sleep(2)
        assert link.state.kind is Kind.BLOCKED and not gpu.logins() and gpu.accepted() == 1
        link.confirm_host_key(state.error.fingerprint)
        await link.wait_for(Kind.LIVE)


async def test_s7_changed_host_key(gpu: Any, tmp_path: Path) -> None:
    store = HostKeyStore(tmp_path / "other")
    store.pin("gpu", HostKey.parse(keypair(tmp_path / "k").with_suffix(".pub").read_text()))
    async with linked(gpu, store) as link:
        state = await link.wait_for(Kind.BLOCKED)
        assert isinstance(state.error, HostKeyChanged) and state.error.fingerprint == fingerprint(gpu.hostkey)
        await asyncio.sleep(2)
        assert link.state.kind is Kind.BLOCKED and not gpu.logins(), "no key of ours was offered"


async def test_s7_host_key_that_changes_while_we_watch(gpu: Any, watched: Any) -> None:
    """A container that was made anew under the same address: blocked, until the name is typed."""
    async with watched() as here:
        gpu.stop()
        kept = {path: path.read_bytes() for path in (gpu.hostkey, gpu.hostkey.with_suffix(".pub"))}
        keypair(gpu.hostkey)
        for pid in gpu.sessions():
            os.kill(pid, signal.SIGKILL)
        await here.until(lambda: "refuses connections" in here.snapshot.link.message)
        before = len(gpu.logins())
        gpu.start()
        await here.until(lambda: here.snapshot.link.state == "BLOCKED")
        assert "HAS CHANGED" in here.snapshot.link.message and len(gpu.logins()) == before
        gpu.stop()
        for path, data in kept.items():
            path.write_bytes(data)
        gpu.start()
        here.link.retry_now()


async def test_s7_junk_known_hosts(gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The person's own known_hosts, whatever is in it, neither helps nor harms; a damaged file of ours blocks."""
    monkeypatch.setenv("HOME", str(tmp_path))
    other = keypair(tmp_path / "k").with_suffix(".pub").read_text()
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "known_hosts").write_text(
        f"\x00junk\n@revoked * {other}{gpu.wire.there} {other}|1|aaaa|bbbb ssh-rsa x\n"
    )
    async with linked(gpu) as link:
        await link.wait_for(Kind.LIVE)
    store = gpu.hostkeys()
    with store.path.open("a") as file:
        file.write("gpu2 ssh-ed25519 !!!\n")
    async with linked(gpu, store) as link:
        state = await link.wait_for(Kind.BLOCKED)
        assert isinstance(state.error, HostConfigError) and "line 2" in state.message


# ------------------------------------------------------------ S9


async def test_s9_wrong_key_is_not_tried_again(gpu: Any, tmp_path: Path) -> None:
    wrong = keypair(tmp_path / "wrong")
    async with linked(gpu, identity_files=(str(wrong),)) as link:
        state = await link.wait_for(Kind.BLOCKED)
        assert isinstance(state.error, AuthenticationError) and str(wrong) in state.message
        seen = gpu.accepted()
        await asyncio.sleep(3)
        assert gpu.accepted() == seen and link.state.kind is Kind.BLOCKED


async def test_s9_key_with_a_passphrase(gpu: Any, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", locked], check=True)
    async with linked(gpu, identity_files=(str(locked),)) as link:
        state = await link.wait_for(Kind.BLOCKED)
        assert isinstance(state.error, AuthenticationError) and "passphrase" in state.message
        seen = gpu.accepted()
        await asyncio.sleep(3)
        assert gpu.accepted() == seen


async def test_s9_agent_gone_mid_session(gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection outlives the ssh-agent; the one after it can't be made, is asked for once, and says why."""
    sock = tmp_path / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", sock], stdout=subprocess.DEVNULL)
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(sock))
        monkeypatch.setenv("HOME", str(tmp_path))
        while subprocess.run(["ssh-add", "-q", gpu.identity], stderr=subprocess.DEVNULL).returncode:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        async with linked(gpu, identity_files=()) as link:
            await link.wait_for(Kind.LIVE)
            agent.kill()
            agent.wait()
            assert await link.request("runs") == []
            for pid in gpu.sessions():
                os.kill(pid, signal.SIGKILL)
            state = await link.wait_for(Kind.BLOCKED)
            assert isinstance(state.error, AuthenticationError) and "ssh-agent" in state.message
            seen = gpu.accepted()
            await asyncio.sleep(3)
            assert gpu.accepted() == seen
    finally:
        agent.kill()
        agent.wait()


# ------------------------------------------------------------


@contextlib.asynccontextmanager
async def started(gpu: Any, **changes: Any) -> AsyncIterator[Agent]:
    """An agent on a connection of its own."""
    spec = gpu.spec(**changes)
    connection = await open_connection(await resolve(spec), gpu.hostkeys())
    try:
        agent = await start_agent(connection, spec, build_archive())
        yield agent
        await agent.channel.close()
    finally:
        await connection.close()


async def refused(gpu: Any, **changes: Any) -> BootstrapError:
    with pytest.raises(BootstrapError) as caught:
        async with started(gpu, **changes):
            pass
    return caught.value


@contextlib.asynccontextmanager
async def linked(gpu: Any, store: HostKeyStore | None = None, **changes: Any) -> AsyncIterator[Link]:
    async with Link(gpu.spec(**changes), store or gpu.hostkeys(), pace=BRISK) as link:
        link.viewer = True
        async with asyncio.timeout(60):
            yield link


def fingerprint(key: Path) -> str:
    return HostKey.parse(key.with_suffix(".pub").read_text()).fingerprint
