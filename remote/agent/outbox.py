"""What waits to be written to the console: answers in order, pings first, and of each push only the newest.

One thread writes, so a slow link blocks nobody else; what it can't take in time is never queued up. Imports
remote.protocol.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Any

from remote.protocol import Failure, ProtocolError, Push, Reply, Streamer, encode


class Outbox:
    """Lines for descriptor ``sink``. ``broken`` is set when nobody reads it any longer."""

    def __init__(self, sink: int) -> None:
        self._sink = sink
        self._urgent: deque[bytes] = deque()
        self._lines: deque[bytes] = deque()
        self._pushes: dict[str, dict[str, Any]] = {}
        self._seq = 0
        self._change = threading.Condition()
        self._closing = False
        self.broken = threading.Event()
        self._thread = threading.Thread(target=self._write, name="outbox", daemon=True)
        self._thread.start()

    def answer(self, message: Reply | Failure, urgent: bool = False) -> None:
        """Queues an answer; an urgent one goes out before the rest of a long one."""
        try:
            lines = encode(message)
        except ProtocolError as error:
            lines = encode(Failure(message.id, error.code, error.message, "ask for less"))
        with self._change:
            (self._urgent if urgent else self._lines).extend(lines)
            self._change.notify()

    def push(self, name: str, data: dict[str, Any]) -> None:
        """Replaces a push of that name which is still waiting."""
        with self._change:
            self._pushes.pop(name, None)
            self._pushes[name] = data
            self._change.notify()

    def close(self, timeout: float) -> None:
        """Gives what is queued a moment to go out."""
        with self._change:
            self._closing = True
            self._change.notify()
        self._thread.join(timeout)

    def _next(self) -> list[bytes] | None:
        with self._change:
            while True:
                if self._urgent:
                    return [self._urgent.popleft()]
                if self._lines:
                    return [self._lines.popleft()]
                if self._pushes:
                    name = next(iter(self._pushes))
                    data = self._pushes.pop(name)
                    self._seq += 1
                    seq = self._seq
                    break
                if self._closing:
                    return None
                self._change.wait()
        try:
            return encode(Push(name, seq, data))
        except ProtocolError:
            return []

    def _write(self) -> None:
        streamer = Streamer()
        while True:
            lines = self._next()
            if lines is None:
                return
            for line in lines:
                view = memoryview(streamer.pack(line))
                try:
                    while view:
                        view = view[os.write(self._sink, view) :]
                except OSError:
                    self.broken.set()
                    return
