"""Connecting: to the embedded server and to a real sshd; every way it can fail says what to do."""

# ruff: noqa: ASYNC220, ASYNC221, ASYNC110

from __future__ import annotations

import asyncio
import base64
import os
import stat
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from remote.connection import CHANNELS, Connection, open_connection
from remote.errors import (
    AuthenticationError,
    ConnectionLost,
    DeadlineExceeded,
    HostKeyChanged,
    HostKeyUnknown,
    RemoteError,
    UnreachableError,
)
from remote.hostkeys import HostKey, HostKeyStore
from remote.openssh.mux import SOME_SIGNAL
from remote.resolve import Resolved, resolve

EMBEDDED = pytest.mark.parametrize("host", ["embedded"], indirect=True)
SK_PUBLIC = (b"sk-ssh-ed25519@openssh.com", bytes(range(32)), b"ssh:")
REAL = pytest.mark.parametrize("host", ["real", "openssh"], indirect=True)
ASYNCSSH = pytest.mark.parametrize("host", ["embedded", "real"], indirect=True)


@asynccontextmanager
async def connected(host: Any) -> AsyncIterator[Connection]:
    connection = await open_connection(await resolve(host.spec), host.hostkeys)
    try:
        yield connection
    finally:
        await connection.close()


def make_key(path: Path, passphrase: str = "") -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", path], check=True)
    return path


async def test_a_command_gives_its_bytes_and_its_status(host: Any) -> None:
    async with connected(host) as connection:
        done = await connection.run("cat; printf '\\377' ; echo oops >&2; exit 3", input=b"\x00\xff\n")
    assert (done.status, done.stdout, done.stderr) == (3, b"\x00\xff\n\xff", b"oops\n")


async def test_a_command_ended_by_a_signal_has_a_negative_status(host: Any) -> None:
    async with connected(host) as connection:
        # the system's ssh does not say which signal it was
        assert (await connection.run("kill -9 $$")).status in (-9, SOME_SIGNAL)


@REAL
async def test_much_stderr_does_not_stall_stdout(host: Any) -> None:
    command = "for i in 1 2 3 4 5 6 7 8; do head -c 1000000 /dev/zero >&2; echo $i; done"
    async with connected(host) as connection:
        done = await connection.run(command)
    assert done.stdout.split() == [b"%d" % n for n in range(1, 9)]
    assert len(done.stderr) == 2048


@EMBEDDED
async def test_a_command_that_reads_nothing_may_be_given_much(host: Any) -> None:
    async with connected(host) as connection:
        assert (await connection.run("echo done", input=b"x" * 5_000_000)).stdout == b"done\n"


@EMBEDDED
async def test_a_command_that_takes_too_long_is_an_unknown_outcome(host: Any) -> None:
    async with connected(host) as connection:
        with pytest.raises(DeadlineExceeded):
            await connection.run("exec sleep 3", timeout_s=0.3)
        assert (await connection.run("echo on")).stdout == b"on\n"


async def test_losing_the_server_mid_command_is_never_a_result(host: Any, proxy: Any) -> None:
    connection = await open_connection(await resolve(host.through(proxy.port)), host.hostkeys)
    running = asyncio.create_task(connection.run("echo begun; exec sleep 5"))
    await asyncio.sleep(0.2)
    proxy.reset_all()
    with pytest.raises(ConnectionLost):
        await running
    await connection.close()


async def test_no_more_than_the_budget_of_channels_is_open_at_once(host: Any) -> None:
    async with connected(host) as connection:
        held = [await connection.open_channel("exec cat") for _ in range(CHANNELS)]
        with pytest.raises(DeadlineExceeded):
            await connection.open_channel("true", timeout_s=0.2)
        await held.pop().close()
        assert (await connection.run("echo free")).stdout == b"free\n"
        for channel in held:
            await channel.close()


@pytest.mark.parametrize("sshd", ["MaxSessions 1"], indirect=True)
async def test_a_host_that_allows_one_session_says_so(real: Any) -> None:
    async with connected(real) as connection:
        channel = await connection.open_channel("exec cat")
        with pytest.raises(RemoteError, match="no further session") as caught:
            await connection.open_channel("true")
        assert caught.value.code == "channels" and "MaxSessions" in caught.value.remedy
        await channel.write(b"still here\n")
        assert await channel.read_until(b"\n") == b"still here"
        await channel.close()


async def test_an_unknown_key_is_shown_and_not_trusted(host: Any, tmp_path: Path) -> None:
    empty = HostKeyStore(tmp_path / "other")
    expected = host.hostkeys.get("box")
    with pytest.raises(HostKeyUnknown) as caught:
        await open_connection(await resolve(host.spec), empty)
    assert caught.value.fingerprint == expected.fingerprint and caught.value.kind == "ssh-ed25519"
    assert empty.get("box") is None


async def test_what_the_persons_known_hosts_say_comes_with_the_question(host: Any, tmp_path: Path) -> None:
    file, pin = tmp_path / "known_hosts", host.hostkeys.get("box")
    resolved = replace(await resolve(host.spec), known_hosts_files=(str(file),))
    file.write_text(f"[{resolved.host}]:{resolved.port} {pin.line}\n")
    with pytest.raises(HostKeyUnknown) as caught:
        await open_connection(resolved, HostKeyStore(tmp_path / "other"))
    assert caught.value.hint == f"{file} has the same key for it."
    assert caught.value.remedy.startswith(caught.value.hint)


@ASYNCSSH
async def test_a_refusal_names_the_backend_that_can_do_more(host: Any, tmp_path: Path) -> None:
    found = replace(await resolve(host.spec), identity_files=(str(make_key(tmp_path / "wrong")),))
    with pytest.raises(AuthenticationError) as caught:
        await open_connection(replace(found, beyond=("PKCS11Provider",)), host.hostkeys)
    assert "PKCS11Provider" in caught.value.remedy and 'backend = "openssh"' in caught.value.remedy
    with pytest.raises(AuthenticationError, match=r"`ssh-add -s /lib/token\.so`"):
        await open_connection(replace(found, ssh_settings=(("pkcs11provider", "/lib/token.so"),)), host.hostkeys)
    with pytest.raises(AuthenticationError) as caught:
        await open_connection(found, host.hostkeys)
    assert "openssh" not in caught.value.remedy
    with pytest.raises(UnreachableError) as unreachable:
        await open_connection(replace(found, proxy_command="false"), host.hostkeys)
    assert 'backend = "openssh"' in unreachable.value.remedy


async def test_a_hardware_key_that_is_in_no_agent_names_the_backend_that_can_use_it(
    embedded: Any, tmp_path: Path
) -> None:
    public = b"".join(len(part).to_bytes(4, "big") + part for part in SK_PUBLIC)
    check = os.urandom(4) * 2
    private = check + public + b"\1" + b"\0\0\0\4hand" + b"\0\0\0\0" + b"\0\0\0\4mine"
    private += bytes(range(1, 8 - len(private) % 8 + 1)) if len(private) % 8 else b""
    body = b"openssh-key-v1\0" + b"\0\0\0\4none\0\0\0\4none\0\0\0\0\0\0\0\1"
    body += len(public).to_bytes(4, "big") + public + len(private).to_bytes(4, "big") + private
    file = tmp_path / "id_ed25519_sk"
    text = base64.encodebytes(body).decode()
    file.write_text(f"-----BEGIN OPENSSH PRIVATE KEY-----\n{text}-----END OPENSSH PRIVATE KEY-----\n")
    found = replace(await resolve(embedded.spec), identity_files=(str(file),))
    with pytest.raises(AuthenticationError, match="hardware key that is in no agent") as caught:
        await open_connection(found, embedded.hostkeys)
    assert 'backend = "openssh"' in caught.value.remedy


async def test_a_key_a_person_confirms_is_pinned(host: Any, tmp_path: Path) -> None:
    empty, asked = HostKeyStore(tmp_path / "other"), []

    async def yes(unknown: HostKeyUnknown) -> bool:
        asked.append(unknown.fingerprint)
        return True

    for _ in range(2):
        connection = await open_connection(await resolve(host.spec), empty, yes)
        await connection.close()
    assert asked == [host.hostkeys.get("box").fingerprint]
    assert empty.get("box") == host.hostkeys.get("box")


@EMBEDDED
async def test_a_key_a_person_declines_stays_unknown(host: Any, tmp_path: Path) -> None:
    empty = HostKeyStore(tmp_path / "other")

    async def no(unknown: HostKeyUnknown) -> bool:
        return False

    with pytest.raises(HostKeyUnknown):
        await open_connection(await resolve(host.spec), empty, no)
    assert empty.get("box") is None


async def test_a_changed_key_blocks_and_is_not_even_asked_about(host: Any, tmp_path: Path) -> None:
    other = HostKey.parse((make_key(tmp_path / "other_key").with_suffix(".pub")).read_text())
    store = HostKeyStore(tmp_path / "other")
    store.pin("box", other)

    async def ask(unknown: HostKeyUnknown) -> bool:
        raise AssertionError("a changed key was asked about as if it were new")

    with pytest.raises(HostKeyChanged) as caught:
        await open_connection(await resolve(host.spec), store, ask)
    assert caught.value.old_fingerprint == other.fingerprint
    assert caught.value.fingerprint == host.hostkeys.get("box").fingerprint
    assert store.get("box") == other


@REAL
async def test_a_pinned_kind_the_host_no_longer_has_is_a_changed_key(host: Any, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", tmp_path / "ec"], check=True)
    store = HostKeyStore(tmp_path / "other")
    store.pin("box", HostKey.parse((tmp_path / "ec.pub").read_text()))
    with pytest.raises(HostKeyChanged):
        await open_connection(await resolve(host.spec), store)


@ASYNCSSH
async def test_a_wrong_key_names_what_was_tried(host: Any, tmp_path: Path) -> None:
    wrong, locked = make_key(tmp_path / "wrong"), make_key(tmp_path / "locked", "secret")
    spec = replace(host.spec, identity_files=(str(wrong), str(locked), str(tmp_path / "absent")))
    with pytest.raises(AuthenticationError) as caught:
        await open_connection(await resolve(spec), host.hostkeys)
    assert str(wrong) in caught.value.message and f"{locked} (it has a passphrase: run ssh-add)" in caught.value.message
    assert caught.value.blocks and "authorized_keys" in caught.value.remedy


@EMBEDDED
async def test_no_key_at_all_is_an_authentication_failure(host: Any, tmp_path: Path) -> None:
    spec = replace(host.spec, identity_files=(str(tmp_path / "absent"),))
    with pytest.raises(AuthenticationError, match="no key at all"):
        await open_connection(await resolve(spec), host.hostkeys)


async def test_keys_of_the_agent_are_used_and_the_agent_is_never_forwarded(
    real: Any, sshd: Any, tmp_path: Path
) -> None:
    socket = tmp_path / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL)
    try:
        while not socket.exists():
            await asyncio.sleep(0.02)
        environment = {**os.environ, "SSH_AUTH_SOCK": str(socket)}
        subprocess.run(["ssh-add", "-q", sshd.folder / "id"], env=environment, check=True, stderr=subprocess.DEVNULL)
        resolved = replace(await resolve(real.spec), identity_files=(), identities_only=False, agent_path=str(socket))
        connection = await open_connection(resolved, real.hostkeys)
        seen = await connection.run('echo "agent:$SSH_AUTH_SOCK"')
        await connection.close()
        assert seen.stdout == b"agent:\n"
    finally:
        agent.terminate()
        agent.wait()


async def test_an_agent_that_is_gone_is_named(real: Any, tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    resolved = replace(await resolve(real.spec), identity_files=(), agent_path=gone)
    with pytest.raises(AuthenticationError, match=f"the ssh-agent at {gone}"):
        await open_connection(resolved, real.hostkeys)


@pytest.mark.parametrize("host", ["embedded", "openssh"], indirect=True)
async def test_a_refused_port_is_named(host: Any, unused_tcp_port: int) -> None:
    with pytest.raises(UnreachableError, match=f"127.0.0.1:{unused_tcp_port} refuses") as caught:
        await open_connection(await resolve(host.through(unused_tcp_port)), host.hostkeys)
    assert caught.value.code == "refused" and not caught.value.blocks


@pytest.mark.parametrize("backend", ["asyncssh", "openssh"])
async def test_a_name_that_does_not_exist_is_named(backend: str, tmp_path: Path) -> None:
    resolved = Resolved("x", "no-such-host.invalid", 22, "u", backend=backend)
    with pytest.raises(UnreachableError, match=r"The name no-such-host\.invalid is not known") as caught:
        await open_connection(resolved, HostKeyStore(tmp_path))
    assert caught.value.code == "dns"


Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def tcp_server(answer: Answer) -> AsyncIterator[Resolved]:
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        yield Resolved("x", "127.0.0.1", port, "u", connect_timeout_s=0.5)


async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


async def web_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    await reader.read()
    writer.close()


async def endless_line(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\xff" * 100_000)
    await reader.read()
    writer.close()


async def old_protocol(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-1.5-ancient\r\n")
    await reader.read()
    writer.close()


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


@pytest.mark.parametrize("backend", ["asyncssh", "openssh"])
@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (silence, "timeout"),
        (web_server, "timeout"),
        (endless_line, "not-ssh"),
        (old_protocol, "not-ssh"),
        (hang_up, "closed"),
    ],
)
async def test_a_server_that_is_no_ssh_server_is_recognised(
    answer: Answer, code: str, backend: str, tmp_path: Path
) -> None:
    async with tcp_server(answer) as resolved:
        with pytest.raises(UnreachableError) as caught:
            await open_connection(replace(resolved, backend=backend), HostKeyStore(tmp_path))
    assert caught.value.code == code and caught.value.remedy


@pytest.mark.parametrize("backend", ["asyncssh", "openssh"])
async def test_what_a_server_says_when_it_hangs_up_is_shown_and_sanitised(backend: str, tmp_path: Path) -> None:
    class Closed(asyncssh.SSHServer):
        def connection_made(self, conn: Any) -> None:
            self.conn = conn

        def begin_auth(self, username: str) -> bool:
            self.conn.disconnect(12, "Closed \x1b]0;owned\x07until Monday")
            return True

    key = asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Closed, server_host_keys=[key], config=None)
    store = HostKeyStore(tmp_path)
    store.pin("x", HostKey.parse(key.export_public_key("openssh").decode()))
    with pytest.raises(UnreachableError) as caught:
        await open_connection(Resolved("x", "127.0.0.1", server.get_port(), "u", backend=backend), store)
    assert caught.value.code == "closed" and "Closed until Monday" in caught.value.message
    server.close()
    await server.wait_closed()


@EMBEDDED
async def test_a_long_banner_before_the_version_is_no_obstacle(host: Any, proxies: list[Any]) -> None:
    port = int(host.spec.ssh.rpartition(":")[2])

    async def with_banner(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"".join(b"Notice %d of the provider\r\n" % n for n in range(200)))
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                sink.write(data)
            sink.close()

        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    server = await asyncio.start_server(with_banner, "127.0.0.1", 0)
    async with server:
        spec = host.through(server.sockets[0].getsockname()[1])
        connection = await open_connection(await resolve(spec), host.hostkeys)
        assert (await connection.run("echo in")).stdout == b"in\n"
        await connection.close()


async def test_jump_hosts_are_gone_through_and_pinned_under_their_own_name(real: Any, sshd: Any) -> None:
    target = await resolve(real.spec)
    jump = replace(target, name=f"jump:127.0.0.1:{sshd.port}")
    resolved = replace(target, jumps=(jump,))
    with pytest.raises(HostKeyUnknown) as caught:
        await open_connection(resolved, real.hostkeys)
    assert caught.value.name == jump.name
    real.hostkeys.pin(jump.name, HostKey.parse(caught.value.key))
    connection = await open_connection(resolved, real.hostkeys)
    assert (await connection.run("echo through")).stdout == b"through\n"
    await connection.close()


async def test_a_target_the_jump_host_cannot_reach_is_named(real: Any, sshd: Any, unused_tcp_port: int) -> None:
    jump = await resolve(real.spec)
    resolved = replace(jump, port=unused_tcp_port, jumps=(jump,))
    with pytest.raises(UnreachableError, match="jump host cannot reach"):
        await open_connection(resolved, real.hostkeys)


async def test_a_proxy_command_carries_the_connection(real: Any, sshd: Any, tmp_path: Path) -> None:
    relay = tmp_path / "relay.py"
    relay.write_text(
        "import os, socket, sys, threading\n"
        f"s = socket.create_connection(('127.0.0.1', {sshd.port}))\n"
        "def up():\n"
        "    while d := os.read(0, 65536): s.sendall(d)\n"
        "    os._exit(0)\n"
        "threading.Thread(target=up, daemon=True).start()\n"
        "while d := s.recv(65536): os.write(1, d)\n"
    )
    resolved = replace(await resolve(real.spec), host="never.invalid", proxy_command=f"python3 {relay}")
    connection = await open_connection(resolved, real.hostkeys)
    assert (await connection.run("echo relayed")).stdout == b"relayed\n"
    await connection.close()


@REAL
async def test_closing_is_quick_when_the_network_swallows_everything(host: Any, proxy: Any) -> None:
    connection = await open_connection(await resolve(host.through(proxy.port)), host.hostkeys)
    channel = await connection.open_channel("exec cat")
    proxy.mode = "swallow"
    async with asyncio.timeout(3):
        await channel.close()
        await connection.close()


@REAL
async def test_keepalive_ends_a_connection_nobody_answers_on(host: Any, proxy: Any) -> None:
    connection = await open_connection(await resolve(host.through(proxy.port)), host.hostkeys, keepalive_s=0.1)
    channel = await connection.open_channel("exec cat")
    proxy.mode = "swallow"
    with pytest.raises(ConnectionLost):
        await channel.read()
    await connection.close()


async def test_the_private_keys_of_the_embedded_server_are_private(embedded: Any, tmp_path: Path) -> None:
    for name in ("host_key", "id_ed25519"):
        assert stat.S_IMODE((tmp_path / "server" / name).stat().st_mode) == 0o600
