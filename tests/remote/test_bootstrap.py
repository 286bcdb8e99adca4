"""Starting the agent: first time, again, two at once, through shells that print, hang, exit; clear refusals."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remote import bootstrap
from remote.archive import Archive, build_archive
from remote.bootstrap import Agent, start_agent
from remote.connection import Connection, open_connection
from remote.errors import BootstrapError, ConnectionLost
from remote.resolve import HostSpec, resolve


@asynccontextmanager
async def connected(target: Any, spec: HostSpec | None = None) -> AsyncIterator[Connection]:
    connection = await open_connection(await resolve(spec or target.spec), target.hostkeys)
    try:
        yield connection
    finally:
        await connection.close()


async def start(target: Any, **changes: Any) -> Agent:
    """Starts an agent, and lets it go again."""
    spec = replace(target.spec, **changes)
    async with connected(target, spec) as connection:
        agent = await start_agent(connection, spec, build_archive())
        await agent.channel.close()
        return agent


async def refusal(target: Any, **changes: Any) -> BootstrapError:
    with pytest.raises(BootstrapError) as caught:
        await start(target, **changes)
    return caught.value


def leftovers(root: Path) -> list[str]:
    return sorted(os.listdir(root / "code"))


async def test_the_code_is_uploaded_once_and_found_again(host: Any) -> None:
    name = build_archive().name
    first, again = await start(host), await start(host)
    assert first.uploaded > 0 and again.uploaded == 0
    assert first.code == again.code == str(host.root / "code" / name)
    assert first.hello.agent == name and first.hello.root == str(host.root) and first.hello.pid != again.hello.pid
    assert leftovers(host.root) == [name]


async def test_two_laptops_at_once_both_get_an_agent_of_one_folder(real: Any) -> None:
    agents = await asyncio.gather(*(start(real) for _ in range(3)))
    assert {agent.hello.agent for agent in agents} == {build_archive().name}
    assert leftovers(real.root) == [build_archive().name]


async def test_the_command_is_safe_in_every_shell() -> None:
    commands = []

    class Recorder:
        resolved = None

        async def open_channel(self, command: str) -> Any:
            commands.append(command)
            raise ConnectionLost("enough")

    recorder: Any = Recorder()
    recorder.resolved = recorder
    recorder.name = "box"
    with pytest.raises(ConnectionLost):
        await bootstrap.open_shell(recorder, "true")
    command = commands[0]
    assert command.startswith("exec /bin/sh -c '") and command.count("'") == 2
    assert not set("\\!\n`%") & set(command)


async def test_a_root_of_any_name_works(embedded: Any) -> None:
    root = embedded.root / "-with space" / "quo'te" / 'dou"ble' / "back\\slash\\n" / "$HOME `id` $(id)" / "bang! ünï %s"
    agent = await start(embedded, root=str(root))
    assert agent.hello.root == str(root)
    assert (await start(embedded, root=str(root))).uploaded == 0


async def test_a_root_and_a_python_in_the_home_folder(real: Any, sshd: Any) -> None:
    (sshd.home / "python").symlink_to(sys.executable)
    agent = await start(real, root="~/deck", python="~/python")
    assert agent.hello.root == str(sshd.home / "deck")


async def test_a_volume_that_is_not_there_is_not_made(embedded: Any, tmp_path: Path) -> None:
    volume = tmp_path / "not mounted"
    with pytest.raises(BootstrapError, match=r"has no folder .*not mounted, which is to be its volume") as refused:
        await start(embedded, root=str(volume / "eagledeck"), volume=str(volume))
    assert (refused.value.blocks, refused.value.code) == (True, "volume")
    assert not volume.exists()
    volume.mkdir()
    assert (await start(embedded, root=str(volume / "eagledeck"), volume=str(volume))).hello.root.startswith(
        str(volume)
    )


@pytest.fixture(scope="module")
def warm_root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A root shared by the tests that are not about the upload."""
    return str(tmp_path_factory.mktemp("warm"))


NOISE = {
    "a banner": "echo Welcome to GPU cloud; printf 'no newline at the end '",
    "on stderr": "head -c 300000 /dev/zero | tr '\\0' x >&2",
    "much": "head -c 300000 /dev/zero | tr '\\0' x",
    "looks like us": 'echo "@@0123456789abcdef@@ sh"; echo "{\\"hello\\": {}}"; echo "@@x@@ fail {}"',
    "escapes": "printf '\\033]0;title\\007\\033[2J'",
    "bytes": "printf '\\377\\376\\000'",
    "exported": "export PYTHONHOME=/nonsense PYTHONPATH=/nonsense PYTHONSTARTUP=/nonsense PYTHONSAFEPATH=1",
    "tracing": "set -x",
    "aliases": "alias exec=false python3=false",
}


@pytest.fixture
def bashrc(sshd: Any) -> Path:
    """A startup file that the login shell really reads; elsewhere the test has nothing to say."""
    path: Path = sshd.home / ".bashrc"
    path.write_text("echo sourced\n")
    argv = ["ssh", "-F", "none", "-i", sshd.folder / "id", "-p", str(sshd.port), "-o", "StrictHostKeyChecking=no"]
    argv += ["-o", "UserKnownHostsFile=/dev/null", "-o", "IdentitiesOnly=yes", "127.0.0.1", "true"]
    if b"sourced" not in subprocess.run(argv, capture_output=True).stdout:
        pytest.skip("the login shell here does not read ~/.bashrc")
    return path


@pytest.mark.parametrize("noise", NOISE.values(), ids=NOISE)
async def test_a_noisy_startup_file_does_no_harm(real: Any, bashrc: Path, noise: str, warm_root: str) -> None:
    bashrc.write_text(noise + "\n")
    assert (await start(real, root=warm_root, python="")).hello.root == warm_root


async def test_a_startup_file_that_exits_is_quoted(real: Any, bashrc: Path) -> None:
    bashrc.write_text("echo 'Maintenance until Monday \x1b[31mred'; exit 7\n")
    error = await refusal(real)
    assert error.code == "shell" and not error.blocks
    assert "Maintenance until Monday red" in error.message and "Exit status 7" in error.message


async def test_a_startup_file_that_waits_for_input_is_noticed(
    real: Any, bashrc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "SHELL_S", 0.7)
    bashrc.write_text("echo 'Accept the terms? '; read -r answer\n")
    error = await refusal(real)
    assert error.code == "shell" and "Accept the terms?" in error.message


@pytest.mark.parametrize("sshd", ["ForceCommand echo This account is closed; exit 1"], indirect=True)
async def test_an_account_that_runs_no_commands_is_quoted(real: Any) -> None:
    error = await refusal(real)
    assert error.code == "shell" and "This account is closed" in error.message


SHELLS = ["dash", "fish", "tcsh", "busybox sh"]


@pytest.mark.parametrize(
    ("sshd", "shell"),
    [
        pytest.param(f'ForceCommand exec {shell} -c "$SSH_ORIGINAL_COMMAND"', shell, id=shell.split()[0], marks=marks)
        for shell, marks in zip(SHELLS, [(), pytest.mark.real, pytest.mark.real, pytest.mark.real])
    ],
    indirect=["sshd"],
)
async def test_other_login_shells(real: Any, shell: str) -> None:
    if shutil.which(shell.split()[0]) is None:
        pytest.skip(f"{shell} is not installed here")
    assert (await start(real, python="")).uploaded > 0
    assert (await start(real, python="")).uploaded == 0


@pytest.mark.parametrize("embedded_python", ["/no/such/python3", "no-such-python3"])
async def test_a_configured_python_that_is_not_there_is_refused(embedded: Any, embedded_python: str) -> None:
    error = await refusal(embedded, python=embedded_python)
    assert error.code == "python" and error.blocks
    assert embedded_python in error.message and "/python3" in error.remedy


def stub(path: Path, script: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo False 3.6.15 /opt/py36", "3.6.15"),
        ("echo Python was not found; run without arguments to install", "does not run"),
        ("exit 1", "does not run"),
        ("cat >/dev/null; exit 1", "does not run"),
    ],
)
async def test_a_python_that_is_too_old_or_none_is_named(embedded: Any, tmp_path: Path, script: str, said: str) -> None:
    path = stub(tmp_path / "stub" / "python3", script)
    error = await refusal(embedded, python=path)
    assert error.code == "python" and path in error.message and said in error.message


async def test_a_host_without_python_says_what_was_found(
    embedded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = stub(tmp_path / "stub" / "python3", "echo False 3.6.15 /opt/py36")
    monkeypatch.setattr(bootstrap, "PYTHONS", ("/nowhere/python3", old))
    error = await refusal(embedded, python="")
    assert error.code == "python" and error.blocks
    assert "no Python 3.9 or newer" in error.message and f"{old} (3.6.15" in error.message


async def test_the_next_python_is_taken_when_the_first_is_too_old(
    embedded: Any, tmp_path: Path, warm_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = stub(tmp_path / "stub" / "python3", "echo False 3.6.15 /opt/py36")
    monkeypatch.setattr(bootstrap, "PYTHONS", (old, sys.executable))
    assert Path((await start(embedded, root=warm_root, python="")).python).samefile(sys.executable)


async def test_code_goes_to_the_home_folder_when_the_root_takes_none(real: Any, sshd: Any) -> None:
    (real.root / "code").write_text("in the way")
    first, again = await start(real), await start(real)
    home = sshd.home / ".cache" / "eagledeck" / "code"
    assert first.code == again.code == str(home / build_archive().name)
    assert first.uploaded > 0 and again.uploaded == 0
    assert str(real.root / "code") in first.notes[0]
    assert first.hello.root == str(real.root)


async def test_a_host_that_takes_the_code_nowhere_names_every_place(real: Any, sshd: Any) -> None:
    (real.root / "code").write_text("in the way")
    (sshd.home / ".cache").write_text("in the way")
    error = await refusal(real)
    assert error.code == "install" and not error.blocks
    assert str(real.root / "code") in error.message and ".cache/eagledeck" in error.message


async def test_code_of_another_user_is_not_run(real: Any, sshd: Any) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a folder that belongs to another")
    main = real.root / "code" / build_archive().name / "remote" / "agent" / "__main__.py"
    main.parent.mkdir(parents=True)
    main.write_text("raise SystemExit('run as someone who did not ask for it')\n")
    os.chown(main.parents[2], 12345, 12345)
    agent = await start(real)
    assert agent.uploaded > 0 and agent.code.startswith(str(sshd.home))


async def test_damaged_code_is_replaced(embedded: Any) -> None:
    main = embedded.root / "code" / build_archive().name / "remote" / "agent" / "__main__.py"
    main.parent.mkdir(parents=True)
    main.write_text("")  # as a crash before the flush leaves it
    agent = await start(embedded)
    assert agent.uploaded > 0 and agent.hello.agent == build_archive().name
    assert main.read_text() != ""


async def test_an_agent_that_does_not_start_shows_its_last_words(
    embedded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (embedded.root.parent / "file").write_text("")
    error = await refusal(embedded, root=str(embedded.root.parent / "file" / "below"))
    assert error.code == "root" and "Not a directory" in error.message


@pytest.mark.parametrize("host", ["real"], indirect=True)
async def test_an_upload_that_was_cut_leaves_nothing_and_is_repeated(host: Any, proxy: Any) -> None:
    spec = host.through(proxy.port)
    connection = await open_connection(await resolve(spec), host.hostkeys)
    proxy.limit = len(build_archive().data) // 2
    with pytest.raises((ConnectionLost, BootstrapError)):
        await start_agent(connection, spec, build_archive())
    await connection.close()
    assert not (host.root / "code").exists()
    assert (await start(host)).uploaded > 0
    assert leftovers(host.root) == [build_archive().name]


async def test_an_archive_that_is_not_what_its_hash_says_is_not_run(embedded: Any) -> None:
    forged = Archive(build_archive().data, "0" * 64)
    async with connected(embedded) as connection:
        with pytest.raises(BootstrapError, match="not what was sent") as caught:
            await start_agent(connection, embedded.spec, forged)
    assert caught.value.code == "install"
    assert not (embedded.root / "code").exists()


async def test_losing_the_server_during_the_start_is_a_loss(loopback: Any, embedded: Any) -> None:
    async with connected(embedded) as connection:
        starting = asyncio.create_task(start_agent(connection, embedded.spec, build_archive()))
        await asyncio.sleep(0.05)
        loopback.hang_up()
        with pytest.raises((ConnectionLost, BootstrapError)):
            await starting


@pytest.mark.parametrize("member", ["../out", "/etc/out", "a//b", "a/../../b"])
def test_the_host_unpacks_nothing_outside_its_folder(tmp_path: Path, member: str) -> None:
    from remote.archive import pack

    archive = pack({"ok.py": b"", member: b"x"})
    program = (Path(bootstrap.__file__).parent / "unpack.py").read_bytes()
    feed = b"%d\n%s" % (len(archive.data), archive.data)
    done = subprocess.run(
        [sys.executable, "-I", "-c", program.decode(), str(tmp_path / "root"), archive.sha256, "N"],
        input=feed, capture_output=True, env={"HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 1
    message = json.loads(done.stdout.split(b" fail ", 1)[1])["message"]
    assert "the archive holds" in message
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["code", "root"]
