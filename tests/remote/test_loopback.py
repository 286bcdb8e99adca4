"""The embedded server as a process: what it prints, whom it lets in, how it ends, and what it leaves running."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from remote.connection import open_connection
from remote.errors import AuthenticationError
from remote.hostkeys import HostKey, HostKeyStore
from remote.resolve import HostSpec, Resolved, resolve

ARGV = [sys.executable, "-m", "remote.loopback", "--state"]


@contextmanager
def running(state: Path) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    process = subprocess.Popen([*ARGV, state], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    try:
        yield process, json.loads(process.stdout.readline())
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(10)


async def resolved(said: dict[str, Any], state: Path, **changes: Any) -> tuple[Resolved, HostKeyStore]:
    store = HostKeyStore(state / "pins")
    store.pin("demo", HostKey.parse(said["pin"]))
    address = f"{said['user']}@{said['host']}:{said['port']}"
    settings = {"identity_files": (said["identity"],), "ssh_config": False, **changes}
    return await resolve(HostSpec("demo", address, "/tmp/x", **settings)), store


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def eventually(condition: Any) -> None:
    while not condition():
        time.sleep(0.02)


async def test_what_it_prints_is_enough_to_connect_with_a_pinned_key(tmp_path: Path) -> None:
    with running(tmp_path) as (_, said):
        assert HostKey.parse(said["pin"]).fingerprint == said["host_key_fingerprint"]
        assert said["host"] == "127.0.0.1"
        connection = await open_connection(*await resolved(said, tmp_path))
        assert (await connection.run("echo in")).stdout == b"in\n"
        await connection.close()


def test_it_ends_with_its_input_and_keeps_its_keys(tmp_path: Path) -> None:
    with running(tmp_path) as (process, first):
        pass
    assert process.returncode == 0
    with running(tmp_path) as (_, second):
        pass
    assert {**first, "port": 0} == {**second, "port": 0}


def test_two_that_start_at_once_share_one_pair_of_keys(tmp_path: Path) -> None:
    with running(tmp_path) as (_, first), running(tmp_path) as (_, second):
        assert first["pin"] == second["pin"] and first["port"] != second["port"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["host_key", "id_ed25519"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_it_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen(sys.argv[1:], stdin=open('/dev/zero') if 0 else subprocess.PIPE)\n"
        "print(p.pid, flush=True); time.sleep(60)\n"
    )
    # the write end of its input is kept open here, so that only the parent's death can end it
    parent = subprocess.Popen(
        [sys.executable, "-c", program, *ARGV, str(tmp_path)], stdout=subprocess.PIPE, start_new_session=True
    )
    assert parent.stdout is not None
    server = int(parent.stdout.readline())
    held = os.open(f"/proc/{server}/fd/0", os.O_WRONLY)
    json.loads(parent.stdout.readline())
    parent.kill()
    parent.wait()
    eventually(lambda: gone(server))
    os.close(held)
    parent.stdout.close()


def test_a_state_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = subprocess.run(
        [*ARGV, tmp_path / "file" / "x"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "cannot start" in done.stderr and "Traceback" not in done.stderr


async def test_only_its_own_key_gets_in(loopback: Any, tmp_path: Path) -> None:
    said = vars(loopback.address)
    other = tmp_path / "other"
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(other)
    for changes in ({"identity_files": (str(other),)}, {"user": "somebody-else"}):
        with pytest.raises(AuthenticationError):
            await open_connection(*await resolved(said, tmp_path, **changes))


async def test_a_detached_grandchild_outlives_the_channel_and_the_server(loopback: Any, tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    connection = await open_connection(*await resolved(vars(loopback.address), tmp_path))
    command = f"setsid sh -c 'echo $$ > {marker}; exec sleep 60' >/dev/null 2>&1 </dev/null & echo started"
    assert (await connection.run(command)).stdout == b"started\n"
    await asyncio.to_thread(eventually, lambda: marker.exists() and marker.read_text().strip())
    pid = int(marker.read_text())
    try:
        await connection.close()
        await loopback.close()
        await asyncio.sleep(0.2)
        assert not gone(pid)
    finally:
        os.kill(pid, signal.SIGKILL)


async def test_a_command_whose_channel_goes_sees_the_end_of_its_input_and_is_not_killed(
    loopback: Any, tmp_path: Path
) -> None:
    done = tmp_path / "done"
    connection = await open_connection(*await resolved(vars(loopback.address), tmp_path))
    channel = await connection.open_channel(f"cat >/dev/null; sleep 0.3; echo saved > {done}")
    await channel.write(b"x")
    await connection.close()
    await asyncio.to_thread(eventually, lambda: done.exists() and done.read_text() == "saved\n")


async def test_a_slow_reader_holds_the_command_back(loopback: Any, tmp_path: Path) -> None:
    count = tmp_path / "count"
    connection = await open_connection(*await resolved(vars(loopback.address), tmp_path))
    command = f"for i in $(seq 40); do head -c 1000000 /dev/zero; echo $i > {count}; done"
    channel = await connection.open_channel(command)
    await channel.read(1)
    seen = -1
    while seen != (seen := int(count.read_text() or 0) if count.exists() else -1) or seen < 0:  # noqa: ASYNC110
        await asyncio.sleep(0.3)  # until it does not get on any more
    assert seen < 20
    total = 1
    while piece := await channel.read():
        total += len(piece)
    assert total == 40_000_000
    await channel.close()
    await connection.close()


async def test_half_closed_input_and_signals(loopback: Any, tmp_path: Path) -> None:
    resolved_, store = await resolved(vars(loopback.address), tmp_path)
    connection = await open_connection(resolved_, store)
    channel = await connection.open_channel(
        "trap 'echo got TERM; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    )
    assert await channel.read_until(b"\n") == b"ready"
    channel._process.send_signal("TERM")
    assert await channel.read_until(b"\n") == b"got TERM"
    assert await channel.wait(5) == 5
    await channel.close()
    channel = await connection.open_channel("cat; echo end; cat")
    await channel.write(b"one\n")
    channel.write_eof()
    assert await channel.read_until(b"end\n") == b"one\n"
    assert await channel.wait(5) == 0
    await channel.close()
    await connection.close()


async def test_a_login_sees_no_more_of_the_environment_than_an_sshd_gives(
    loopback: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    monkeypatch.setenv("MY_TOKEN", "secret")
    connection = await open_connection(*await resolved(vars(loopback.address), tmp_path))
    seen = (await connection.run("env; pwd")).stdout.decode()
    await connection.close()
    assert "MY_TOKEN" not in seen and "SSH_AUTH_SOCK" not in seen and "VIRTUAL_ENV" not in seen
    assert f"HOME={tmp_path / 'home'}" in seen and seen.splitlines()[-1] == str(tmp_path / "home")
    assert "SSH_CONNECTION=127.0.0.1" in seen


async def test_there_is_no_shell_to_log_in_to(loopback: Any) -> None:
    address = loopback.address
    pin = asyncssh.import_public_key(address.pin)
    async with asyncssh.connect(
        address.host, address.port, username=address.user, client_keys=[address.identity], config=None,
        known_hosts=([pin], [], []), agent_path=None,
    ) as connection:  # fmt: skip
        done = await connection.run(None, check=False)
    assert done.exit_status == 1 and "give a command" in str(done.stderr)
