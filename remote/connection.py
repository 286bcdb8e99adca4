"""An SSH connection made by explicit rules: pinned host keys on every hop, keys only, keepalive, no agent forwarding.

asyncssh gets every option from us and reads no configuration of its own. It is imported on the first connection.
Errors are those of remote.errors, each with what to do.
"""

from __future__ import annotations

import asyncio
import errno
import re
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from remote.channel import Channel, ChannelEnded
from remote.errors import (
    AuthenticationError,
    ConnectionLost,
    DeadlineExceeded,
    HostConfigError,
    HostKeyChanged,
    HostKeyUnknown,
    RemoteError,
    UnreachableError,
)
from remote.hostkeys import HostKey, HostKeyStore
from remote.identities import Identities, find_identities
from remote.resolve import Resolved
from remote.sanitize import clean_text

__all__ = [
    "Ask", "AuthenticationError", "Channel", "ChannelEnded", "Completed", "Connection", "ConnectionLost",
    "HostKeyChanged", "HostKeyUnknown", "UnreachableError", "open_connection",
]  # fmt: skip

KEEPALIVE_S = 5.0
KEEPALIVE_COUNT = 3
"""A silent peer is given up after KEEPALIVE_S * (KEEPALIVE_COUNT + 1)."""
LOGIN_TIMEOUT_S = 30.0
TOUCH_TIMEOUT_S = 120.0
CHANNELS = 4
"""Channels open at once, far below sshd's MaxSessions of 10: it counts a channel until its command is gone."""
OPEN_RETRIES_S = (0.2, 0.5, 1.0)
OUTPUT_CAP = 4 << 20

_HOST_KEY_ALGORITHMS = (
    "ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "rsa-sha2-512", "rsa-sha2-256",
)  # fmt: skip

Ask = Callable[[HostKeyUnknown], Awaitable[bool]]
"""Asks a person whether an unknown host key is the right one. A changed key is never asked about."""


@dataclass(frozen=True)
class Completed:
    """A command that ended by itself. ``status`` is negative for a signal; ``stderr`` is its tail."""

    status: int
    stdout: bytes
    stderr: bytes


class Connection:
    """A live connection, the hops to it included. Closing it ends no process on the host but those it feeds."""

    def __init__(self, resolved: Resolved, hops: list[Any]) -> None:
        self.resolved = resolved
        self._hops = hops
        self._budget = asyncio.Semaphore(CHANNELS)

    @property
    def closed(self) -> bool:
        closed: bool = self._hops[-1].is_closed()
        return closed

    async def wait_closed(self) -> None:
        """Returns when the connection has ended, by whichever side."""
        await self._hops[-1].wait_closed()

    async def open_channel(self, command: str, timeout_s: float = 15.0) -> Channel:
        """Starts ``command`` in the login shell. Waits while CHANNELS are open.

        RemoteError "channels" when the host allows no further session; DeadlineExceeded; ConnectionLost.
        """
        import asyncssh

        host = self.resolved.name
        try:
            async with asyncio.timeout(timeout_s):
                await self._budget.acquire()
                try:
                    process = await self._create_process(command)
                except BaseException:
                    self._budget.release()
                    raise
        except TimeoutError:
            raise DeadlineExceeded(f"{host} opened no channel within {timeout_s:g} s.", "Is it overloaded?") from None
        except asyncssh.ChannelOpenError as error:
            if self.closed:
                raise ConnectionLost(f"The connection to {host} was lost.") from None
            raise RemoteError(
                f"{host} allows no further session on this connection ({clean_text(error.reason)}).",
                "Raise MaxSessions in its sshd_config, or end commands that were left running there.",
                "channels",
            ) from None
        except (OSError, asyncssh.Error) as error:
            raise ConnectionLost(f"The connection to {host} was lost ({clean_text(str(error))}).") from None
        return Channel(process, host, self._budget.release)

    async def _create_process(self, command: str) -> Any:
        import asyncssh

        for pause in (*OPEN_RETRIES_S, None):
            try:
                return await self._hops[-1].create_process(command, encoding=None)
            except asyncssh.ChannelOpenError:
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

    async def close(self, timeout_s: float = 1.0) -> None:
        """Hangs up within ``timeout_s``, also when the network swallows everything."""
        for hop in reversed(self._hops):
            hop.close()
        try:
            async with asyncio.timeout(timeout_s):
                for hop in reversed(self._hops):
                    await hop.wait_closed()
        except TimeoutError:
            pass
        finally:
            for hop in reversed(self._hops):
                hop.abort()


async def open_connection(
    resolved: Resolved, hostkeys: HostKeyStore, ask: Ask | None = None, keepalive_s: float = KEEPALIVE_S
) -> Connection:
    """Connects through every jump. No connection is held open while a person is asked.

    Raises UnreachableError, AuthenticationError, HostKeyUnknown (no ``ask``, or it said no), HostKeyChanged,
    HostConfigError.
    """
    hops: list[Any] = []
    try:
        for hop in (*resolved.jumps, resolved):
            try:
                hops.append(await _open_hop(hop, hostkeys, hops[-1] if hops else None, keepalive_s))
            except HostKeyUnknown as unknown:
                if ask is None or not await ask(unknown):
                    raise
                hostkeys.pin(unknown.name, HostKey.parse(unknown.key))
                hops.append(await _open_hop(hop, hostkeys, hops[-1] if hops else None, keepalive_s))
    except BaseException:
        for opened in reversed(hops):
            opened.abort()
        raise
    return Connection(resolved, hops)


class _Witness:
    """What the attempt got to see before it failed: asyncssh's exceptions alone do not tell the cases apart."""

    def __init__(self) -> None:
        self.connection: Any = None
        self.offered: HostKey | None = None

    def client(self) -> Any:
        import asyncssh

        witness = self

        class Client(asyncssh.SSHClient):  # type: ignore[misc]
            def connection_made(self, conn: Any) -> None:
                witness.connection = conn

            def validate_host_public_key(self, host: str, addr: str, port: int, key: Any) -> bool:
                # called for unknown and for changed keys alike: saying yes here would trust a changed one
                witness.offered = HostKey.parse(key.export_public_key("openssh").decode())
                return False

        return Client()

    @property
    def spoke_ssh(self) -> bool:
        return self.connection is not None and self.connection.get_extra_info("server_version") is not None


async def _open_hop(hop: Resolved, hostkeys: HostKeyStore, tunnel: Any, keepalive_s: float) -> Any:
    import asyncssh

    pinned = hostkeys.get(hop.name)
    trusted = [asyncssh.import_public_key(pinned.line)] if pinned else []
    identities = await find_identities(hop)
    login_s = TOUCH_TIMEOUT_S if identities.touch else LOGIN_TIMEOUT_S
    witness = _Witness()
    try:
        async with asyncio.timeout(hop.connect_timeout_s + login_s):
            return await asyncssh.connect(
                hop.host,
                hop.port,
                username=hop.user,
                config=None,
                tunnel=tunnel,
                proxy_command=["/bin/sh", "-c", f"exec {hop.proxy_command}"] if hop.proxy_command else None,
                client_factory=witness.client,
                client_keys=identities.keys or None,
                agent_path=None,
                agent_forwarding=False,
                known_hosts=lambda host, addr, port: (trusted, [], []),
                host_key_alias=hop.name,
                server_host_key_algs=_algorithms(pinned),
                x509_trusted_certs=None,
                preferred_auth="publickey",
                gss_host=None,
                connect_timeout=hop.connect_timeout_s,
                login_timeout=login_s,
                keepalive_interval=keepalive_s,
                keepalive_count_max=KEEPALIVE_COUNT,
                compression_algs=None,
            )
    except (OSError, ValueError, asyncssh.Error, TimeoutError) as error:
        if isinstance(error, asyncssh.HostKeyNotVerifiable) and witness.offered is not None:
            hostkeys.check(hop.name, witness.offered)
        raise _explained(error, hop, witness, identities, login_s) from None
    finally:
        identities.close()


def _algorithms(pinned: HostKey | None) -> list[str]:
    """The pinned kind first, so that a host with several keys shows the one we know; then the rest, so that a host
    that no longer has it is seen as changed instead of failing without a word."""
    if pinned is None:
        return list(_HOST_KEY_ALGORITHMS)
    family = "rsa-" if pinned.kind == "ssh-rsa" else pinned.kind
    return sorted(_HOST_KEY_ALGORITHMS, key=lambda name: not name.startswith(family))


def _explained(
    error: BaseException, hop: Resolved, witness: _Witness, identities: Identities, login_s: float
) -> RemoteError:
    import asyncssh

    where = f"{hop.host}:{hop.port}"
    if isinstance(error, asyncssh.PermissionDenied) or "Too many authentication failures" in str(error):
        return AuthenticationError(
            f"{hop.address} refused to log us in. {identities.describe()}",
            f"Try `ssh -p {hop.port} {hop.user}@{hop.host}`; add your public key to ~/.ssh/authorized_keys there, or "
            "name the right one (identity in eagledeck.toml, IdentityFile in ~/.ssh/config).",
        )
    if isinstance(error, asyncssh.ChannelOpenError):
        return UnreachableError(
            f"The jump host cannot reach {where} ({clean_text(error.reason)}).", "Check ProxyJump.", "refused"
        )
    if isinstance(error, (asyncssh.ProtocolError, asyncssh.ProtocolNotSupported)) and not witness.spoke_ssh:
        return _not_ssh(where)
    if isinstance(error, asyncssh.KeyExchangeFailed):
        return HostConfigError(
            f"{where} and we have no algorithm in common: {clean_text(error.reason)}.", "Update its SSH server."
        )
    if isinstance(error, TimeoutError) or (isinstance(error, asyncssh.Error) and "timeout" in str(error).lower()):
        if witness.connection is None:
            return UnreachableError(
                f"{where} did not answer within {hop.connect_timeout_s:g} s.",
                "Check that the host is up and that the network (VPN, firewall) lets you reach it.",
                "timeout",
            )
        if not witness.spoke_ssh:
            return UnreachableError(
                f"{where} accepts connections, but no SSH server answered within {hop.connect_timeout_s:g} s.",
                "Check the port (is it another server's?), and whether the host hangs.",
                "timeout",
            )
        return UnreachableError(
            f"{where} did not finish the login within {login_s:g} s.", "It may be overloaded; try again.", "timeout"
        )
    if isinstance(error, socket.gaierror):
        return UnreachableError(f"The name {hop.host} is not known.", "Check the host's name and your network.", "dns")
    if isinstance(error, OSError) and not isinstance(error, asyncssh.Error):
        return _network_error(error, where)
    if isinstance(error, ValueError):
        return HostConfigError(f"{where} cannot be used: {error}.", "Check the host's settings.")
    said = f"during the login ({clean_text(str(error))})." if witness.spoke_ssh else "before it said anything."
    return UnreachableError(
        f"{where} hung up {said}",
        "It may be starting, limiting connections (MaxStartups, PerSourcePenalties), or not be an SSH server.",
        "closed",
    )


def _not_ssh(where: str) -> UnreachableError:
    return UnreachableError(
        f"{where} accepts connections but does not speak SSH.", "Check the port: another server has it.", "not-ssh"
    )


def _network_error(error: OSError, where: str) -> UnreachableError:
    numbers = {error.errno} if error.errno else {int(n) for n in re.findall(r"\[Errno (\d+)\]", str(error))}
    if numbers == {errno.ECONNREFUSED}:
        return UnreachableError(
            f"{where} refuses connections.",
            "Check the port, and that sshd runs there (a container may have restarted).",
            "refused",
        )
    if numbers & {errno.ETIMEDOUT}:
        return UnreachableError(f"{where} did not answer.", "Check that the host is up and reachable.", "timeout")
    if numbers & {errno.ECONNRESET, errno.EPIPE}:
        return UnreachableError(f"{where} hung up.", "It may be starting or limiting connections.", "closed")
    return UnreachableError(f"{where} cannot be reached: {error.strerror or error}.", "Check your network.")
