"""The embedded SSH server: this machine as a host, for the demo and for tests. Loopback only, one key, no account.

``python -m remote.loopback --state DIR`` makes a host key and a user key in DIR on its first start, prints one JSON
line {"host", "port", "user", "identity", "host_key_fingerprint", "pin"} and serves until its standard input ends or
its parent is gone. Commands run as by sshd without a terminal: ``/bin/sh -c``, a session of their own, pipes, and
nothing is killed when the channel goes: it sees the end of its input and a broken pipe.
Needs asyncssh.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import functools
import getpass
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import asyncssh

HOST = "127.0.0.1"
PIECE = 65536
PARENT_POLL_S = 2.0
KEPT_ENVIRONMENT = (
    "HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER",
    "CUDA_VISIBLE_DEVICES", "HF_HOME", "OMP_NUM_THREADS",
)  # fmt: skip
"""A login sees this much of the server's environment; a container's sshd passes no more."""


@dataclass(frozen=True)
class Address:
    """What a client needs to know. ``pin``: the host key as ``KIND BASE64``; ``identity``: a private key file."""

    host: str
    port: int
    user: str
    identity: str
    host_key_fingerprint: str
    pin: str


Reaper = asyncio.Task[int]
"""Waits for a child whose channel has gone; belongs to the server, and so to one event loop."""


class Loopback:
    """A running server. ``hang_up`` drops its connections as a crashed sshd would; commands go on."""

    def __init__(self, listener: Any, address: Address, connections: set[Any], reaping: set[Reaper]) -> None:
        self._listener = listener
        self._connections = connections
        self._reaping = reaping
        self.address = address

    def hang_up(self) -> None:
        for connection in list(self._connections):
            connection.abort()

    async def close(self) -> None:
        self._listener.close()
        self.hang_up()
        for task in list(self._reaping):
            task.cancel()
        await self._listener.wait_closed()


async def serve(state: Path, port: int = 0) -> Loopback:
    """Starts serving on the loopback; ``port`` 0 takes a free one. OSError when the folder or the port is refused."""
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    host_key, user_key = _key(state / "host_key"), _key(state / "id_ed25519")
    user = getpass.getuser()
    connections: set[Any] = set()
    reaping: set[Reaper] = set()

    async def run(process: Any) -> None:
        await _run(process, reaping)

    class Server(asyncssh.SSHServer):  # type: ignore[misc]
        def connection_made(self, conn: Any) -> None:
            self.conn = conn
            connections.add(conn)

        def connection_lost(self, exc: Exception | None) -> None:
            connections.discard(self.conn)

        def begin_auth(self, username: str) -> bool:
            return True

        def public_key_auth_supported(self) -> bool:
            return True

        def validate_public_key(self, username: str, key: Any) -> bool:
            return username == user and key.public_data == user_key.public_data

    listener = await asyncssh.listen(
        HOST,
        port,
        server_factory=Server,
        server_host_keys=[host_key],
        process_factory=run,
        encoding=None,
        config=None,
        allow_scp=False,
        allow_pty=False,
        agent_forwarding=False,
        x11_forwarding=False,
        gss_host=None,
        login_timeout=30,
        keepalive_interval=15,
    )
    address = Address(
        HOST,
        listener.get_port(),
        user,
        str(state / "id_ed25519"),
        host_key.get_fingerprint(),
        host_key.export_public_key("openssh").decode().strip(),
    )
    return Loopback(listener, address, connections, reaping)


def _key(path: Path) -> Any:
    """The key at ``path``, made if there is none. Of two servers that start at once, one makes it."""
    if not path.exists():
        handle, temporary = tempfile.mkstemp(prefix=".key.", dir=path.parent)  # mode 0600
        with os.fdopen(handle, "wb") as file:
            file.write(asyncssh.generate_private_key("ssh-ed25519", comment="eagledeck").export_private_key())
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass
        finally:
            os.unlink(temporary)
    return asyncssh.read_private_key(path)


async def _run(process: Any, reaping: set[Reaper]) -> None:
    """One command of one channel. Its exit is reported when it has ended and its output was read to the end."""
    if process.command is None:
        process.stderr.write(b"There is no interactive login here; give a command.\n")
        process.exit(1)
        return
    peer = process.get_extra_info("peername") or ("", 0)
    environment = {name: os.environ[name] for name in KEPT_ENVIRONMENT if name in os.environ}
    environment["SSH_CONNECTION"] = f"{peer[0]} {peer[1]} {HOST} 22"
    # not asyncio's subprocess: its transport kills the command when it is closed or collected
    try:
        child = subprocess.Popen(  # noqa: ASYNC220
            ["/bin/sh", "-c", process.command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=environment.get("HOME", "/"),
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        process.stderr.write(f"/bin/sh: {error.strerror}\n".encode())
        process.exit(126)
        return
    assert child.stdin is not None and child.stdout is not None and child.stderr is not None
    loop = asyncio.get_running_loop()
    outputs = [asyncio.StreamReader(limit=PIECE) for _ in range(2)]
    pipes: list[asyncio.BaseTransport] = []
    for reader, pipe in zip(outputs, (child.stdout, child.stderr)):
        pipes.append((await loop.connect_read_pipe(functools.partial(asyncio.StreamReaderProtocol, reader), pipe))[0])
    transport, flow = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, child.stdin)
    pipes.append(transport)
    feeding = asyncio.create_task(_feed(process, child, asyncio.StreamWriter(transport, flow, None, loop)))
    running = asyncio.create_task(_output(process, child, outputs))
    gone = asyncio.create_task(process.channel.wait_closed())
    try:
        await asyncio.wait({gone, running}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (feeding, running, gone):
            task.cancel()
        for end in pipes:
            if isinstance(end, asyncio.WriteTransport) and not end.is_closing():
                end.abort()  # close would wait for a command that does not read
            else:
                end.close()
        if child.poll() is None:
            reaping.add(task := asyncio.create_task(_ended(child)))
            task.add_done_callback(reaping.discard)


async def _output(process: Any, child: subprocess.Popen[bytes], outputs: list[asyncio.StreamReader]) -> None:
    # a grandchild that kept the output open keeps the channel open, as with sshd
    await asyncio.gather(_forward(outputs[0], process.stdout), _forward(outputs[1], process.stderr))
    with contextlib.suppress(OSError):
        process.channel.write_eof()
    status = await _ended(child)
    if status >= 0:
        process.exit(status)
    else:
        process.exit_with_signal(signal.Signals(-status).name.removeprefix("SIG"))


async def _forward(source: asyncio.StreamReader, sink: Any) -> None:
    with contextlib.suppress(OSError):  # the channel is gone; that ends the command's output as well
        while data := await source.read(PIECE):
            sink.write(data)
            await sink.drain()


async def _feed(process: Any, child: subprocess.Popen[bytes], sink: asyncio.StreamWriter) -> None:
    """The client's bytes and signals to the command. A command that closed its input misses the rest."""
    while True:
        try:
            data = await process.stdin.read(PIECE)
        except asyncssh.SignalReceived as received:
            number = getattr(signal, f"SIG{received.signal}", None)
            if number is not None and child.poll() is None:
                os.killpg(child.pid, number)  # the command leads its own session, so this is its group
            continue
        except (asyncssh.BreakReceived, asyncssh.TerminalSizeChanged):
            continue
        if not data:
            sink.close()
            return
        if sink.transport.is_closing():
            continue
        try:
            sink.write(data)
            await sink.drain()
        except (BrokenPipeError, ConnectionResetError):
            continue


async def _ended(child: subprocess.Popen[bytes]) -> int:
    """The exit status, negative for a signal. Asked for, since a child watcher would claim other children too."""
    pause = 0.001
    while (status := child.poll()) is None:
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, 0.1)
    return status


def _die_with_parent(stop: Callable[[], None]) -> None:
    """Linux ends us with the thread that started us; elsewhere, and for a parent already gone, main polls."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    loop = asyncio.get_running_loop()

    def watch_input() -> None:
        while os.read(0, PIECE):
            pass
        with contextlib.suppress(RuntimeError):  # the loop has ended for another reason
            loop.call_soon_threadsafe(stop)

    threading.Thread(target=watch_input, daemon=True).start()


async def _main(state: Path, port: int) -> None:
    parent = os.getppid()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    _die_with_parent(stop.set)
    server = await serve(state, port)
    print(json.dumps(asdict(server.address)), flush=True)
    while not stop.is_set() and os.getppid() == parent:
        try:
            await asyncio.wait_for(stop.wait(), PARENT_POLL_S)
        except TimeoutError:
            continue
    await server.close()


def main(argv: list[str] | None = None) -> int:
    """Serves until its standard input ends. Exit status 1 when it cannot start."""
    parser = argparse.ArgumentParser(prog="python -m remote.loopback", description="An SSH server on the loopback.")
    parser.add_argument("--state", type=Path, required=True, help="folder of its keys")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: a free one)")
    options = parser.parse_args(argv)
    try:
        asyncio.run(_main(options.state, options.port))
    except (OSError, ValueError) as error:
        print(f"The SSH server on the loopback cannot start: {error}.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
