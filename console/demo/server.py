"""The demo's SSH server as a child process, and its host key pinned from what it wrote: a channel beside the wire."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from console.command.refusal import Refusal
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


@asynccontextmanager
async def ssh_server(place: Place, port: int) -> AsyncIterator[None]:
    """Serves on 127.0.0.1:port until the end; what was started through it goes on. Raises Refusal."""
    place.server.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = place.folder / LOG
    # -P: a `remote.py` of the current folder must not stand in for ours.
    command = [sys.executable, "-P", "-m", "remote.loopback", "--state", str(place.server), "--port", str(port)]
    with log.open("wb") as errors:
        child = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    try:
        _pin(place, await _address(child, log))
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


async def _address(child: asyncio.subprocess.Process, log: Path) -> dict[str, str]:
    assert child.stdout is not None
    try:
        async with asyncio.timeout(START_S):
            line = await child.stdout.readline()
        address = json.loads(line)
    except (TimeoutError, ValueError):
        said = log.read_text("utf-8", "replace").strip().splitlines()
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
