"""A service's port on the loopback: whether it answers, and which one is free. Standard library only."""

from __future__ import annotations

import errno
import select
import socket
import time

HOST = "127.0.0.1"


class Probe:
    """One GET of a health path that is looked after from time to time, since a keeper has more to do than to wait.

    ``timeout`` in seconds. Raw: http.client costs a process two megabytes.
    """

    def __init__(self, port: int, path: str, timeout: float) -> None:
        self._timeout, self._end = timeout, time.monotonic() + timeout
        self._unsent = f"GET {path} HTTP/1.1\r\nHost: {HOST}:{port}\r\nConnection: close\r\n\r\n".encode()
        self._head = b""
        self._link = socket.socket()
        self._link.setblocking(False)
        self._refused = self._link.connect_ex((HOST, port)) not in (0, errno.EINPROGRESS)

    def look(self, wait: float = 0.0) -> str | None:
        """What is wrong, "" when it answered 200; None while it may still answer. Waits for ``wait`` s at most."""
        said = self._look(wait)
        if said is not None:
            self.close()
        return said

    def close(self) -> None:
        self._link.close()

    def _look(self, wait: float) -> str | None:
        if self._refused:
            return "it takes no connection"
        try:
            # All that can be done now is done before the clock is looked at: the looks may be further apart than that.
            while not self._whole() and self._ready(wait):
                if self._unsent:
                    self._unsent = self._unsent[self._link.send(self._unsent) :]
                elif not self._read():
                    return "it ends the connection without an answer"
                wait = 0.0
        except BlockingIOError:
            pass
        except OSError as error:
            said = "it takes no connection" if self._unsent else "it breaks the connection off"
            return f"{said} ({error.strerror})"
        if self._whole():
            words = self._head.split(b"\r\n", 1)[0].split()
            if len(words) < 2 or not words[0].startswith(b"HTTP/"):
                return "it doesn't answer in HTTP"
            return "" if words[1] == b"200" else f"it answers {words[1][:3].decode('ascii', 'replace')}"
        return f"no answer within {self._timeout:g} s" if time.monotonic() >= self._end else None

    def _whole(self) -> bool:
        return b"\r\n" in self._head or len(self._head) >= 64

    def _ready(self, wait: float) -> bool:
        links = [self._link]
        return any(select.select([], links, [], wait) if self._unsent else select.select(links, [], [], wait))

    def _read(self) -> bytes:
        piece = self._link.recv(64)
        self._head += piece
        return piece


def healthy(port: int, path: str, timeout: float = 2.0) -> bool:
    """Whether GET ``path`` answers 200 (``timeout`` in seconds)."""
    probe = Probe(port, path, timeout)
    while (said := probe.look(min(0.1, timeout))) is None:
        pass
    return not said


def answers(port: int) -> bool:
    """Whether anything listens there."""
    try:
        with socket.create_connection((HOST, port), 1.0):
            return True
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
