"""The last lines of a log that is read in pieces over the wire: complete lines only, safe to show, bounded.

Takes replies of the `tail` operation (remote/protocol.py). No I/O, no Textual.
"""

from __future__ import annotations

import base64
import binascii
from collections import deque
from collections.abc import Mapping
from typing import Any

from remote.sanitize import clean

FIRST_BYTES = 16_384
"""How much of the end of a log is read to begin with."""

REST_BYTES = 65_536
"""What is kept of a line that does not end."""


class LogTail:
    """One log: where to read on (`offset`, `generation`) and the last `limit` lines, oldest first."""

    def __init__(self, limit: int = 500, first_bytes: int = FIRST_BYTES) -> None:
        self.lines: deque[str] = deque(maxlen=limit)
        self.attempt: int | None = None
        self.generation: str | None = None
        self.offset = -first_bytes
        self.behind = 0
        """Bytes of the log that are still to be read, as of the last reply."""
        self._first = True
        self._rest = b""
        self._starts_inside = False

    def request(self) -> dict[str, Any]:
        """Arguments of the next `tail`, beside run, stage or service, and attempt (the newest one without it)."""
        if self._first:
            return {"offset": self.offset}
        return {"offset": self.offset, "generation": self.generation}

    def add(self, reply: Mapping[str, Any]) -> list[str]:
        """Take a reply; the new complete lines. A reply of another attempt or generation starts the log afresh."""
        generation, attempt = reply.get("generation"), reply.get("attempt")
        start = reply.get("offset")
        try:
            data = base64.b64decode(reply.get("data") or "", validate=True)
        except (binascii.Error, TypeError, ValueError):
            data = b""
        start = start if isinstance(start, int) else max(0, self.offset)
        fresh = self._first or generation != self.generation or attempt != self.attempt
        if fresh:
            self.lines.clear()
            self._starts_inside = start > 0
        if fresh or start != self.offset:  # a gap: the oldest ranges of a log may have been given up for space
            self._rest = b""
            self._starts_inside = start > 0
        self._first = False
        self.generation = generation if isinstance(generation, str) else None
        self.attempt = attempt if isinstance(attempt, int) else None
        self.offset = start + len(data)
        size = reply.get("size")
        self.behind = max(0, size - self.offset) if isinstance(size, int) and data else 0
        *complete, self._rest = (self._rest + data).split(b"\n")
        if complete and self._starts_inside:
            del complete[0]
            self._starts_inside = False
        self._rest = self._rest[-REST_BYTES:]
        new = [clean(line) for line in complete]
        self.lines.extend(new)
        return new

    def rest(self) -> str:
        """The unfinished last line: a progress bar at work, or the end of a log that a killed process left."""
        return clean(self._rest)

    def shown(self) -> tuple[str, ...]:
        """The lines, and the unfinished one if it shows anything."""
        rest = self.rest()
        return (*self.lines, rest) if rest else tuple(self.lines)
