"""What the tests of the wire stand on: the embedded server, a real sshd of its own, and a TCP proxy that misbehaves."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import asyncssh
import pytest

from remote.hostkeys import HostKey, HostKeyStore
from remote.loopback import Loopback, serve
from remote.resolve import HostSpec


@dataclass
class Target:
    """A server to connect to: a host's description, a store that trusts it, and where its root is."""

    spec: HostSpec
    hostkeys: HostKeyStore
    root: Path

    def through(self, port: int) -> HostSpec:
        """The same host, by way of another port."""
        return replace(self.spec, ssh=f"127.0.0.1:{port}")


@pytest.hookimpl(tryfirst=True)  # before the markers are asked for
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What stands on a real sshd is marked: `make test-real` installs one and runs these again."""
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        if "sshd" in getattr(item, "fixturenames", ()) or params.get("host") in ("real", "openssh"):
            item.add_marker("sshd")


def target(tmp_path: Path, port: int, user: str, identity: str, pin: str) -> Target:
    store = HostKeyStore(tmp_path / "state")
    store.pin("box", HostKey.parse(pin))
    root = tmp_path / "root"
    root.mkdir(exist_ok=True)
    spec = HostSpec(
        "box",
        f"127.0.0.1:{port}",
        str(root),
        python=sys.executable,
        user=user,
        identity_files=(identity,),
        ssh_config=False,
    )
    return Target(spec, store, root)


@pytest.fixture
async def loopback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Loopback]:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    server = await serve(tmp_path / "server")
    yield server
    await server.close()


@pytest.fixture
def embedded(loopback: Loopback, tmp_path: Path) -> Target:
    address = loopback.address
    return target(tmp_path, address.port, address.user, address.identity, address.pin)


class Sshd:
    """Debian's sshd with a configuration, a port and keys of its own, for the account that runs the tests."""

    def __init__(self, folder: Path, settings: str = "") -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        for name in ("host_key", "id"):
            key = asyncssh.generate_private_key("ssh-ed25519")
            (folder / name).touch(mode=0o600)
            key.write_private_key(folder / name)
            key.write_public_key(folder / f"{name}.pub")
        shutil.copy(folder / "id.pub", folder / "authorized")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.config = folder / "sshd_config"
        self.config.write_text(
            f"{settings}\nPort {self.port}\nListenAddress 127.0.0.1\nHostKey {folder}/host_key\n"
            f"AuthorizedKeysFile {folder}/authorized\nStrictModes no\nUsePAM no\nPidFile none\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n"
            f"SetEnv HOME={self.home}\n"
        )
        self.start()

    def start(self) -> None:
        log = (self.folder / "sshd.log").open("ab")
        self.process = subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", self.config], stderr=log)
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            if self.process.poll() is not None:
                pytest.skip("sshd does not start here: " + (self.folder / "sshd.log").read_text()[-300:])
            time.sleep(0.02)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def pin(self) -> str:
        return (self.folder / "host_key.pub").read_text().strip()


@pytest.fixture
def sshd(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Sshd]:
    """A real sshd; further settings come by indirect parametrisation."""
    if not os.path.exists("/usr/sbin/sshd") or shutil.which("ssh-keygen") is None:
        pytest.skip("OpenSSH's server is not installed here")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # its init script would; sshd started by root insists
    server = Sshd(tmp_path / "sshd", getattr(request, "param", ""))
    yield server
    server.stop()


@pytest.fixture
def real(sshd: Sshd, tmp_path: Path) -> Target:
    user = pwd.getpwuid(os.getuid()).pw_name
    return target(tmp_path, sshd.port, user, str(sshd.folder / "id"), sshd.pin)


@pytest.fixture
def openssh(real: Target) -> Target:
    """The real sshd, reached by the system's ssh."""
    return replace(real, spec=replace(real.spec, backend="openssh"))


@pytest.fixture(params=["embedded", "real", "openssh"])
def host(request: pytest.FixtureRequest) -> Target:
    """Each of the two servers in turn, and the real one by way of the system's ssh."""
    found: Target = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def shared_code(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """For tests that are not about the upload: whatever root they use, the code is there after the first of them."""
    shared = tmp_path_factory.getbasetemp() / "shared-code"
    shared.mkdir(exist_ok=True)
    (tmp_path / "root").mkdir(exist_ok=True)
    (tmp_path / "root" / "code").symlink_to(shared)


class Proxy:
    """A TCP proxy between the link and its server. ``mode`` may be changed at any moment:

    pass, swallow (nothing gets through, nobody is told), slice (a byte at a time), reset (hang up with RST at once).
    ``limit``: bytes towards the server after which it resets, once.
    """

    def __init__(self, port: int) -> None:
        self.to = port
        self.mode = "pass"
        self.limit: int | None = None
        self.accepted = 0
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self.mode == "reset":
            self._reset(writer)
            return
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.to)
        self._writers += [writer, far_writer]
        for source, sink, up in ((reader, far_writer, True), (far_reader, writer, False)):
            task = asyncio.create_task(self._pump(source, sink, up))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, up: bool) -> None:
        dead = False
        try:
            while data := await source.read(65536):
                if up and self.limit is not None:
                    self.limit -= len(data)
                    if self.limit <= 0:
                        self.limit = None
                        self.reset_all()
                        return
                dead |= self.mode == "swallow"  # a connection that lost a byte is of no use any more
                if dead:
                    continue
                step = 1 if self.mode == "slice" else len(data)
                for at in range(0, len(data), step):
                    sink.write(data[at : at + step])
                    await sink.drain()
            if not dead:
                sink.close()
        except OSError:
            pass

    def _reset(self, writer: asyncio.StreamWriter) -> None:
        if not writer.transport.is_closing():
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    def reset_all(self) -> None:
        for writer in self._writers:
            self._reset(writer)
        self._writers.clear()

    def end_old(self) -> None:
        """Tells the server at last that the connections before the latest are gone."""
        for writer in self._writers[:-2]:
            self._reset(writer)

    async def close(self) -> None:
        self._server.close()
        self.reset_all()
        for task in list(self._tasks):
            task.cancel()


@pytest.fixture
async def proxies() -> AsyncIterator[list[Proxy]]:
    made: list[Proxy] = []
    yield made
    for proxy in made:
        await proxy.close()


@pytest.fixture
async def proxy(host: Target, proxies: list[Proxy]) -> Proxy:
    """A proxy in front of ``host``."""
    made = Proxy(int(host.spec.ssh.rpartition(":")[2]))
    await made.start()
    proxies.append(made)
    return made
