"""The connection that the system's ssh makes: for a ProxyCommand with a login of its own, for hardware keys, Kerberos.

One ssh logs in once (a person touches a token once, signs in once) and stays as the master; channels are sessions over
its control socket. A process for each channel would have to log in each time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from remote import causes
from remote.connection import Ask, Connection, confirm_key
from remote.hostkeys import HostKey, HostKeyStore
from remote.openssh.login import Login, WrongHostKey
from remote.openssh.mux import open_session
from remote.resolve import Resolved


class OpensshConnection(Connection):
    """``login`` is ready."""

    def __init__(self, resolved: Resolved, login: Login) -> None:
        super().__init__(resolved)
        self._login = login

    @property
    def closed(self) -> bool:
        return self._login.process.returncode is not None

    async def wait_closed(self) -> None:
        await self._login.process.wait()

    async def _start(self, command: str) -> Any:
        try:
            return await open_session(self._login.control, command)
        except OSError:
            raise ConnectionResetError("its ssh has ended") from None

    async def close(self, timeout_s: float = 1.0) -> None:
        await self._login.end(timeout_s)


async def open_openssh(resolved: Resolved, hostkeys: HostKeyStore, ask: Ask | None, keepalive_s: float) -> Connection:
    """As open_connection. A host that is new, on the way or at its end, is asked for its key first, without a login."""
    chain = (*resolved.jumps, resolved)
    for number, hop in enumerate(chain):
        if hostkeys.get(hop.name) is None:
            await confirm_key(hop, await _offered_key(chain[: number + 1], hostkeys, keepalive_s), hostkeys, ask)
    login = await Login.start(chain, [hostkeys.get(hop.name) for hop in chain], keepalive_s)
    try:
        await login.until_ready()
    except WrongHostKey as wrong:
        await login.end()
        hop = chain[wrong.number]
        hostkeys.check(hop.name, await _offered_key(chain[: wrong.number + 1], hostkeys, keepalive_s))
        raise causes.hung_up(hop, True, "it shows another host key at every try") from None
    except BaseException:
        await asyncio.shield(login.end())
        raise
    return OpensshConnection(resolved, login)


async def _offered_key(chain: Sequence[Resolved], hostkeys: HostKeyStore, keepalive_s: float) -> HostKey:
    """What the last of ``chain`` shows; the others are logged in to, by their pins."""
    login = await Login.start(chain, [hostkeys.get(hop.name) for hop in chain], keepalive_s, probe=True)
    try:
        return await login.offered_key()
    except WrongHostKey as wrong:
        await login.end()
        hop = chain[wrong.number]
        hostkeys.check(hop.name, await _offered_key(chain[: wrong.number + 1], hostkeys, keepalive_s))
        raise causes.hung_up(hop, True, "it shows another host key at every try") from None
    finally:
        await login.end()
