"""An SSH connection made by explicit rules: pinned host keys on every hop, keys only, keepalive, no agent forwarding.

Two backends keep them: asyncssh in this process (remote.asyncssh_backend), which reads no configuration of its own, and
the system's ssh (remote.openssh) for logins that asyncssh cannot do; ``Resolved.backend`` says which. What is above
this module knows only Connection and Channel. Errors are those of remote.errors, each with what to do.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from remote.channel import Channel, ChannelEnded
from remote.errors import (
    AuthenticationError,
    ConnectionLost,
    DeadlineExceeded,
    HostKeyChanged,
    HostKeyUnknown,
    PassphraseNeeded,
    RemoteError,
    UnreachableError,
)
from remote.hostkeys import HostKey, HostKeyStore
from remote.known_hosts import hint
from remote.resolve import Resolved
from remote.sanitize import clean_text

__all__ = [
    "Ask", "AuthenticationError", "Channel", "ChannelEnded", "Completed", "Connection", "ConnectionLost",
    "HostKeyChanged", "HostKeyUnknown", "PassphraseNeeded", "UnreachableError", "open_connection",
]  # fmt: skip

KEEPALIVE_S = 5.0
KEEPALIVE_COUNT = 3
"""A silent peer is given up after KEEPALIVE_S * (KEEPALIVE_COUNT + 1)."""
LOGIN_TIMEOUT_S = 30.0
TOUCH_TIMEOUT_S = 120.0
"""For a login that a person has to do something for: touch a token, sign in to what a ProxyCommand asks."""
CHANNELS = 4
"""Channels open at once, far below sshd's MaxSessions of 10: it counts a channel until its command is gone."""
OPEN_RETRIES_S = (0.2, 0.5, 1.0)
OUTPUT_CAP = 4 << 20

_HOST_KEY_ALGORITHMS = (
    "ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "rsa-sha2-512", "rsa-sha2-256",
)  # fmt: skip

Ask = Callable[[HostKeyUnknown], Awaitable[bool]]
"""Asks a person whether an unknown host key is the right one. A changed key is never asked about."""


class SessionRefused(Exception):
    """The host allows no further session; the connection stands."""


@dataclass(frozen=True)
class Completed:
    """A command that ended by itself. ``status`` is as Channel.exit_status; ``stderr`` is its tail."""

    status: int
    stdout: bytes
    stderr: bytes


class Connection(ABC):
    """A live connection, the hops to it included. Closing it ends no process on the host but those it feeds."""

    errors: tuple[type[Exception], ...] = (OSError,)
    """What a process of this backend raises when the connection is lost."""

    def __init__(self, resolved: Resolved) -> None:
        self.resolved = resolved
        self._budget = asyncio.Semaphore(CHANNELS)

    @property
    @abstractmethod
    def closed(self) -> bool: ...

    @abstractmethod
    async def wait_closed(self) -> None:
        """Returns when the connection has ended, by whichever side."""

    @abstractmethod
    async def close(self, timeout_s: float = 1.0) -> None:
        """Hangs up within ``timeout_s``, also when the network swallows everything."""

    @abstractmethod
    async def _start(self, command: str) -> Any:
        """A process in the login shell, as Channel takes it. SessionRefused; ``errors`` when the connection died."""

    async def open_channel(self, command: str, timeout_s: float = 15.0) -> Channel:
        """Starts ``command`` in the login shell. Waits while CHANNELS are open.

        RemoteError "channels" when the host allows no further session; DeadlineExceeded; ConnectionLost.
        """
        host = self.resolved.name
        try:
            async with asyncio.timeout(timeout_s):
                await self._budget.acquire()
                try:
                    process = await self._start_patiently(command)
                except BaseException:
                    self._budget.release()
                    raise
        except TimeoutError:
            raise DeadlineExceeded(f"{host} opened no channel within {timeout_s:g} s.", "Is it overloaded?") from None
        except SessionRefused as refused:
            if self.closed:
                raise ConnectionLost(f"The connection to {host} was lost.") from None
            raise RemoteError(
                f"{host} allows no further session on this connection ({clean_text(str(refused))}).",
                "Raise MaxSessions in its sshd_config, or end commands that were left running there.",
                "channels",
            ) from None
        except self.errors as error:
            raise ConnectionLost(f"The connection to {host} was lost ({clean_text(str(error))}).") from None
        return Channel(process, host, self._budget.release, self.errors)

    async def _start_patiently(self, command: str) -> Any:
        for pause in (*OPEN_RETRIES_S, None):
            try:
                return await self._start(command)
            except SessionRefused:
                # a channel just closed holds its place until sshd has seen its command end
                if pause is None or self.closed:
                    raise
                await asyncio.sleep(pause)
        raise AssertionError

    async def run(self, command: str, *, input: bytes = b"", timeout_s: float = 15.0) -> Completed:
        """One command to its end. DeadlineExceeded and ConnectionLost leave its outcome unknown."""
        channel = await self.open_channel(command, timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                feed = asyncio.create_task(self._feed(channel, input))
                output = bytearray()
                try:
                    while piece := await channel.read():
                        output += piece[: OUTPUT_CAP - len(output)]
                finally:
                    feed.cancel()
                return Completed(await channel.wait(timeout_s), bytes(output), channel.stderr_tail)
        except TimeoutError:
            raise DeadlineExceeded(
                f"A command on {self.resolved.name} did not end within {timeout_s:g} s.", "The host may be overloaded."
            ) from None
        finally:
            await channel.close()

    @staticmethod
    async def _feed(channel: Channel, data: bytes) -> None:
        try:
            if data:
                await channel.write(data)
            channel.write_eof()
        except ConnectionLost:
            pass  # a command may end without reading its input; a lost connection shows when its output is read


async def open_connection(
    resolved: Resolved, hostkeys: HostKeyStore, ask: Ask | None = None, keepalive_s: float = KEEPALIVE_S
) -> Connection:
    """Connects through every jump. No connection is held open while a person is asked.

    Raises UnreachableError, AuthenticationError (PassphraseNeeded), HostKeyUnknown (no ``ask``, or it said no),
    HostKeyChanged, HostConfigError.
    """
    if resolved.backend == "openssh":
        from remote.openssh.connection import open_openssh

        return await open_openssh(resolved, hostkeys, ask, keepalive_s)
    from remote.asyncssh_backend import open_asyncssh

    return await open_asyncssh(resolved, hostkeys, ask, keepalive_s)


async def confirm_key(hop: Resolved, offered: HostKey, hostkeys: HostKeyStore, ask: Ask | None) -> None:
    """Returns when ``offered`` is the pinned key, or was pinned now. HostKeyUnknown, HostKeyChanged."""
    try:
        hostkeys.check(hop.name, offered)
    except HostKeyUnknown as error:
        known = await asyncio.to_thread(hint, hop, offered)
        unknown = HostKeyUnknown(error.name, error.kind, error.fingerprint, error.key, known)
        if ask is None or not await ask(unknown):
            raise unknown from None
        hostkeys.pin(hop.name, offered)


def host_key_algorithms(pinned: HostKey | None) -> list[str]:
    """The pinned kind first, so that a host with several keys shows the one we know; then the rest, so that a host
    that no longer has it is seen as changed instead of failing without a word."""
    if pinned is None:
        return list(_HOST_KEY_ALGORITHMS)
    family = "rsa-" if pinned.kind == "ssh-rsa" else pinned.kind
    return sorted(_HOST_KEY_ALGORITHMS, key=lambda name: not name.startswith(family))
