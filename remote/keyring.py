"""Identity files that a person has opened with their passphrase: the keys, in this process's memory and nowhere else.

The passphrase itself is not kept. asyncssh is imported when a key is opened.
"""

from __future__ import annotations

from typing import Any

from remote.errors import RemoteError
from remote.sanitize import clean_text


class Keyring:
    """Belongs to the description of a host (HostSpec): a link that comes back asks no second time."""

    def __init__(self) -> None:
        self._keys: dict[str, Any] = {}

    def unlock(self, file: str, passphrase: str) -> None:
        """Keeps the private key of ``file``, opened. RemoteError "refused" when the passphrase is not the right one."""
        import asyncssh

        try:
            self._keys[file] = asyncssh.read_private_key(file, passphrase)
        except (OSError, ValueError) as error:
            why = "the passphrase is not the right one" if "assphrase" in str(error) else clean_text(str(error))
            raise RemoteError(
                f"{file} was not opened: {why}.", f"Try again, or give the key to your agent: ssh-add {file}", "refused"
            ) from None

    def get(self, file: str) -> Any:
        """asyncssh's private key, or None."""
        return self._keys.get(file)
