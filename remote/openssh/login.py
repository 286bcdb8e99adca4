"""One run of the system's ssh, in a private folder, from its start to its control socket or to the reason why not.

ssh dies with us: a shell waits beside it for the end of a pipe that only we hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from remote.connection import LOGIN_TIMEOUT_S, TOUCH_TIMEOUT_S
from remote.errors import HostConfigError, RemoteError
from remote.hostkeys import HostKey
from remote.identities import locked_files
from remote.openssh.mux import answers
from remote.openssh.settings import log_of, write_settings
from remote.openssh.story import Story, ended, too_slow
from remote.resolve import Resolved
from remote.sanitize import clean_text

POLL_S = 0.02
SAID_KEPT = 2048
END_S = 1.0
SOCKET_PATH_MAX = 104
"""macOS's; Linux has four more. ssh adds 17 characters while it makes the socket."""

# The trap is for `end`: the shell gets the signal with the rest, and goes when ssh has gone.
_GUARD = """\
exec 3<&0; D=$1; shift
trap : TERM
"$@" </dev/null 3<&- & M=$!
{ read -r _ <&3; rm -rf "$D"; kill "$M"; } >/dev/null 2>&1 & R=$!
exec 3<&-
wait "$M"; S=$?
while kill -0 "$M" 2>/dev/null; do wait "$M"; S=$?; done
kill "$R" 2>/dev/null
exit "$S"
"""


class WrongHostKey(Exception):
    """The hop with this ``number`` showed a key that is not its pin."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Login:
    """Made by ``start``; ``end`` must be called. ``chain`` are the hops, the last one the host itself."""

    def __init__(self, folder: Path, chain: Sequence[Resolved], process: asyncio.subprocess.Process) -> None:
        self.control = folder / "control"
        self.process = process
        self._folder = folder
        self._chain = chain
        self._said = bytearray()
        self._listening = asyncio.create_task(self._listen(), name="what ssh says")
        self._exit = asyncio.create_task(process.wait(), name="ssh")

    @classmethod
    async def start(
        cls, chain: Sequence[Resolved], pins: Sequence[HostKey | None], keepalive_s: float, probe: bool = False
    ) -> Login:
        """HostConfigError when there is no ssh, or a setting cannot be written."""
        ssh = shutil.which("ssh")
        if ssh is None:
            raise HostConfigError(
                "There is no ssh command here.", 'Install the OpenSSH client, or take backend = "openssh" out.'
            )
        folder = _private_folder()
        try:
            command = write_settings(folder, ssh, chain, pins, keepalive_s, probe)
            process = await asyncio.create_subprocess_exec(
                *("/bin/sh", "-c", _GUARD, "sh", str(folder), *command),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,  # a ctrl-C is meant for the console
            )
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, OSError):
                raise HostConfigError(f"{ssh} does not start: {error.strerror}.", "Check it.") from None
            raise
        return cls(folder, chain, process)

    async def until_ready(self) -> None:
        """Returns when sessions can be opened. WrongHostKey; otherwise as open_connection."""
        if not await self._progress(self.control.exists):
            raise await self._failure()
        if not await answers(self.control):
            raise HostConfigError(
                f"The system's ssh does not answer on its control socket: {self._story(-1).last_words}.",
                "It has to be OpenSSH 7.6 or newer.",
            )

    async def offered_key(self) -> HostKey:
        """For a probe: the key that the last hop shows. WrongHostKey for one before it; as open_connection."""
        file = self._folder / "offered"
        if not await self._progress(lambda: file.exists() and file.read_bytes().endswith(b"\n")):
            raise await self._failure()
        try:
            return HostKey.parse(file.read_text("ascii", "replace").splitlines()[0].partition(" ")[2])
        except ValueError as error:
            raise HostConfigError(f"ssh wrote no host key: {error}.", "Try again.") from None

    async def end(self, timeout_s: float = END_S) -> None:
        """Hangs up, and ends whatever was started, within ``timeout_s``."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.process.returncode is not None:
                break
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            await asyncio.wait({self._exit}, timeout=timeout_s)
        self._listening.cancel()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _story(self, number: int) -> Story:
        try:
            return Story(log_of(self._folder, number % len(self._chain)).read_text("utf-8", "replace"))
        except OSError:
            return Story("")

    async def _progress(self, reached: Callable[[], bool]) -> bool:
        """True when ``reached`` says so; False when ssh has ended without; the limits are those of the current hop."""
        hop_began = spoke_at = time.monotonic()
        at, spoke = 0, False
        while not reached():
            if self._exit.done():
                return reached()
            story, now = self._story(at), time.monotonic()
            if story.logged_in and at + 1 < len(self._chain):
                at, spoke, hop_began = at + 1, False, now
                continue
            if story.spoke and not spoke:
                spoke, spoke_at = True, now
            hop = self._chain[at]
            proxied = bool(hop.proxy_command) and at == 0
            patient = story.touch or any(word == "pkcs11provider" for word, _ in hop.ssh_settings)
            limit_s = TOUCH_TIMEOUT_S if proxied else hop.connect_timeout_s
            if spoke:
                limit_s = TOUCH_TIMEOUT_S if patient else LOGIN_TIMEOUT_S
            if now - (spoke_at if spoke else hop_began) > limit_s:
                raise too_slow(hop, story, limit_s, self._proxy_said, at > 0)
            await asyncio.wait({self._exit}, timeout=POLL_S)
        return True

    async def _failure(self) -> RemoteError:
        await asyncio.wait({self._listening}, timeout=END_S)
        before = None
        for number, hop in enumerate(self._chain):
            story = self._story(number)
            if story.wrong_host_key:
                raise WrongHostKey(number)
            if not story.logged_in:
                locked = await asyncio.to_thread(locked_files, hop.identity_files)
                return ended(hop, story, before, self._proxy_said, locked)
            before = story
        return ended(self._chain[-1], self._story(-1), None, "", ())

    @property
    def _proxy_said(self) -> str:
        lines = self._said.decode("utf-8", "replace").strip().splitlines()
        return clean_text(" ".join(lines[-3:])).rstrip(".")

    async def _listen(self) -> None:
        assert self.process.stderr is not None
        with contextlib.suppress(OSError):
            while piece := await self.process.stderr.read(SAID_KEPT):
                self._said += piece
                del self._said[:-SAID_KEPT]


def _private_folder() -> Path:
    """A new folder of ours, 0700, with a path short enough for a socket in it."""
    room = SOCKET_PATH_MAX - len("/eagledeck-12345678/control") - 17
    places = [place for place in (os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir()) if place]
    for place in (*(place for place in places if len(os.fsencode(place)) < room), "/tmp"):
        with contextlib.suppress(OSError):
            return Path(tempfile.mkdtemp(prefix="eagledeck-", dir=place))
    raise HostConfigError("No folder can be made for ssh's control socket.", "Make TMPDIR writable.")
