"""Sessions on a connection that an `ssh` holds, over its control socket (OpenSSH's PROTOCOL.mux, version 4).

Spoken directly rather than through one more `ssh` a channel: that one would make a login of its own when the socket is
gone, mix its words with the command's stderr, and has one exit status, 255, for everything that goes wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import struct
from pathlib import Path

from remote.connection import SessionRefused

HELLO, VERSION = 0x00000001, 4
NEW_SESSION, ALIVE_CHECK = 0x10000002, 0x10000004
PERMISSION_DENIED, FAILURE, EXIT_MESSAGE, ALIVE, SESSION_OPENED = (
    0x80000002, 0x80000003, 0x80000004, 0x80000005, 0x80000006,
)  # fmt: skip
NO_ESCAPE = 0xFFFFFFFF
MAX_PACKET = 1 << 18
LIMIT = 1 << 18
SOME_SIGNAL = -255
"""A command that ended without a status while the connection lives: the ssh client drops the signal's name."""
ANSWER_S = 2.0
SETTLE_S = 0.2
"""Output that ends because ssh died, and the control socket that ends with it, may be seen in either order."""


async def answers(path: Path) -> bool:
    """Whether the ssh that listens on ``path`` takes sessions."""
    try:
        async with asyncio.timeout(ANSWER_S):
            _, reader, writer = await _greet(path)
            try:
                writer.write(_packet(ALIVE_CHECK, struct.pack(">I", 0)))
                kind, _ = await _receive(reader)
                return kind == ALIVE
            finally:
                writer.close()
    except (OSError, EOFError, TimeoutError):
        return False


async def open_session(path: Path, command: str) -> Session:
    """Runs ``command`` in the login shell. SessionRefused; OSError when the connection is gone."""
    async with contextlib.AsyncExitStack() as undo:
        try:
            plain, reader, writer = await _greet(path)
            undo.callback(writer.close)
            ours, theirs = [], []
            for to_command in (True, False, False):
                ends = os.pipe()
                theirs.append(ends[0] if to_command else ends[1])
                ours.append(ends[1] if to_command else ends[0])
                undo.callback(os.close, ours[-1])
            try:
                # ssh stops everything else until it has the descriptors, so nothing is waited for in between
                writer.write(_packet(NEW_SESSION, _session_request(command)))
                for end in theirs:
                    socket.send_fds(plain, [b"\0"], [end])
            finally:
                for end in theirs:
                    os.close(end)
            kind, body = await _receive(reader)
        except EOFError:
            raise ConnectionResetError("Connection lost") from None
        if kind in (FAILURE, PERMISSION_DENIED):
            raise SessionRefused(_string(body, 4).decode("utf-8", "replace"))
        if kind != SESSION_OPENED:
            raise ConnectionResetError(f"ssh answers with {kind:#x}")
        undo.pop_all()
    session = Session(path, reader, writer)
    await session.connect_pipes(*ours)
    return session


class Session:
    """What Channel takes for a process."""

    def __init__(self, path: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.returncode: int | None = None
        self.lost = False
        self._path = path
        self._control = writer
        self._pipes: list[asyncio.BaseTransport] = []
        self._following = asyncio.create_task(self._follow(reader), name="ssh session")

    async def connect_pipes(self, stdin: int, stdout: int, stderr: int) -> None:
        """Takes over the descriptors."""
        loop = asyncio.get_running_loop()
        flow, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(stdin, "wb", 0))
        self.stdin = asyncio.StreamWriter(flow, protocol, None, loop)
        self._pipes.append(flow)
        outputs = []
        for end in (stdout, stderr):
            stream = asyncio.StreamReader(LIMIT)
            protocol_of = functools.partial(asyncio.StreamReaderProtocol, stream)
            transport, _ = await loop.connect_read_pipe(protocol_of, os.fdopen(end, "rb", 0))
            self._pipes.append(transport)
            outputs.append(_Output(stream, self))
        self.stdout, self.stderr = outputs

    async def _follow(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                kind, body = await _receive(reader)
                if kind == EXIT_MESSAGE:
                    self.returncode = int(struct.unpack_from(">I", body, 4)[0])
        if self.returncode is None:
            if await answers(self._path):
                self.returncode = SOME_SIGNAL
            else:
                self.lost = True

    async def settled(self) -> bool:
        """Whether the connection is gone, as far as can be told a moment after an output has ended."""
        await asyncio.wait({self._following}, timeout=SETTLE_S)
        return self.lost

    async def wait_closed(self) -> None:
        await asyncio.wait({self._following})

    def close(self) -> None:
        """The command sees the end of its input, and its output goes nowhere."""
        for pipe in self._pipes:
            if isinstance(pipe, asyncio.WriteTransport) and not pipe.is_closing():
                pipe.abort()  # close would wait for a command that does not read
            else:
                pipe.close()
        self._control.close()
        self._following.cancel()


class _Output:
    def __init__(self, stream: asyncio.StreamReader, session: Session) -> None:
        self._stream = stream
        self._session = session

    async def read(self, size: int) -> bytes:
        data = await self._stream.read(size)
        if not data and await self._session.settled():
            raise ConnectionResetError("Connection lost")
        return data


async def _greet(path: Path) -> tuple[socket.socket, asyncio.StreamReader, asyncio.StreamWriter]:
    """The socket itself as well: asyncio hands none out that can send descriptors."""
    plain = socket.socket(socket.AF_UNIX)
    try:
        plain.setblocking(False)
        await asyncio.get_running_loop().sock_connect(plain, str(path))
    except BaseException:
        plain.close()
        raise
    reader, writer = await asyncio.open_unix_connection(sock=plain)
    try:
        writer.write(_packet(HELLO, struct.pack(">I", VERSION)))
        kind, body = await _receive(reader)
        if kind != HELLO or struct.unpack_from(">I", body)[0] != VERSION:
            raise ConnectionResetError("this ssh speaks another version of its control protocol")
    except BaseException:
        writer.close()
        raise
    return plain, reader, writer


def _session_request(command: str) -> bytes:
    request_id, reserved, terminal = struct.pack(">I", 0), _text(b""), _text(b"")
    no_tty_x11_agent_subsystem = struct.pack(">IIII", 0, 0, 0, 0)
    head = request_id + reserved + no_tty_x11_agent_subsystem + struct.pack(">I", NO_ESCAPE) + terminal
    return head + _text(command.encode("utf-8", "surrogateescape"))


def _text(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


def _string(body: bytes, at: int) -> bytes:
    size = struct.unpack_from(">I", body, at)[0]
    return body[at + 4 : at + 4 + size]


def _packet(kind: int, body: bytes) -> bytes:
    return struct.pack(">II", len(body) + 4, kind) + body


async def _receive(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    size = struct.unpack(">I", await reader.readexactly(4))[0]
    if not 4 <= size <= MAX_PACKET:
        raise ConnectionResetError("ssh breaks its control protocol")
    packet = await reader.readexactly(size)
    return struct.unpack_from(">I", packet)[0], packet[4:]
