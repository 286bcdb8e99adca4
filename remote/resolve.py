"""From what a person calls a host to what a connection needs: `ssh -G` reads ~/.ssh/config, not we.

OpenSSH's own parser knows every token, time suffix and Match; its output is flat. Where there is no `ssh`, only
``[user@]host[:port]`` is understood. Imports the standard library and remote's light modules.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import re
import shlex
import shutil
import signal
import socket
from dataclasses import dataclass, field, replace
from pathlib import Path

from remote.errors import HostConfigError
from remote.keyring import Keyring
from remote.sanitize import clean

SSH_G_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 10.0
MAX_JUMPS = 8
SSH_SETTINGS = (
    "addressfamily", "bindaddress", "bindinterface", "casignaturealgorithms", "ciphers", "gssapiauthentication",
    "gssapiclientidentity", "gssapikexalgorithms", "gssapikeyexchange", "gssapiserveridentity", "gssapitrustdns",
    "ipqos", "kexalgorithms", "macs", "pkcs11provider", "proxyusefdpass", "pubkeyacceptedalgorithms",
    "pubkeyacceptedkeytypes", "pubkeyauthentication", "rekeylimit", "requiredrsasize",
    "securitykeyprovider", "tcpkeepalive",
)  # fmt: skip
"""What the openssh backend takes over from the person's configuration: how to get in, and nothing of what it may do."""

_HOST = re.compile(r"[A-Za-z0-9_.:%-]+")
_USER = re.compile(r"[^\s\x00-\x20\x7f'\"`$;&|<>(){}!\\]+")


@dataclass(frozen=True)
class HostSpec:
    """A host as eagledeck.toml describes it.

    ``alias`` names it on screen and in the host key file; ``ssh`` is what one would give to ``ssh``: an alias of
    ~/.ssh/config or ``[user@]host[:port]``. ``root`` is Eagledeck's folder on the host, absolute or ``~/…``;
    ``python`` the Python that runs the agent ("" looks for one); ``volume`` the volume the runs live on.
    ``port``, ``user`` and ``identity_files`` win over ~/.ssh/config, which ``ssh_config=False`` leaves out.
    ``backend`` is who makes the connection: ``asyncssh`` or ``openssh``, the system's ssh.
    """

    alias: str
    ssh: str
    root: str
    python: str = ""
    volume: str = ""
    port: int = 0
    user: str = ""
    identity_files: tuple[str, ...] = ()
    ssh_config: bool = True
    backend: str = "asyncssh"
    keyring: Keyring = field(default_factory=Keyring, compare=False, repr=False)


@dataclass(frozen=True)
class Resolved:
    """Everything one connection needs. ``name`` is what its host key is pinned under."""

    name: str
    host: str
    port: int
    user: str
    identity_files: tuple[str, ...] = ()
    certificate_files: tuple[str, ...] = ()
    identities_only: bool = False
    agent_path: str = ""
    """Socket of the ssh-agent, "" for none."""
    proxy_command: str = ""
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    jumps: tuple[Resolved, ...] = ()
    """Hosts on the way, the first to connect to first; they have no jumps themselves."""
    notes: tuple[str, ...] = ()
    """What was asked for and is not done, for the person to read."""
    host_key_alias: str = ""
    """What the person's own known_hosts files call it, "" for host and port; only a hint is taken from these."""
    known_hosts_files: tuple[str, ...] = ()
    ssh_settings: tuple[tuple[str, str], ...] = ()
    """Settings that only the openssh backend has a use for, as `ssh -G` printed them."""
    beyond: tuple[str, ...] = ()
    """Settings by which the system's ssh may get in where asyncssh cannot."""
    backend: str = "asyncssh"
    keyring: Keyring = field(default_factory=Keyring, compare=False, repr=False)

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.user}@{host}:{self.port}"

    @property
    def by_hand(self) -> str:
        """How a person tries it: by the name where ~/.ssh/config leads there through other hosts."""
        return f"ssh {self.name}" if self.jumps or self.proxy_command else f"ssh -p {self.port} {self.user}@{self.host}"


async def resolve(spec: HostSpec) -> Resolved:
    """Raises HostConfigError when the description cannot be used."""
    user, host, port = split_target(spec.ssh)
    user, port = spec.user or user, spec.port or port
    for name in ("root", "python", "volume"):
        if any(ord(c) < 32 or ord(c) == 127 for c in getattr(spec, name)):
            raise HostConfigError(f"{name} of host {spec.alias} has a control character in it.", "Take it out.")
    if not spec.root.startswith(("/", "~/")):
        raise HostConfigError(f"root of host {spec.alias} is {spec.root!r}.", "Give an absolute path, or one with ~/.")
    found = await _lookup(spec.alias, user, host, port, spec.ssh_config)
    jumps = tuple(replace(hop, backend=spec.backend, keyring=spec.keyring) for hop in found.jumps)
    found = replace(found, backend=spec.backend, keyring=spec.keyring, jumps=jumps)
    if spec.identity_files:
        files = tuple(str(Path(file).expanduser()) for file in spec.identity_files)
        return replace(found, identity_files=files, identities_only=True)
    return found


def split_target(text: str) -> tuple[str, str, int]:
    """``[user@]host[:port]`` -> (user or "", host, port or 0); IPv6 as ``::1`` or ``[::1]:22``. HostConfigError."""
    user, at, rest = text.strip().rpartition("@")
    match = re.fullmatch(r"\[([^\]]+)\](?::([0-9]{1,9}))?", rest) or re.fullmatch(r"([^:]+)(?::([0-9]{1,9}))?", rest)
    host, port = (match[1], int(match[2] or 0)) if match else (rest, 0)
    if host.startswith("-") or user.startswith("-"):
        raise HostConfigError(f"{text!r} starts with '-', which ssh would take for an option.", "Check the host name.")
    if not _HOST.fullmatch(host) or (at and not _USER.fullmatch(user)):
        raise HostConfigError(f"{text!r} is not a host.", "Write [user@]host[:port], or an alias of ~/.ssh/config.")
    if match and match[2] and not 1 <= port <= 65535:
        raise HostConfigError(f"{text!r} has the port {port}.", "Ports are 1 to 65535.")
    return user, host, port


async def _lookup(name: str, user: str, host: str, port: int, ssh_config: bool, jumped: int = 0) -> Resolved:
    ssh = shutil.which("ssh") if ssh_config else None
    if ssh is None:
        notes = ("There is no ssh command here, so ~/.ssh/config is not read.",) if ssh_config else ()
        return _plain(name, user, host, port, notes)
    argv = [ssh, "-G", *(["-p", str(port)] if port else []), *(["-l", user] if user else []), "--", host]
    settings = parse_settings(await _ask_ssh(argv, host))
    found = from_settings(name, host, settings)
    hops = _first(settings, "proxyjump")
    if hops == "none" or not hops:
        return found
    if jumped >= MAX_JUMPS:
        raise HostConfigError(f"{host} is behind more than {MAX_JUMPS} jump hosts.", "Check ProxyJump for a loop.")
    return replace(found, jumps=await _jumps(hops, jumped))


async def _jumps(hops: str, jumped: int) -> tuple[Resolved, ...]:
    """As ssh does it: the first hop is reached by its own settings, the later ones through the hops before them."""
    chain: list[Resolved] = []
    for number, hop in enumerate(hops.split(",")):
        user, host, port = split_target(hop.strip().removeprefix("ssh://"))
        found = await _lookup("", user, host, port, True, jumped + 1 + number)
        if number == 0:
            chain.extend(found.jumps)
        chain.append(replace(found, name=f"jump:{found.host}:{found.port}", jumps=()))
    return tuple(chain)


async def _ask_ssh(argv: list[str], host: str) -> str:
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # so that what a `Match exec` started can be ended with it
        )
    except OSError as error:
        raise HostConfigError(f"{argv[0]} does not start: {error.strerror}.", "Check the OpenSSH client.") from None
    try:
        async with asyncio.timeout(SSH_G_TIMEOUT_S):
            out, err = await process.communicate()
    except TimeoutError:
        raise HostConfigError(
            f"`ssh -G {host}` did not answer within {SSH_G_TIMEOUT_S:g} s.",
            "A `Match exec` in ~/.ssh/config may be hanging; try the command by hand.",
        ) from None
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode:
        said = clean(err.strip().splitlines()[-1] if err.strip() else b"nothing")
        raise HostConfigError(f"`ssh -G {host}` failed: {said}.", "Correct ~/.ssh/config, or the host name.")
    return out.decode("utf-8", "surrogateescape")


def parse_settings(text: str) -> dict[str, list[str]]:
    """The output of ``ssh -G``: each keyword with its values, in order."""
    settings: dict[str, list[str]] = {}
    for line in text.splitlines():
        keyword, _, value = line.partition(" ")
        settings.setdefault(keyword.lower(), []).append(value.strip())
    return settings


def from_settings(name: str, original: str, settings: dict[str, list[str]]) -> Resolved:
    """The part of ``ssh -G`` that a connection needs; tokens and ``~`` expanded, jumps left out."""
    host = _first(settings, "hostname") or original
    user = _first(settings, "user") or getpass.getuser()
    port = int(_first(settings, "port") or 22)
    tokens = {"h": host, "n": original, "p": str(port), "r": user, "u": getpass.getuser(), "%": "%"}
    tokens |= {"d": str(Path.home()), "i": str(os.getuid()), "l": socket.gethostname()}
    tokens["L"], tokens["k"] = tokens["l"].partition(".")[0], _first(settings, "hostkeyalias") or original
    proxy = _first(settings, "proxycommand")
    timeout = _first(settings, "connecttimeout")
    return Resolved(
        name=name,
        host=host,
        port=port,
        user=user,
        identity_files=tuple(_path(file, tokens) for file in settings.get("identityfile", []) if file != "none"),
        certificate_files=tuple(_path(file, tokens) for file in settings.get("certificatefile", []) if file != "none"),
        identities_only=_first(settings, "identitiesonly") == "yes",
        agent_path=_agent(_first(settings, "identityagent"), tokens),
        proxy_command="" if proxy in ("", "none") else _expand(proxy, tokens),
        connect_timeout_s=float(timeout) if timeout.isdigit() and int(timeout) else CONNECT_TIMEOUT_S,
        notes=_ignored(settings),
        host_key_alias=_first(settings, "hostkeyalias"),
        known_hosts_files=tuple(
            _path(file, tokens)
            for keyword in ("userknownhostsfile", "globalknownhostsfile")
            for file in shlex.split(_first(settings, keyword))
            if file != "none"
        ),
        ssh_settings=tuple((word, value) for word in SSH_SETTINGS for value in settings.get(word, ()) if value),
        beyond=_beyond(settings),
    )


def _beyond(settings: dict[str, list[str]]) -> tuple[str, ...]:
    beyond = []
    if _first(settings, "pkcs11provider") not in ("", "none"):
        beyond.append("PKCS11Provider")
    if _first(settings, "securitykeyprovider") not in ("", "none", "internal"):
        beyond.append("SecurityKeyProvider")
    ticket = os.environ.get("KRB5CCNAME") or os.path.exists(f"/tmp/krb5cc_{os.getuid()}")
    if _first(settings, "gssapiauthentication") == "yes" and ticket:  # some distributions have it on for everyone
        beyond.append("GSSAPIAuthentication")
    return tuple(beyond)


def _ignored(settings: dict[str, list[str]]) -> tuple[str, ...]:
    notes = []
    if _first(settings, "stricthostkeychecking") in ("no", "off", "false", "accept-new"):
        notes.append("StrictHostKeyChecking is not followed: a new host key is always shown and asked about.")
    if _first(settings, "forwardagent") not in ("", "no"):
        notes.append("ForwardAgent is not followed: the host could use your keys.")
    return tuple(notes)


def _plain(name: str, user: str, host: str, port: int, notes: tuple[str, ...]) -> Resolved:
    folder = Path.home() / ".ssh"
    files = tuple(str(folder / file) for file in ("id_ed25519", "id_ecdsa", "id_rsa"))
    agent = os.environ.get("SSH_AUTH_SOCK", "")
    return Resolved(name, host, port or 22, user or getpass.getuser(), files, agent_path=agent, notes=notes)


def _first(settings: dict[str, list[str]], keyword: str) -> str:
    return settings.get(keyword, [""])[0]


def _expand(text: str, tokens: dict[str, str]) -> str:
    return re.sub(r"%(.)", lambda match: tokens.get(match[1], match[0]), text)


def _path(text: str, tokens: dict[str, str]) -> str:
    fields = shlex.split(text) if text.startswith('"') else [text]
    return str(Path(_expand(os.path.expandvars(fields[0] if fields else ""), tokens)).expanduser())


def _agent(value: str, tokens: dict[str, str]) -> str:
    if value in ("", "SSH_AUTH_SOCK"):
        return os.environ.get("SSH_AUTH_SOCK", "")
    if value == "none":
        return ""
    return os.environ.get(value[1:], "") if value.startswith("$") else _path(value, tokens)
