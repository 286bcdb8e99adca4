"""A TCP proxy in front of a host's sshd that breaks connections after so many bytes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator


class Cutter:
    """Resets a connection once ``limit`` bytes have gone to the host; None lets everything through."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.limit: int | None = None
        self.port = 0

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(self.host, 22)
        left = self.limit

        async def up() -> None:
            nonlocal left
            while data := await reader.read(4096):
                if left is not None and (left := left - len(data)) <= 0:
                    for end in (writer, far_writer):
                        raw = end.get_extra_info("socket")
                        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        end.transport.abort()
                    return
                far_writer.write(data)
                await far_writer.drain()
            far_writer.close()

        async def down() -> None:
            while data := await far_reader.read(65536):
                writer.write(data)
                await writer.drain()
            writer.close()

        with contextlib.suppress(OSError):
            await asyncio.gather(up(), down())


@contextlib.asynccontextmanager
async def cutter(host: str) -> AsyncIterator[Cutter]:
    made = Cutter(host)
    server = await asyncio.start_server(made.accept, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
