"""How far a hop's ssh got, from its log, and why it ended: the same causes that the asyncssh backend tells.

ssh escapes what a server says before it logs it, and the log is a file of its own, so no server writes lines here.
Pure functions.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass

from remote import causes
from remote.errors import HostConfigError, RemoteError
from remote.resolve import Resolved
from remote.sanitize import clean_text

_OFFERED = re.compile(r"^debug1: Offering public key: (.+?) (\S+) SHA256:\S+(.*)$", re.MULTILINE)
_LOGGED_IN = re.compile(r"^(?:debug1: )?Authenticat(?:ed to |ion succeeded)", re.MULTILINE)
_OPEN_FAILED = re.compile(r"^channel \d+: open failed: (.+)$", re.MULTILINE)
_NOT_SSH = re.compile(r"banner line (?:contains|too long)|protocol version identification|major versions differ", re.I)
_DISCONNECT = re.compile(r"^Received disconnect from .+? port \d+:\d+: (.+)$", re.MULTILINE)
_SETTING = re.compile(r"^\S+/config:? line \d+: (.+)$", re.MULTILINE)
_ERRNO = {
    "Connection refused": errno.ECONNREFUSED,
    "Connection timed out": errno.ETIMEDOUT,
    "Operation timed out": errno.ETIMEDOUT,
    "Connection reset by peer": errno.ECONNRESET,
}


@dataclass(frozen=True)
class Story:
    """``text``: the log. ``connected``: TCP stands (never told behind a proxy). ``spoke``: an SSH server answered."""

    text: str

    @property
    def connected(self) -> bool:
        return "debug1: Connection established." in self.text

    @property
    def spoke(self) -> bool:
        return "debug1: Remote protocol version 2" in self.text

    @property
    def logged_in(self) -> bool:
        return _LOGGED_IN.search(self.text) is not None

    @property
    def wrong_host_key(self) -> bool:
        return "\nHost key verification failed." in self.text

    @property
    def touch(self) -> bool:
        """A key on a security token was offered: a person may have to touch it."""
        return any(kind.endswith("-SK") for _, kind, _ in self._keys)

    @property
    def offered(self) -> str:
        """The keys that were shown to the host, in a sentence."""
        keys = [f"{_shown(name)} (agent)" if "agent" in rest else _shown(name) for name, _, rest in self._keys]
        return f"Offered: {', '.join(keys) or 'no key at all'}."

    @property
    def _keys(self) -> list[tuple[str, str, str]]:
        found: list[tuple[str, str, str]] = _OFFERED.findall(self.text)
        return found

    def missed(self, locked: tuple[str, ...]) -> tuple[str, ...]:
        """Those of ``locked`` that may yet be the right ones: the host did not turn their public halves down."""
        names = {name: _unescaped(name) for name, _, _ in self._keys}
        accepted = {plain for name, plain in names.items() if f"Server accepts key: {name} " in self.text}
        return tuple(file for file in locked if file not in names.values() or file in accepted)

    @property
    def last_words(self) -> str:
        """What the server gave as its reason, otherwise the last line that is no trace."""
        reason = _DISCONNECT.search(self.text)
        lines = [line for line in self.text.splitlines() if line and not line.startswith("debug")]
        return _shown(reason[1] if reason else lines[-1] if lines else "")


def _unescaped(text: str) -> str:
    """What ssh wrote as ``\\033`` when it logged it."""
    octal = re.sub(r"\\([0-3][0-7]{2})", lambda match: chr(int(match[1], 8)), text.encode().decode("latin-1"))
    return octal.encode("latin-1").decode("utf-8", "replace")


def _shown(text: str) -> str:
    return clean_text(_unescaped(text)).rstrip(".")


def ended(hop: Resolved, story: Story, before: Story | None, proxy_said: str, locked: tuple[str, ...]) -> RemoteError:
    """Why ``hop`` was not logged in to; ``before`` is the story of the hop it is reached through."""
    text, said = story.text, story.last_words
    refused = _OPEN_FAILED.search(before.text) if before else None
    if refused:
        return causes.jump_cannot_reach(hop, _shown(refused[1]))
    if "Permission denied (" in said or "Too many authentication failures" in text:
        missed = story.missed(locked)
        unusable = f" Not usable: {'; '.join(f'{file} (it has a passphrase)' for file in missed)}." if missed else ""
        return causes.login_refused(hop, story.offered + unusable, missed)
    if "Could not resolve hostname" in said:
        return causes.name_unknown(hop)
    if said.startswith("Unable to negotiate"):
        return causes.no_common_algorithm(hop, said.partition(": ")[2].partition(". Their")[0] or said)
    if _NOT_SSH.search(text):
        return causes.not_ssh(hop)
    if "connect to host" in said and not story.connected:
        why = said.rpartition(": ")[2]
        return causes.network_error(OSError(_ERRNO.get(why, errno.EHOSTUNREACH), why), hop)
    refusal = _SETTING.search(text)
    if refusal:
        return HostConfigError(
            f"The system's ssh refuses a setting for {hop.name}: {_shown(refusal[1])}.", "Correct ~/.ssh/config."
        )
    if hop.proxy_command and before is None and not story.spoke:
        return causes.proxy_failed(hop, proxy_said, None)
    return causes.hung_up(hop, story.spoke, said)


def too_slow(hop: Resolved, story: Story, limit_s: float, proxy_said: str, behind: bool) -> RemoteError:
    """What ``hop`` did not do within ``limit_s``."""
    if story.spoke:
        return causes.login_unfinished(hop, limit_s)
    if hop.proxy_command and not behind:
        return causes.proxy_failed(hop, proxy_said, limit_s)
    return causes.silent_server(hop) if story.connected else causes.no_answer(hop)
