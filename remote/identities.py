"""The keys that may be offered to a host: the ssh-agent's first, then the identity files; and a note on each.

The notes are what an authentication failure shows: a person wants to know which keys were tried and which could not be.
asyncssh is imported when keys are looked for, not before.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from remote.resolve import Resolved
from remote.sanitize import clean_text

AGENT_TIMEOUT_S = 5.0


@dataclass
class Identities:
    """``keys``: asyncssh key pairs in the order they are offered. The agent stays connected until ``close``."""

    keys: list[Any] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)
    locked: list[str] = field(default_factory=list)
    """Identity files that nobody has given the passphrase of."""
    hardware: bool = False
    """A key on a security token was left out: asyncssh reaches it only through an agent."""
    touch: bool = False
    """A key on a security token is among them: a person may have to touch it."""
    agent: Any = None

    def close(self) -> None:
        if self.agent is not None:
            self.agent.close()

    def describe(self) -> str:
        """For the message of an authentication failure."""
        tried = ", ".join(self.tried) or "no key at all"
        return f"Offered: {tried}." + (f" Not usable: {'; '.join(self.unusable)}." if self.unusable else "")


async def find_identities(resolved: Resolved) -> Identities:
    """Never raises for a key that cannot be used; it is noted instead."""
    found = Identities()
    named = {blob for file in resolved.identity_files for blob in _public_blobs(file)}
    await _from_agent(found, resolved, named)
    offered = {pair.public_data for pair in found.keys}
    for file in resolved.identity_files:
        await asyncio.to_thread(_from_file, found, file, resolved, offered)
    return found


def locked_files(files: tuple[str, ...]) -> tuple[str, ...]:
    """Those of ``files`` that are there and have a passphrase. Reads them: call it from a thread."""
    import asyncssh

    locked = []
    for file in files:
        try:
            asyncssh.read_private_key(file)
        except (OSError, ValueError) as error:
            if "assphrase" in str(error):
                locked.append(file)
    return tuple(locked)


async def _from_agent(found: Identities, resolved: Resolved, named: set[bytes]) -> None:
    import asyncssh

    if not resolved.agent_path:
        return
    try:
        async with asyncio.timeout(AGENT_TIMEOUT_S):
            found.agent = await asyncssh.connect_agent(resolved.agent_path)
            pairs = list(await found.agent.get_keys())
    except (OSError, ValueError, asyncssh.Error, TimeoutError) as error:
        found.unusable.append(f"the ssh-agent at {resolved.agent_path} ({error or 'no answer'})")
        return
    pairs.sort(key=lambda pair: pair.public_data not in named)
    for pair in pairs:
        if resolved.identities_only and pair.public_data not in named:
            continue
        found.keys.append(pair)
        found.tried.append(f"{clean_text(pair.get_comment() or 'a key')} (agent)")
        found.touch |= pair.algorithm.startswith(b"sk-")


def _from_file(found: Identities, file: str, resolved: Resolved, offered: set[bytes]) -> None:
    import asyncssh

    if not os.path.exists(file):
        if resolved.identities_only:
            found.unusable.append(f"{file} (it is not there)")
        return
    if offered.intersection(_public_blobs(file)):
        return  # the agent holds it
    certificates = [path for path in resolved.certificate_files if os.path.exists(path)]
    try:
        pairs = asyncssh.load_keypairs([resolved.keyring.get(file) or file], certlist=certificates)
    except (OSError, ValueError) as error:
        why = str(error)
        if "assphrase" in why:
            found.locked.append(file)
            why = "it has a passphrase: run ssh-add"
        found.unusable.append(f"{file} ({why})")
        return
    touch = any(pair.algorithm.startswith(b"sk-") for pair in pairs)
    if touch and importlib.util.find_spec("fido2") is None:
        found.hardware = True
        found.unusable.append(f"{file} (a hardware key that is in no agent)")
        return
    found.keys.extend(pairs)
    found.tried.append(file)
    found.touch |= touch


def _public_blobs(file: str) -> set[bytes]:
    """The public key that belongs to an identity file, where it lies beside it or is the file itself."""
    import asyncssh

    for path in (Path(file + ".pub"), Path(file)):
        try:
            return {asyncssh.read_public_key(path).public_data}
        except (OSError, ValueError):
            continue
    return set()
