"""From a connection to a running agent: any login shell, noisy or not, no SFTP, code uploaded only when it is missing.

One channel does it all. The login shell, whatever it is, only has to run

    exec /bin/sh -c 'echo @@NONCE@@ sh; IFS= read -r S; eval "$S"'

which holds no backslash, no "!" and no newline (fish and tcsh would change those). What it prints before the nonce is
noise and kept for the error message. Only then something is sent: one line of sh that finds a Python and the code.
If the code is there it becomes the agent at once; if not, Python reads remote/unpack.py and the archive from the
same channel, unpacks it under ``<root>/code/<hash>``, and becomes the agent.
"""

from __future__ import annotations

import asyncio
import importlib.resources
import json
import secrets
import shlex
from dataclasses import dataclass, field

from remote import protocol
from remote.archive import Archive
from remote.channel import Channel, ChannelEnded
from remote.connection import Connection
from remote.errors import BootstrapError, RemoteError
from remote.resolve import HostSpec
from remote.sanitize import clean_text, scrub

SHELL_S = 20.0
"""A login shell may source slow files; so long it may take until it runs our command."""
STEP_S = 20.0
UPLOAD_S = 180.0
PIECE = 16384
UNDER_WAY = 65536
"""Bytes of the archive that are sent before the host has said that it has the ones before: what waits in the buffers
of a slow link holds up the answers to keepalives, and more than 20 s of that would look like a dead connection."""
NOISE_SHOWN = 2048

PYTHONS = (
    "python3", "/opt/conda/bin/python3", "/usr/local/bin/python3", "/usr/bin/python3", "/venv/bin/python3",
    "/opt/venv/bin/python3", "$HOME/miniconda3/bin/python3", "python3.13", "python3.12", "python3.11", "python3.10",
    "python3.9",
)  # fmt: skip
"""Where a Python is looked for when the host's description names none; a session's PATH is not the container's."""

_FIND_PYTHON = """\
say() { printf "%s %s\\n" "$N" "$*"; };
pick() { F=; for p in "$@"; do c=$(command -v "$p" 2>/dev/null) || continue;
v=$("$c" -E -S -B -c "import sys; print(sys.version_info >= (3, 9), sys.version.split()[0], sys.executable)" \
2>/dev/null </dev/null);
case "$v" in "True "*" /"*) B=/${v#* /}; return 0;; "False "*) F="$F $c (${v#* })";; *) F="$F $c (does not run)";; esac;
done; return 1; };
case "$V" in "~/"*) V="$HOME/${V#??}";; esac; [ -z "$V" ] || [ -d "$V" ] || { say volume "$V"; exit 3; };
case "$R" in "~/"*) R="$HOME/${R#??}";; esac; case "$P" in "~/"*) P="$HOME/${P#??}";; esac;
if [ -n "$P" ]; then
pick "$P" || { W=$F; pick DEFAULTS; say configured "$W"; say python "$F $B"; exit 3; };
else pick DEFAULTS || { say python "$F"; exit 3; }; fi;
"""

_FIND_CODE = """\
say use "$B"; say root "$R";
if [ -z "$X" ]; then for D in "$R/code/$H" "$HOME/.cache/eagledeck/code/$H"; do
if [ -O "$D" ] && [ -f "$D/remote/agent/__main__.py" ]; then
say code "$D"; cd "$D" && exec "$B" -E -S -B -u -m remote.agent serve --root "$R" --nonce "$N"; exit 4; fi; done; fi;
say need; exec "$B" -I -S -B -u -c "import sys; b = sys.stdin.buffer; exec(b.read(int(b.readline())))" "$R" SHA "$N" $X
"""


@dataclass(frozen=True)
class Agent:
    """A running agent: its channel stands right behind the hello. ``code``, ``root`` and ``python`` are on the host."""

    channel: Channel
    hello: protocol.Hello
    python: str
    code: str
    root: str
    uploaded: int
    """Bytes that had to be sent; 0 when the code was there."""
    notes: tuple[str, ...]


@dataclass
class _Facts:
    python: str = ""
    code: str = ""
    root: str = ""
    uploaded: int = 0
    have: int = 0
    notes: list[str] = field(default_factory=list)


async def open_shell(connection: Connection, script: str) -> tuple[Channel, str]:
    """Runs ``script`` (one line of POSIX sh) on the host; it finds the nonce in ``$N``.

    The channel stands behind everything the login shell printed. BootstrapError with that noise when the shell never
    got to our command.
    """
    nonce = f"@@{secrets.token_hex(8)}@@"
    host = connection.resolved.name
    channel = await connection.open_channel(f"exec /bin/sh -c 'echo {nonce} sh; IFS= read -r S; eval \"$S\"'")
    try:
        async with asyncio.timeout(SHELL_S):
            await channel.read_until(f"{nonce} sh\n".encode())
            await channel.write(f"N={nonce}; {script}\n".encode("utf-8", "surrogateescape"))
    except TimeoutError:
        noise = channel.unread
        await channel.close()
        raise BootstrapError(
            f"The login shell of {host} did not run our command within {SHELL_S:g} s." + _noise(noise, channel),
            f"Something in its startup files waits, perhaps for input. Try `{connection.resolved.by_hand} true`.",
            "shell",
        ) from None
    except ChannelEnded as ended:
        await channel.close()
        raise BootstrapError(
            f"The login shell of {host} ended, or printed without end, instead of running our command."
            + _noise(ended.data, channel),
            f"Try `{connection.resolved.by_hand} true`: a shell that allows no login, or a startup file that exits, "
            "has to be changed.",
            "shell",
        ) from None
    except BaseException:
        await channel.close()
        raise
    return channel, nonce


async def start_agent(connection: Connection, spec: HostSpec, archive: Archive) -> Agent:
    """Starts the agent of ``archive``. Code that is there but does not start is uploaded anew, once.

    BootstrapError, ConnectionLost, DeadlineExceeded.
    """
    try:
        return await _attempt(connection, spec, archive, repair=False)
    except BootstrapError as error:
        if error.code != "agent":
            raise
        return await _attempt(connection, spec, archive, repair=True)


async def _attempt(connection: Connection, spec: HostSpec, archive: Archive, repair: bool) -> Agent:
    channel, nonce = await open_shell(connection, _script(spec, archive, repair))
    facts = _Facts()
    try:
        async with asyncio.timeout(STEP_S):
            ready = await _until_code(channel, nonce, spec, facts)
        if not ready:
            facts.uploaded = len(archive.data)
            async with asyncio.timeout(UPLOAD_S):
                await _upload(channel, nonce, spec, archive, facts)
                await _until_code(channel, nonce, spec, facts)
        async with asyncio.timeout(STEP_S):
            hello = await _hello(channel, nonce)
    except TimeoutError:
        await channel.close()
        raise BootstrapError(
            f"The agent did not start on {spec.alias} in time." + _noise(channel.unread, channel),
            "The host or its volume may be overloaded; try again.",
            "slow",
        ) from None
    except ChannelEnded as ended:
        await channel.close()
        if not facts.code and facts.uploaded:
            raise BootstrapError(
                f"The code could not be put on {spec.alias}." + _noise(ended.data, channel), "Try again.", "install"
            ) from None
        raise BootstrapError(
            f"The agent on {spec.alias} ended before it said hello ({facts.python or 'no Python'})."
            + _noise(ended.data, channel),
            'Check that this Python runs, or name another: python = "/path/to/python3" in eagledeck.toml.',
            "agent",
        ) from None
    except BaseException:
        await channel.close()
        raise
    return Agent(channel, hello, facts.python, facts.code, facts.root, facts.uploaded, tuple(facts.notes))


def _script(spec: HostSpec, archive: Archive, repair: bool) -> str:
    defaults = " ".join(f'"{path}"' for path in PYTHONS)
    given = f"R={shlex.quote(spec.root)}; P={shlex.quote(spec.python)}; V={shlex.quote(spec.volume)}; "
    head = f"{given}H={archive.name}; X={'repair' * repair}; B=; "
    body = (_FIND_PYTHON + _FIND_CODE).replace("DEFAULTS", defaults).replace("SHA", archive.sha256)
    return head + " ".join(body.splitlines())


async def _upload(channel: Channel, nonce: str, spec: HostSpec, archive: Archive, facts: _Facts) -> None:
    program = importlib.resources.files("remote").joinpath("unpack.py").read_bytes()
    await channel.write(b"%d\n%s%d\n" % (len(program), program, len(archive.data)))
    for at in range(0, len(archive.data), PIECE):
        await channel.write(archive.data[at : at + PIECE])
        if at + PIECE - facts.have > UNDER_WAY:
            await _until_code(channel, nonce, spec, facts, at + PIECE - UNDER_WAY)


async def _until_code(channel: Channel, nonce: str, spec: HostSpec, facts: _Facts, have: int | None = None) -> bool:
    """Reads what the host found out, until the code's folder is known (True) or wanted (False); or it has ``have``."""
    wrong = None
    while True:
        line = (await channel.read_until(b"\n")).decode("utf-8", "surrogateescape")
        if not line.startswith(nonce + " "):
            continue
        word, _, rest = line[len(nonce) + 1 :].partition(" ")
        if word == "configured":
            wrong = rest.strip() or f"{spec.python} (not there)"
        elif word == "python":
            raise _no_python(spec, wrong, rest.strip())
        elif word == "volume":
            raise BootstrapError(
                f"{spec.alias} has no folder {clean_text(rest)}, which is to be its volume.",
                "Mount the volume or make the folder, or correct `volume` in eagledeck.toml.",
                "volume",
                blocks=True,
            )
        elif word == "use":
            facts.python = rest
        elif word == "root":
            facts.root = rest
        elif word == "note":
            facts.notes.append(clean_text(rest))
        elif word == "fail":
            raise _install_failed(spec, facts, rest)
        elif word == "code":
            facts.code = rest
            return True
        elif word == "have":
            facts.have = int(rest) if rest.isdigit() else facts.have
            if have is not None and facts.have >= have:
                return False
        elif word == "need":
            return False


async def _hello(channel: Channel, nonce: str) -> protocol.Hello:
    while await channel.read_until(b"\n") != nonce.encode():
        pass
    line = await channel.read_until(b"\n", protocol.MAX_LINE)
    try:
        hello = protocol.Decoder().decode(line)
    except protocol.ProtocolError as error:
        raise BootstrapError(f"The agent's first words make no sense: {error.message}.", "", "version", True) from None
    if isinstance(hello, protocol.Failure):
        raise BootstrapError(clean_text(hello.message), clean_text(hello.remedy), "root", True)
    if not isinstance(hello, protocol.Hello) or hello.protocol != protocol.PROTOCOL:
        raise BootstrapError(
            "The agent speaks another version of the protocol.", "Update Eagledeck on this laptop.", "version", True
        )
    return protocol.Hello(**scrub(vars(hello)))


def _no_python(spec: HostSpec, wrong: str | None, others: str) -> BootstrapError:
    others = clean_text(others)
    if wrong is not None:
        found = f" Usable or found: {others}." if others else ""
        return BootstrapError(
            f"The Python configured for {spec.alias} cannot be used: {clean_text(wrong)}; 3.9 or newer is needed.",
            f"Correct `python` in eagledeck.toml.{found}",
            "python",
            blocks=True,
        )
    return BootstrapError(
        f"{spec.alias} has no Python 3.9 or newer. Found: {others or 'none'}.",
        'Install one, or name it: python = "/path/to/python3" in eagledeck.toml.',
        "python",
        blocks=True,
    )


def _install_failed(spec: HostSpec, facts: _Facts, detail: str) -> BootstrapError:
    try:
        message = clean_text(str(json.loads(detail)["message"])).rstrip(".")
    except (ValueError, KeyError, TypeError):
        message = "no reason given"
    return BootstrapError(
        f"The code could not be put on {spec.alias}: {message}.",
        f"Make {facts.root} writable, free some space, or choose another root in eagledeck.toml.",
        "install",
    )


def _noise(output: bytes, channel: Channel) -> str:
    status = "" if channel.exit_status is None else f" Exit status {channel.exit_status}."
    shown = output[-NOISE_SHOWN:].strip() or channel.stderr_tail.strip()
    text = clean_text(shown.decode("utf-8", "replace"))
    return status + (f" Its last output was: {text}" if text else "")


__all__ = ["Agent", "RemoteError", "open_shell", "start_agent"]
