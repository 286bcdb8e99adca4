"""The demo's SSH server as a child process, and its host key pinned from what it wrote: a channel beside the wire."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from console.command.refusal import Refusal
from console.config import Config, HostConfig
from console.demo.settings import HOST, Place
from remote.hostkeys import HostKey, HostKeyStore

START_S = 30.0
END_S = 5.0
LOG = "server.log"


def free_port(preferred: int = 0) -> int:
    """`preferred` if nothing listens there, otherwise any free port of the loopback."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return int(probe.getsockname()[1])
    raise Refusal("No port of the loopback is free.", "Close what listens there.")


def at_hand(config: Config, host: HostConfig) -> tuple[HostConfig, AbstractAsyncContextManager[None]]:
    """The host as one command reaches it, and what has to be open meanwhile: for any host but the demo's, nothing.

    The demo's host is up only while it is served, and a server that another command has opened goes with that one. So
    each command brings its own, on a port that nobody else knows.
    """
    folder = config.path.resolve().parent if config.path is not None else None
    if folder is None or host.name != HOST or not Place(folder).memory.is_file():
        return host, nullcontext()
    port = free_port()
    return replace(host, port=port), ssh_server(Place(folder), port)


@asynccontextmanager
async def ssh_server(place: Place, port: int) -> AsyncIterator[None]:
    """Serves on 127.0.0.1:port until the end; what was started through it goes on. Raises Refusal."""
    place.server.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = place.folder / LOG
    # -P: a `remote.py` of the current folder must not stand in for ours.
    command = [sys.executable, "-P", "-m", "remote.loopback", "--state", str(place.server), "--port", str(port)]
    with log.open("ab") as errors:  # a command's server writes beside the console's
        before = errors.tell()
        child = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    try:
        _pin(place, await _address(child, log, before))
        yield
    finally:
        assert child.stdin is not None
        child.stdin.close()
        try:
            async with asyncio.timeout(END_S):
                await child.wait()
        except TimeoutError:
            child.kill()
            await child.wait()


async def _address(child: asyncio.subprocess.Process, log: Path, before: int) -> dict[str, str]:
    assert child.stdout is not None
    try:
        async with asyncio.timeout(START_S):
            line = await child.stdout.readline()
        address = json.loads(line)
    except (TimeoutError, ValueError):
        said = log.read_bytes()[before:].decode("utf-8", "replace").strip().splitlines()
        raise Refusal(
            f"The demo's SSH server did not start: {said[-1] if said else 'it said nothing'}", f"Its log is {log}."
        ) from None
    return dict(address)


def _pin(place: Place, address: dict[str, str]) -> None:
    """The server's folder is ours, so its key is known without asking it."""
    store, key = HostKeyStore(place.folder), HostKey.parse(address["pin"])
    if store.get(HOST) not in (None, key):
        store.replace(HOST, key, HOST)
    else:
        store.pin(HOST, key)
