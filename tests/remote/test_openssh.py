"""The two ways to connect, asyncssh and the system's ssh, side by side against real sshds; what only the second has."""

# ruff: noqa: ASYNC220, ASYNC221, ASYNC110

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remote.connection import open_connection
from remote.errors import (
    AuthenticationError,
    ConnectionLost,
    HostConfigError,
    HostKeyChanged,
    HostKeyUnknown,
    PassphraseNeeded,
    RemoteError,
    UnreachableError,
)
from remote.hostkeys import HostKey, HostKeyStore
from remote.link import Kind, Link, Pace
from remote.openssh.login import Login
from remote.resolve import Resolved, resolve
from remote.transfer import fetch, put

QUICK = Pace(keepalive=1, ping=0.2, stale=1, silence=3, backoff=0.01, backoff_cap=0.01)
pytestmark = pytest.mark.usefixtures("shared_code", "short_folder")


@pytest.fixture
def short_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the private folders of this test's logins go, and nothing else."""
    folder = tmp_path_factory.mktemp("s")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    yield folder
    assert list(folder.iterdir()) == [], "a login left its folder"


@pytest.fixture(params=["asyncssh", "openssh"])
def way(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def target(real: Any, way: str) -> Any:
    return replace(real, spec=replace(real.spec, backend=way))


@pytest.fixture
def jump(sshd: Any, tmp_path: Path) -> Iterator[Any]:
    """A second real sshd, with keys of its own."""
    server = type(sshd)(tmp_path / "jump", "LogLevel VERBOSE")
    yield server
    server.stop()


def key_of(server: Any) -> HostKey:
    return HostKey.parse(server.pin)


def make_key(path: Path, passphrase: str = "", *more: str) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", path, *more], check=True)
    return path


def log(server: Any) -> str:
    text: str = (server.folder / "sshd.log").read_text()
    return text


@asynccontextmanager
async def connected(resolved: Resolved, hostkeys: HostKeyStore, **how: Any) -> Any:
    connection = await open_connection(resolved, hostkeys, **how)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def agent(folder: Path, *keys: Path) -> Any:
    path = folder / "agent.sock"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
    try:
        while not path.exists():
            await asyncio.sleep(0.02)
        environment = {**os.environ, "SSH_AUTH_SOCK": str(path)}
        for key in keys:
            subprocess.run(["ssh-add", "-q", key], env=environment, check=True, stderr=subprocess.DEVNULL)
        yield path, process
    finally:
        process.kill()
        process.wait()


async def behind(target: Any, jump: Any) -> Resolved:
    """The target, by way of the jump host."""
    found = await resolve(target.spec)
    identity = (str(jump.folder / "id"),)
    hop = replace(found, name=f"jump:127.0.0.1:{jump.port}", port=jump.port, identity_files=identity)
    return replace(found, jumps=(hop,))


# ---------------------------------------------------------------- jump hosts


async def test_a_jump_host_is_asked_about_first_and_each_host_has_its_own_pin(
    target: Any, jump: Any, tmp_path: Path
) -> None:
    store, asked = HostKeyStore(tmp_path / "pins"), []

    async def yes(unknown: HostKeyUnknown) -> bool:
        asked.append((unknown.name, unknown.fingerprint))
        return True

    resolved = await behind(target, jump)
    async with connected(resolved, store, ask=yes) as connection:
        assert (await connection.run("echo through")).stdout == b"through\n"
    pinned = target.hostkeys.get("box")
    assert asked == [(resolved.jumps[0].name, key_of(jump).fingerprint), ("box", pinned.fingerprint)]
    assert (store.get(resolved.jumps[0].name), store.get("box")) == (key_of(jump), pinned)


async def test_an_unknown_jump_host_that_is_declined_is_as_far_as_it_goes(
    target: Any, jump: Any, sshd: Any, tmp_path: Path
) -> None:
    resolved, before = await behind(target, jump), log(sshd)
    with pytest.raises(HostKeyUnknown) as caught:
        await open_connection(resolved, HostKeyStore(tmp_path / "pins"))
    assert (caught.value.name, caught.value.key) == (resolved.jumps[0].name, key_of(jump).line)
    assert "publickey" not in log(jump) and log(sshd) == before


async def test_a_changed_jump_host_blocks_before_any_key_of_ours_is_shown(
    target: Any, jump: Any, sshd: Any, tmp_path: Path
) -> None:
    resolved, before = await behind(target, jump), log(sshd)
    other = HostKey.parse(make_key(tmp_path / "other").with_suffix(".pub").read_text())
    target.hostkeys.pin(resolved.jumps[0].name, other)

    async def ask(unknown: HostKeyUnknown) -> bool:
        raise AssertionError("a changed key was asked about as if it were new")

    with pytest.raises(HostKeyChanged) as caught:
        await open_connection(resolved, target.hostkeys, ask)
    assert (caught.value.name, caught.value.old_fingerprint) == (resolved.jumps[0].name, other.fingerprint)
    assert caught.value.fingerprint == key_of(jump).fingerprint
    assert "publickey" not in log(jump) and log(sshd) == before


async def test_a_changed_host_behind_a_jump_host_blocks(target: Any, jump: Any, tmp_path: Path) -> None:
    resolved, store = await behind(target, jump), HostKeyStore(tmp_path / "pins")
    store.pin(resolved.jumps[0].name, key_of(jump))
    store.pin("box", key_of(jump))
    with pytest.raises(HostKeyChanged) as caught:
        await open_connection(resolved, store)
    assert (caught.value.name, caught.value.fingerprint) == ("box", target.hostkeys.get("box").fingerprint)


async def test_a_key_the_jump_host_refuses_is_told_as_the_jump_hosts(target: Any, jump: Any, tmp_path: Path) -> None:
    resolved = await behind(target, jump)
    target.hostkeys.pin(resolved.jumps[0].name, key_of(jump))
    wrong = replace(resolved.jumps[0], identity_files=(str(make_key(tmp_path / "wrong")),))
    with pytest.raises(AuthenticationError, match=f"{wrong.address} refused to log us in"):
        await open_connection(replace(resolved, jumps=(wrong,)), target.hostkeys)


async def test_a_target_the_jump_host_cannot_reach_is_named(target: Any, jump: Any, unused_tcp_port: int) -> None:
    resolved = await behind(target, jump)
    target.hostkeys.pin(resolved.jumps[0].name, key_of(jump))
    with pytest.raises(UnreachableError, match=f"jump host cannot reach 127.0.0.1:{unused_tcp_port}"):
        await open_connection(replace(resolved, port=unused_tcp_port), target.hostkeys)


# ---------------------------------------------------------------- keys


@pytest.mark.parametrize("sshd", ["LogLevel VERBOSE"], indirect=True)
async def test_a_refused_login_is_one_attempt(target: Any, sshd: Any, tmp_path: Path) -> None:
    spec = replace(target.spec, identity_files=(str(make_key(tmp_path / "wrong")),))
    async with Link(spec, target.hostkeys, pace=QUICK) as link:
        link.viewer = True
        state = await link.wait_for(Kind.BLOCKED)
        assert isinstance(state.error, AuthenticationError) and f"Offered: {tmp_path / 'wrong'}." in state.message
        await asyncio.sleep(0.3)  # thirty times the longest wait
        assert link.state.kind == Kind.BLOCKED
    assert log(sshd).count("Failed publickey") == 1


@pytest.mark.parametrize("sshd", ["LogLevel VERBOSE"], indirect=True)
async def test_of_several_keys_in_the_agent_only_the_named_one_is_shown(
    target: Any, sshd: Any, tmp_path: Path, short_folder: Path
) -> None:
    keys = [make_key(tmp_path / name) for name in ("one", "two", "three")]
    async with agent(tmp_path, *keys, sshd.folder / "id") as (path, _):
        resolved = replace(await resolve(target.spec), agent_path=str(path), identities_only=True)
        async with connected(resolved, target.hostkeys):
            pass
        assert "Failed publickey" not in log(sshd)
        only = replace(resolved, identity_files=(str(keys[1]),))
        with pytest.raises(AuthenticationError) as caught:
            await open_connection(only, target.hostkeys)
        assert log(sshd).count("Failed publickey") == 1 and "(agent)" in caught.value.message


async def test_an_agent_that_goes_ends_no_connection_and_then_blocks(
    target: Any, sshd: Any, proxies: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = await proxied(target, proxies)
    async with agent(tmp_path, sshd.folder / "id") as (path, process):
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        monkeypatch.setenv("HOME", str(tmp_path))
        spec = replace(target.through(proxy.port), identity_files=())
        async with Link(spec, target.hostkeys, pace=QUICK) as link:
            await link.wait_for(Kind.LIVE)
            process.kill()
            process.wait()
            assert (await link.session.connection.run("echo on")).stdout == b"on\n"
            proxy.reset_all()
            state = await link.wait_for(Kind.BLOCKED)
            assert isinstance(state.error, AuthenticationError)


async def proxied(target: Any, proxies: list[Any]) -> Any:
    from tests.remote.conftest import Proxy

    made = Proxy(int(target.spec.ssh.rpartition(":")[2]))
    await made.start()
    proxies.append(made)
    return made


async def test_a_key_with_a_passphrase_is_named_and_not_tried_without(target: Any, sshd: Any, tmp_path: Path) -> None:
    locked = tmp_path / "a locked key"
    locked.write_bytes((sshd.folder / "id").read_bytes())
    locked.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", locked], check=True)
    spec = replace(target.spec, identity_files=(str(locked),))
    with pytest.raises(PassphraseNeeded) as caught:
        await open_connection(await resolve(spec), target.hostkeys)
    assert caught.value.files == (str(locked),) and caught.value.blocks
    assert f"ssh-add '{locked}'" in caught.value.remedy and f"{locked} (it has a passphrase" in caught.value.message
    if spec.backend == "openssh":
        return
    with pytest.raises(RemoteError, match="the passphrase is not the right one"):
        spec.keyring.unlock(str(locked), "wrong")
    spec.keyring.unlock(str(locked), "secret")
    async with connected(await resolve(spec), target.hostkeys) as connection:
        assert (await connection.run("echo open")).stdout == b"open\n"


async def test_the_system_ssh_tells_which_key_the_host_wants_opened(openssh: Any, sshd: Any, tmp_path: Path) -> None:
    """With the public half beside it the host is asked first; a key that it turns down needs no passphrase."""
    wanted, unwanted = tmp_path / "gewünscht", make_key(tmp_path / "unwanted", "secret")
    for suffix in ("", ".pub"):
        (tmp_path / f"gewünscht{suffix}").write_bytes((sshd.folder / f"id{suffix}").read_bytes())
    wanted.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", wanted], check=True)
    spec = replace(openssh.spec, identity_files=(str(unwanted), str(wanted)))
    with pytest.raises(PassphraseNeeded) as caught:
        await open_connection(await resolve(spec), openssh.hostkeys)
    assert caught.value.files == (str(wanted),)


# ---------------------------------------------------------------- sessions and losses


@pytest.mark.parametrize("sshd", ["MaxSessions 1"], indirect=True)
async def test_one_session_is_enough_for_everything_but_a_transfer(target: Any, tmp_path: Path) -> None:
    async with Link(target.spec, target.hostkeys, pace=QUICK) as link:
        await link.wait_for(Kind.LIVE)
        assert "columns" in await link.request("telemetry")
        assert await link.request("runs") == []
        (tmp_path / "local").write_bytes(b"x")
        with pytest.raises(RemoteError, match="MaxSessions") as caught:
            await put(link, tmp_path / "local", "files/x")
        assert caught.value.code == "channels" and link.state.kind == Kind.LIVE


@pytest.mark.parametrize("sshd", ["", "MaxSessions 3", "MaxSessions 2"], indirect=True)
async def test_files_go_without_sftp(target: Any, tmp_path: Path) -> None:
    (tmp_path / "local").write_bytes(os.urandom(2_000_000))
    async with Link(target.spec, target.hostkeys, pace=QUICK) as link:
        await link.wait_for(Kind.LIVE)
        await put(link, tmp_path / "local", "files/x")
        await fetch(link, "files/x", tmp_path / "home")
    assert (tmp_path / "home").read_bytes() == (tmp_path / "local").read_bytes()


async def test_keepalive_ends_a_connection_nobody_answers_on(target: Any, proxies: list[Any]) -> None:
    proxy = await proxied(target, proxies)
    async with connected(await resolve(target.through(proxy.port)), target.hostkeys, keepalive_s=1) as connection:
        channel = await connection.open_channel("exec cat")
        proxy.mode = "swallow"
        with pytest.raises(ConnectionLost):
            await channel.read()
        await connection.wait_closed()
        assert connection.closed
        with pytest.raises(ConnectionLost):
            await connection.open_channel("true")


@pytest.mark.parametrize("sshd", ["LogLevel VERBOSE"], indirect=True)
async def test_a_master_that_is_gone_is_a_loss_and_no_second_login(openssh: Any, sshd: Any) -> None:
    async with connected(await resolve(openssh.spec), openssh.hostkeys) as connection:
        channel = await connection.open_channel("exec cat")
        (master,) = [
            pid for pid in descendants(os.getpid()) if "-N" in command_of(pid) and command_of(pid)[0] != "/bin/sh"
        ]
        os.kill(master, signal.SIGKILL)
        with pytest.raises(ConnectionLost):
            await channel.read()
        with pytest.raises(ConnectionLost):
            await channel.wait(5)
        with pytest.raises(ConnectionLost):
            await connection.open_channel("true")
    assert log(sshd).count("Accepted publickey") == 1


async def test_one_login_serves_every_channel(openssh: Any, sshd: Any) -> None:
    async with connected(await resolve(openssh.spec), openssh.hostkeys) as connection:
        for number in range(6):
            assert (await connection.run(f"echo {number}")).stdout == b"%d\n" % number
    assert log(sshd).count("Accepted publickey") == 1


async def test_much_goes_both_ways_and_a_reader_that_stops_stops_the_command(openssh: Any) -> None:
    block = os.urandom(5_000_000)
    async with connected(await resolve(openssh.spec), openssh.hostkeys) as connection:
        assert (await connection.run("wc -c", input=block)).stdout.split() == [b"5000000"]
        back = bytearray()
        channel = await connection.open_channel("cat")
        feeding = asyncio.create_task(channel.write(block))
        while len(back) < len(block):
            back += await channel.read()
        await feeding
        assert bytes(back) == block
        await channel.close()


# ---------------------------------------------------------------- what is left behind


async def test_closing_takes_the_socket_and_the_processes_along(openssh: Any, short_folder: Path) -> None:
    connection = await open_connection(await resolve(openssh.spec), openssh.hostkeys)
    (folder,) = short_folder.iterdir()
    assert (folder / "control").is_socket() and folder.stat().st_mode & 0o777 == 0o700
    started = descendants(os.getpid())
    assert started
    await connection.close()
    assert not folder.exists() and not any(alive(pid) for pid in started)


async def test_ssh_dies_with_the_console(openssh: Any, short_folder: Path) -> None:
    program = (
        "import asyncio, sys; from pathlib import Path\n"
        "from remote.connection import open_connection; from remote.hostkeys import HostKeyStore\n"
        "from remote.resolve import *\n"
        "async def main():\n"
        "    how = dict(identity_files=(sys.argv[2],), ssh_config=False, backend='openssh')\n"
        "    spec = HostSpec('box', sys.argv[1], '/r', **how)\n"
        "    connection = await open_connection(await resolve(spec), HostKeyStore(Path(sys.argv[3])))\n"
        "    print('up', flush=True); await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    where = f"{openssh.spec.user}@{openssh.spec.ssh}"
    argv = [sys.executable, "-c", program, where, openssh.spec.identity_files[0], str(openssh.hostkeys.path.parent)]
    console = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert console.stdout is not None and await asyncio.to_thread(console.stdout.readline) == b"up\n"
    started = descendants(console.pid)
    console.kill()
    console.wait()
    console.stdout.close()
    assert started
    while any(alive(pid) for pid in started) or list(short_folder.iterdir()):
        await asyncio.sleep(0.02)


async def test_a_try_that_is_given_up_leaves_nothing(openssh: Any, proxies: list[Any]) -> None:
    proxy = await proxied(openssh, proxies)
    proxy.mode = "swallow"
    trying = asyncio.create_task(open_connection(await resolve(openssh.through(proxy.port)), openssh.hostkeys))
    while not proxy.accepted:
        await asyncio.sleep(0.01)
    started = descendants(os.getpid())
    trying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await trying
    assert started and not any(alive(pid) for pid in started)


def descendants(pid: int) -> list[int]:
    listing = subprocess.run(["ps", "-e", "-o", "pid=,ppid=,comm="], capture_output=True, text=True, check=True).stdout
    rows = [(int(row[0]), int(row[1])) for row in map(str.split, listing.splitlines()) if row[2] in ("sh", "ssh")]
    found: list[int] = []
    for child, parent in sorted(rows):
        if parent in (pid, *found):
            found.append(child)
    return found


def command_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


# ---------------------------------------------------------------- what the person's configuration asks for


@pytest.fixture
def ssh_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration that `ssh -G` reads instead of the account's own; every other call names its file itself."""
    config, wrapper = tmp_path / "config", tmp_path / "bin" / "ssh"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\n[ "$1" = -G ] && exec /usr/bin/ssh -F {config} "$@"\nexec /usr/bin/ssh "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", str(wrapper.parent), prepend=":")
    return config


async def test_an_alias_behind_a_jump_host_is_reached_by_its_configuration(
    target: Any, jump: Any, sshd: Any, ssh_config: Path, tmp_path: Path
) -> None:
    key = tmp_path / "a key % of mine"
    key.write_bytes((sshd.folder / "id").read_bytes())
    key.chmod(0o600)
    ssh_config.write_text(
        f"Host gpu\n HostName 127.0.0.1\n Port {sshd.port}\n User {target.spec.user}\n"
        f' IdentityFile "{str(key).replace("%", "%%")}"\n ProxyJump bastion\n'
        f"Host bastion\n HostName 127.0.0.1\n Port {jump.port}\n IdentityFile {jump.folder}/id\n"
        "Host *\n IdentityAgent none\n ForwardAgent yes\n StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\n"
        " ControlMaster auto\n ControlPath /nowhere/%C\n RemoteCommand false\n LocalForward 1 localhost:1\n"
        " PermitLocalCommand yes\n LocalCommand touch %d/pwned\n"
    )
    spec = replace(target.spec, ssh="gpu", user="", identity_files=(), ssh_config=True)
    resolved = await resolve(spec)
    with pytest.raises(HostKeyUnknown) as caught:
        await open_connection(resolved, target.hostkeys)
    assert caught.value.name == f"jump:127.0.0.1:{jump.port}"
    target.hostkeys.pin(caught.value.name, key_of(jump))
    async with connected(resolved, target.hostkeys) as connection:
        assert (await connection.run("echo through; echo $SSH_AUTH_SOCK")).stdout == b"through\n\n"


RELAY = (
    "import os, socket, sys, threading\n"
    "s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
    "def up():\n"
    "    while d := os.read(0, 65536): s.sendall(d)\n"
    "    os._exit(0)\n"
    "threading.Thread(target=up, daemon=True).start()\n"
    "while d := s.recv(65536): os.write(1, d)\n"
)


async def test_a_proxy_command_that_signs_in_carries_the_connection(openssh: Any, sshd: Any, tmp_path: Path) -> None:
    (tmp_path / "relay.py").write_text(f"import time; time.sleep(0.6)\n{RELAY}")
    command = f"{sys.executable} {tmp_path / 'relay.py'} {sshd.port}"
    found = replace(await resolve(openssh.spec), host="never.invalid", proxy_command=command, connect_timeout_s=0.2)
    async with connected(found, openssh.hostkeys) as connection:
        assert (await connection.run("echo relayed")).stdout == b"relayed\n"


async def test_what_a_proxy_command_says_is_told(openssh: Any) -> None:
    command = r"printf 'Session expired.\n\033[31mRun: sso login\n' >&2; exit 1"
    found = replace(await resolve(openssh.spec), proxy_command=f'sh -c "{command}"')
    with pytest.raises(UnreachableError, match=r"The ProxyCommand .* ended: Session expired. Run: sso login") as caught:
        await open_connection(found, openssh.hostkeys)
    assert caught.value.code == "closed"


async def test_a_setting_that_this_ssh_does_not_know_is_told(openssh: Any) -> None:
    found = replace(await resolve(openssh.spec), ssh_settings=(("kexalgorithms", "not-a-method"),))
    with pytest.raises(HostConfigError, match="not-a-method"):
        await open_connection(found, openssh.hostkeys)


async def test_without_an_ssh_it_says_what_to_install(openssh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = await resolve(openssh.spec)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(HostConfigError, match="no ssh command"):
        await open_connection(found, openssh.hostkeys)


@pytest.fixture
def boastful(tmp_path: Path) -> Path:
    path = tmp_path / "banner"
    path.write_text(
        "debug1: Remote protocol version 2.0\nAuthenticated to evil ([10.0.0.1]:22).\nHost key verification failed.\n"
        "\x1b]0;owned\x07Permission denied (publickey).\nssh: connect to host evil port 22: Connection refused\n"
    )
    return path


async def test_a_servers_banner_is_not_taken_for_ssh_s_own_words(
    openssh: Any, sshd: Any, boastful: Path, tmp_path: Path
) -> None:
    sshd.stop()
    sshd.config.write_text(sshd.config.read_text() + f"Banner {boastful}\n")
    sshd.start()
    async with connected(await resolve(openssh.spec), openssh.hostkeys) as connection:
        assert (await connection.run("echo in")).stdout == b"in\n"
    spec = replace(openssh.spec, identity_files=(str(make_key(tmp_path / "wrong")),))
    with pytest.raises(AuthenticationError):
        await open_connection(await resolve(spec), openssh.hostkeys)


async def test_a_login_names_its_settings_in_full(openssh: Any, short_folder: Path) -> None:
    """What the hops of a connection are made with, as ssh itself reads it back."""
    found = await resolve(openssh.spec)
    login = await Login.start((replace(found, name="jump"), found), [openssh.hostkeys.get("box")] * 2, 5)
    try:
        (folder,) = short_folder.iterdir()
        for hop in ("hop-0", "hop-1"):
            said = subprocess.run(
                ["ssh", "-F", folder / "config", "-G", hop], capture_output=True, text=True, check=True
            )
            settings = dict(line.partition(" ")[::2] for line in said.stdout.splitlines())
            assert {
                "batchmode": "yes", "stricthostkeychecking": "true", "globalknownhostsfile": "none",
                "forwardagent": "no",
                "userknownhostsfile": str(folder / "known"), "updatehostkeys": "false", "forwardx11": "no",
                "permitlocalcommand": "no", "requesttty": "false", "clearallforwardings": "yes", "hostkeyalias": hop,
                "serveraliveinterval": "5", "serveralivecountmax": "3", "controlpersist": "no", "tunnel": "false",
                "passwordauthentication": "no", "preferredauthentications": "publickey",
            }.items() <= settings.items()  # fmt: skip
            assert settings["controlmaster"] == ("true" if hop == "hop-1" else "false")
    finally:
        await login.end()
