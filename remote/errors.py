"""Every way the wire can fail, said to a person: what happened, where, what to do.

Imports nothing. Everything the laptop side of ``remote`` raises on purpose is a RemoteError, so that a caller needs one
``except``. Texts that came from a host are sanitised before they get here.
"""

from __future__ import annotations


class RemoteError(Exception):
    """``code`` is a short word for programs: one of protocol.ERROR_CODES, or of the classes below.

    ``blocks``: trying again by itself cannot help; a person has to act first.
    """

    code = "failed"
    blocks = False

    def __init__(self, message: str, remedy: str = "", code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        if code:
            self.code = code

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".strip()


class ConnectionLost(RemoteError):
    """The connection or the agent's channel ended. What a request in flight did on the host is unknown."""

    code = "lost"


class NotConnected(RemoteError):
    """A request was made while there is no live connection. Nothing was sent."""

    code = "offline"


class DeadlineExceeded(RemoteError):
    """No answer in time. The outcome is unknown; only idempotent operations may be repeated."""

    code = "deadline"


class UnreachableError(RemoteError):
    """No SSH session could be made. ``code``: dns, refused, timeout, unreachable, closed, not-ssh."""

    code = "unreachable"


class AuthenticationError(RemoteError):
    """The host refused every key. Never retried by itself: repeated failures get a whole network banned."""

    code = "authentication"
    blocks = True


class PassphraseNeeded(AuthenticationError):
    """Refused, and an identity file that might have been taken was not offered: ``files`` have passphrases."""

    code = "passphrase"

    def __init__(self, message: str, remedy: str, files: tuple[str, ...]) -> None:
        super().__init__(message, remedy)
        self.files = files


class HostConfigError(RemoteError):
    """The host's description (eagledeck.toml, ~/.ssh/config) cannot be used as it stands."""

    code = "config"
    blocks = True


class HostKeyUnknown(RemoteError):
    """First contact: ``fingerprint`` (``SHA256:…``) and ``kind`` of the key offered; ``key`` is the whole key line.

    ``hint`` is what the person's own known_hosts says about the key, a sentence or "".
    """

    code = "host-key-unknown"
    blocks = True

    def __init__(self, name: str, kind: str, fingerprint: str, key: str, hint: str = "") -> None:
        super().__init__(
            f"The host key of {name} is not known yet: {kind} {fingerprint}.",
            f"{hint} Compare it with what the provider or the host's console shows, then confirm it.".strip(),
        )
        self.hint = hint
        self.name = name
        self.kind = kind
        self.fingerprint = fingerprint
        self.key = key


class HostKeyChanged(RemoteError):
    """The key offered is not the pinned one. ``phrase`` is what a person types to replace the pin."""

    code = "host-key-changed"
    blocks = True

    def __init__(self, name: str, old_fingerprint: str, kind: str, fingerprint: str, key: str) -> None:
        super().__init__(
            f"THE HOST KEY OF {name} HAS CHANGED: pinned {old_fingerprint}, offered {kind} {fingerprint}.",
            "Someone may be in between. If the container was made anew, compare the new fingerprint "
            f"and replace the pin by typing {name!r}.",
        )
        self.name = name
        self.old_fingerprint = old_fingerprint
        self.kind = kind
        self.fingerprint = fingerprint
        self.key = key
        self.phrase = name


class BootstrapError(RemoteError):
    """The agent could not be started. ``code``: shell, volume, python, install, agent, version."""

    code = "bootstrap"

    def __init__(self, message: str, remedy: str = "", code: str = "", blocks: bool = False) -> None:
        super().__init__(message, remedy, code)
        self.blocks = blocks
