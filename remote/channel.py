"""One SSH channel that runs one command: bytes in, bytes out, stderr always drained, an end that tells loss from exit.

Wraps what a backend started: an asyncssh client process opened with ``encoding=None``, or a session of the system's
ssh. Made by remote.connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from remote.errors import ConnectionLost
from remote.sanitize import clean_text

PIECE = 65536
STDERR_KEPT = 2048
CLOSE_S = 1.0


class ChannelEnded(Exception):
    """The command ended, or closed its output, before what was waited for. ``data``: what came instead."""

    def __init__(self, data: bytes) -> None:
        super().__init__("the channel ended")
        self.data = data


class Channel:
    """``read`` and ``read_until`` share one buffer; only one task may read, and one write, at a time.

    ``errors`` are what the process raises when the connection is lost; ``release`` is called once, at the end.
    """

    def __init__(
        self, process: Any, host: str, release: Callable[[], None], errors: tuple[type[Exception], ...] = (OSError,)
    ) -> None:
        self._process = process
        self._host = host
        self._errors = errors
        self._release: Callable[[], None] | None = release
        self._buffer = bytearray()
        self._stderr = bytearray()
        self._drain = asyncio.create_task(self._drain_stderr(), name="drain stderr")

    @property
    def stderr_tail(self) -> bytes:
        """The last STDERR_KEPT bytes of the command's stderr."""
        return bytes(self._stderr)

    @property
    def exit_status(self) -> int | None:
        """The command's exit status; negative for a signal (-255 where ssh does not say which); None while it runs or
        when the connection died."""
        status: int | None = self._process.returncode
        return status

    async def read(self, size: int = PIECE) -> bytes:
        """At least one byte; ``b""`` at the end of output. ConnectionLost when the connection died.

        A server that hangs up politely ends the output as a command does; ``wait`` tells the two apart.
        """
        if self._buffer:
            data = bytes(self._buffer[:size])
            del self._buffer[:size]
            return data
        return await self._receive(size)

    async def read_until(self, mark: bytes, limit: int = 1 << 20) -> bytes:
        """What comes before ``mark``, which is consumed; what follows it stays to be read.

        ChannelEnded at the end of output or after ``limit`` bytes; ConnectionLost as ``read``.
        """
        start = 0
        while True:
            at = self._buffer.find(mark, start)
            if at >= 0:
                data = bytes(self._buffer[:at])
                del self._buffer[: at + len(mark)]
                return data
            start = max(0, len(self._buffer) - len(mark) + 1)
            piece = await self._receive(PIECE) if len(self._buffer) <= limit else b""
            if not piece:
                raise ChannelEnded(bytes(self._buffer))
            self._buffer += piece

    @property
    def unread(self) -> bytes:
        """What has arrived and was not read yet, for a message about a wait that failed."""
        return bytes(self._buffer)

    async def write(self, data: bytes) -> None:
        """Returns when the peer takes more; ConnectionLost when nothing can be written any more."""
        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        except self._errors as error:
            raise self._lost(error) from None
        if self._process.stdin.is_closing():
            raise self._lost(None)

    def write_eof(self) -> None:
        """Ends the command's input; its output may go on."""
        if not self._process.stdin.is_closing():
            self._process.stdin.write_eof()

    async def wait(self, timeout_s: float) -> int:
        """The exit status. TimeoutError; ConnectionLost when the connection died before there was one."""
        async with asyncio.timeout(timeout_s):
            await self._process.wait_closed()
        status = self.exit_status
        if status is None:
            raise self._lost(None)
        return status

    async def close(self) -> None:
        """Gives the channel up, whatever state it is in, within CLOSE_S. The command sees the end of its input."""
        self._process.close()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._process.wait_closed()
        except (TimeoutError, *self._errors):  # type: ignore[misc]
            pass  # a dead peer never confirms; the connection will be aborted
        finally:
            self._drain.cancel()
            if self._release is not None:
                self._release()
                self._release = None

    async def _receive(self, size: int) -> bytes:
        try:
            data: bytes = await self._process.stdout.read(size)
        except self._errors as error:
            raise self._lost(error) from None
        return data

    async def _drain_stderr(self) -> None:
        # stdout and stderr share one window: stderr left unread stalls stdout after 2 MiB
        try:
            while piece := await self._process.stderr.read(PIECE):
                self._stderr += piece
                del self._stderr[:-STDERR_KEPT]
        except self._errors:
            pass

    def _lost(self, error: BaseException | None) -> ConnectionLost:
        why = clean_text(str(error)) if error is not None and str(error) != "Connection lost" else ""
        return ConnectionLost(f"The connection to {self._host} was lost" + (f" ({why})." if why else "."))
