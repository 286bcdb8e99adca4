"""Pinned host keys: one file of the laptop's state folder, one key a host name. Imports the standard library only.

The file ``host_keys`` has a line ``NAME KIND BASE64`` a host. NAME is the alias of eagledeck.toml (or
``jump:HOST:PORT`` for a host on the way), so an address that is given to another machine never inherits trust.
A key gets in by ``pin`` (a person confirmed the fingerprint) or by ``replace`` (a person typed the name); nothing
else writes here, and a key that differs from its pin is never accepted.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from remote.errors import HostConfigError, HostKeyChanged, HostKeyUnknown, RemoteError


@dataclass(frozen=True)
class HostKey:
    """A public key: ``kind`` such as ``ssh-ed25519``, ``blob`` in the SSH wire format (RFC 4253, 6.6)."""

    kind: str
    blob: bytes

    @classmethod
    def parse(cls, line: str) -> HostKey:
        """From ``KIND BASE64 [comment]``. ValueError when it is not a key."""
        fields = line.split()
        if len(fields) < 2:
            raise ValueError("a host key is written as: KIND BASE64")
        try:
            blob = base64.b64decode(fields[1], validate=True)
        except binascii.Error as error:
            raise ValueError(f"not base64: {error}") from None
        size = int.from_bytes(blob[:4], "big")
        if blob[4 : 4 + size] != fields[0].encode():
            raise ValueError("the key does not say what kind it is")
        return cls(fields[0], blob)

    @property
    def line(self) -> str:
        return f"{self.kind} {base64.b64encode(self.blob).decode()}"

    @property
    def fingerprint(self) -> str:
        """``SHA256:…`` as ``ssh-keygen -lf`` prints it."""
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")


class HostKeyStore:
    """The pins of one state folder. Every call reads the file anew: several consoles may share it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "host_keys"

    def get(self, name: str) -> HostKey | None:
        """The pinned key, or None. HostConfigError when the file is damaged: then nothing is trusted."""
        return self._read().get(name)

    def check(self, name: str, offered: HostKey) -> None:
        """Returns when ``offered`` is the pinned key; raises HostKeyUnknown or HostKeyChanged otherwise."""
        pinned = self.get(name)
        if pinned is None:
            raise HostKeyUnknown(name, offered.kind, offered.fingerprint, offered.line)
        if pinned != offered:
            raise HostKeyChanged(name, pinned.fingerprint, offered.kind, offered.fingerprint, offered.line)

    def pin(self, name: str, key: HostKey) -> None:
        """Trusts ``key`` from now on. HostKeyChanged when another key is pinned already (by another console, say)."""
        with self._writing() as pins:
            if pins.setdefault(name, key) != key:
                raise HostKeyChanged(name, pins[name].fingerprint, key.kind, key.fingerprint, key.line)

    def replace(self, name: str, key: HostKey, typed: str) -> None:
        """Trusts ``key`` instead of the pinned one; ``typed`` is what the person wrote and must be the name itself."""
        if typed != name:
            raise RemoteError("The pinned key was kept.", f"To replace it, type {name!r} exactly.", "refused")
        with self._writing() as pins:
            pins[name] = key

    def _read(self) -> dict[str, HostKey]:
        try:
            lines = self.path.read_text("utf-8").splitlines()
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError) as error:
            raise HostConfigError(f"{self.path} cannot be read: {error}.", "Repair or remove the file.") from None
        pins = {}
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.startswith("#"):
                continue
            name, _, rest = line.partition(" ")
            try:
                pins[name] = HostKey.parse(rest)
            except ValueError as error:
                raise HostConfigError(
                    f"{self.path}, line {number}: {error}.", "Remove the line; the host's key is then asked for anew."
                ) from None
        return pins

    @contextlib.contextmanager
    def _writing(self) -> Iterator[dict[str, HostKey]]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                pins = self._read()
                yield pins
                self._write(pins)
            finally:
                os.close(lock)
        except OSError as error:
            raise HostConfigError(
                f"The host key could not be saved to {self.path}: {error.strerror}.", "Make the folder writable."
            ) from None

    def _write(self, pins: dict[str, HostKey]) -> None:
        for name in pins:
            if not name or name.startswith("#") or any(c.isspace() or not c.isprintable() for c in name):
                raise HostConfigError(f"{name!r} cannot name a host.", "Use a name without spaces.")
        text = "".join(f"{name} {pins[name].line}\n" for name in sorted(pins))
        handle, temporary = tempfile.mkstemp(prefix=".host_keys.", dir=self.path.parent)  # mode 0600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
        except BaseException:
            os.unlink(temporary)
            raise
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
