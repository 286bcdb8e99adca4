"""A service's port on the loopback: whether it answers, and which one is free. Standard library only."""

from __future__ import annotations

import socket

HOST = "127.0.0.1"


def healthy(port: int, path: str, timeout: float = 2.0) -> bool:
    """Whether GET ``path`` answers 200 (``timeout`` in seconds). Raw: http.client costs a process two megabytes."""
    try:
        with socket.create_connection((HOST, port), timeout) as link:
            link.settimeout(timeout)
            link.sendall(f"GET {path} HTTP/1.1\r\nHost: {HOST}:{port}\r\nConnection: close\r\n\r\n".encode())
            head = link.recv(64)
            while head and b"\r\n" not in head and len(head) < 64:
                piece = link.recv(64)
                if not piece:
                    break
                head += piece
    except OSError:
        return False
    words = head.split(b"\r\n", 1)[0].split()
    return len(words) >= 2 and words[0].startswith(b"HTTP/") and words[1] == b"200"


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
