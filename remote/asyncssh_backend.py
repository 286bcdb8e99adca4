"""The connection that is made in this process, by asyncssh: every option comes from us, none from a file of its own.

asyncssh is imported on the first connection.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from remote import causes
from remote.connection import (
    KEEPALIVE_COUNT,
    LOGIN_TIMEOUT_S,
    TOUCH_TIMEOUT_S,
    Ask,
    Connection,
    SessionRefused,
    confirm_key,
    host_key_algorithms,
)
from remote.errors import AuthenticationError, HostConfigError, RemoteError, UnreachableError
from remote.hostkeys import HostKey, HostKeyStore
from remote.identities import Identities, find_identities
from remote.resolve import Resolved
from remote.sanitize import clean_text


class AsyncsshConnection(Connection):
    """``hops`` are asyncssh's connections, the last one to the host itself."""

    def __init__(self, resolved: Resolved, hops: list[Any]) -> None:
        import asyncssh

        super().__init__(resolved)
        self.errors = (OSError, asyncssh.Error)
        self._hops = hops

    @property
    def closed(self) -> bool:
        closed: bool = self._hops[-1].is_closed()
        return closed

    async def wait_closed(self) -> None:
        await self._hops[-1].wait_closed()

    async def _start(self, command: str) -> Any:
        import asyncssh

        try:
            return await self._hops[-1].create_process(command, encoding=None)
        except asyncssh.ChannelOpenError as error:
            raise SessionRefused(error.reason) from None

    async def close(self, timeout_s: float = 1.0) -> None:
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


async def open_asyncssh(resolved: Resolved, hostkeys: HostKeyStore, ask: Ask | None, keepalive_s: float) -> Connection:
    """As open_connection."""
    hops: list[Any] = []
    try:
        for hop in (*resolved.jumps, resolved):
            tunnel = hops[-1] if hops else None
            connection = await _open_hop(hop, hostkeys, tunnel, keepalive_s)
            if isinstance(connection, HostKey):
                await confirm_key(hop, connection, hostkeys, ask)
                connection = await _open_hop(hop, hostkeys, tunnel, keepalive_s)
            if isinstance(connection, HostKey):
                hostkeys.check(hop.name, connection)
                raise causes.hung_up(hop, True, "it shows another host key at every try")
            hops.append(connection)
    except BaseException:
        for opened in reversed(hops):
            opened.abort()
        raise
    return AsyncsshConnection(resolved, hops)


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
    """asyncssh's connection; or the HostKey offered, when it is not the pinned one."""
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
                server_host_key_algs=host_key_algorithms(pinned),
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
            return witness.offered
        explained = _explained(error, hop, witness, identities, login_s)
        _name_the_other_backend(explained, hop, identities)
        raise explained from None
    finally:
        identities.close()


def _explained(
    error: BaseException, hop: Resolved, witness: _Witness, identities: Identities, login_s: float
) -> RemoteError:
    import asyncssh

    if isinstance(error, asyncssh.PermissionDenied) or "Too many authentication failures" in str(error):
        return causes.login_refused(hop, identities.describe(), tuple(identities.locked))
    if isinstance(error, asyncssh.ChannelOpenError):
        return causes.jump_cannot_reach(hop, clean_text(error.reason))
    if isinstance(error, (asyncssh.ProtocolError, asyncssh.ProtocolNotSupported)) and not witness.spoke_ssh:
        return causes.not_ssh(hop)
    if isinstance(error, asyncssh.KeyExchangeFailed):
        return causes.no_common_algorithm(hop, clean_text(error.reason))
    if isinstance(error, TimeoutError) or (isinstance(error, asyncssh.Error) and "timeout" in str(error).lower()):
        if witness.connection is None:
            return causes.no_answer(hop)
        return causes.login_unfinished(hop, login_s) if witness.spoke_ssh else causes.silent_server(hop)
    if isinstance(error, socket.gaierror):
        return causes.name_unknown(hop)
    if isinstance(error, OSError) and not isinstance(error, asyncssh.Error):
        return causes.network_error(error, hop)
    if isinstance(error, ValueError):
        return HostConfigError(f"{causes.where(hop)} cannot be used: {error}.", "Check the host's settings.")
    return causes.hung_up(hop, witness.spoke_ssh, clean_text(str(error)))


def _name_the_other_backend(error: RemoteError, hop: Resolved, identities: Identities) -> None:
    """Where the person's own ssh would have more to log in with than we have, the remedy names the setting."""
    more = list(hop.beyond) if isinstance(error, AuthenticationError) else []
    if identities.hardware and isinstance(error, AuthenticationError):
        more.append("a hardware key")
    if hop.proxy_command and isinstance(error, UnreachableError):
        more.append("a ProxyCommand that asks for a login")
    if more:
        error.remedy += (
            f" If it takes {' or '.join(more)} to get in, leave it to the system's ssh: "
            f'backend = "openssh" in eagledeck.toml.'
        )
