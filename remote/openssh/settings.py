"""The configuration file that the system's ssh gets from us: every hop with the same rules, and nothing read beside it.

`ssh -F FILE` leaves out ~/.ssh/config and /etc/ssh/ssh_config; what of them decides how to get in (`ssh -G`) is copied
into the hop's block. ssh's own -J would apply the person's files to the hops, so each hop is a ProxyCommand of ours
that names the same file. Pure functions.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from remote.connection import KEEPALIVE_COUNT, host_key_algorithms
from remote.errors import HostConfigError
from remote.hostkeys import HostKey
from remote.resolve import Resolved

EVERYWHERE = f"""\
Host *
 BatchMode yes
 StrictHostKeyChecking yes
 GlobalKnownHostsFile none
 UpdateHostKeys no
 CheckHostIP no
 VerifyHostKeyDNS no
 HashKnownHosts no
 ForwardAgent no
 ForwardX11 no
 PermitLocalCommand no
 RequestTTY no
 ClearAllForwardings yes
 Tunnel no
 AddKeysToAgent no
 Compression no
 PasswordAuthentication no
 HostbasedAuthentication no
 ControlMaster no
 ControlPath none
 ControlPersist no
 ServerAliveCountMax {KEEPALIVE_COUNT}
 LogLevel DEBUG1
"""


def log_of(folder: Path, number: int) -> Path:
    """Where the ssh of a hop says what it does; what servers and ProxyCommands say never gets there."""
    return folder / f"hop-{number}.log"


def write_settings(
    folder: Path, ssh: str, chain: Sequence[Resolved], pins: Sequence[HostKey | None], keepalive_s: float, probe: bool
) -> list[str]:
    """Writes ``config`` and ``known`` into ``folder``; the command that connects to the last of ``chain``.

    The connection listens on ``control``. ``probe``: it only gets as far as the last one's host key, which it writes
    to ``offered``, and offers no key of ours. HostConfigError when a setting cannot be written.
    """
    known = "".join(f"hop-{number} {pin.line}\n" for number, pin in enumerate(pins) if pin)
    (folder / "known").write_text(known)
    (folder / "config").write_text(_config(folder, ssh, chain, pins, keepalive_s, probe), "utf-8", "surrogateescape")
    last = len(chain) - 1
    return [ssh, "-F", str(folder / "config"), "-E", str(log_of(folder, last)), "-N", "-T", f"hop-{last}"]


def _config(
    folder: Path, ssh: str, chain: Sequence[Resolved], pins: Sequence[HostKey | None], keepalive_s: float, probe: bool
) -> str:
    blocks = []
    for number, hop in enumerate(chain):
        lines = [
            ("HostName", _literal(hop.host)),
            ("Port", str(hop.port)),
            ("User", _quoted(hop.user)),
            ("HostKeyAlias", f"hop-{number}"),
            ("HostKeyAlgorithms", ",".join(host_key_algorithms(pins[number]))),
        ]
        if probe and number == len(chain) - 1:
            lines += [
                ("StrictHostKeyChecking", "accept-new"),
                ("UserKnownHostsFile", _literal(str(folder / "offered"))),
                ("PubkeyAuthentication", "no"),
                ("PreferredAuthentications", "publickey"),
                ("IdentityAgent", "none"),
            ]
        else:
            lines += [("UserKnownHostsFile", _literal(str(folder / "known"))), *_login(hop)]
        if number == len(chain) - 1 and not probe:
            lines += [("ControlMaster", "yes"), ("ControlPath", _literal(str(folder / "control")))]
        if number:
            through = [ssh, "-F", str(folder / "config"), "-E", str(log_of(folder, number - 1))]
            command = shlex.join(through).replace("%", "%%") + f" -W '[%h]:%p' hop-{number - 1}"
            lines.append(("ProxyCommand", command))
        elif hop.proxy_command:
            lines.append(("ProxyCommand", _one_line(hop.proxy_command).replace("%", "%%")))
        lines.append(("ServerAliveInterval", str(max(1, round(keepalive_s)))))
        # what passes a descriptor is the person's ProxyCommand, never `ssh -W`
        unfit = {"proxyusefdpass"} if number else set()
        lines += [(word, _one_line(value)) for word, value in hop.ssh_settings if word not in unfit]
        blocks.append(f"Host hop-{number}\n" + "".join(f" {word} {value}\n" for word, value in lines))
    return "".join(blocks) + EVERYWHERE


def _login(hop: Resolved) -> list[tuple[str, str]]:
    settings = dict(hop.ssh_settings)
    methods = "gssapi-with-mic,publickey" if settings.get("gssapiauthentication") == "yes" else "publickey"
    files = [("IdentityFile", _literal(file)) for file in hop.identity_files] or [("IdentityFile", "none")]
    return [
        ("PreferredAuthentications", methods),
        ("IdentityAgent", _literal(hop.agent_path) if hop.agent_path else "none"),
        ("IdentitiesOnly", "yes" if hop.identities_only else "no"),
        *files,
        *(("CertificateFile", _literal(file)) for file in hop.certificate_files),
    ]


def _literal(value: str) -> str:
    """For settings in which ssh replaces %-tokens."""
    return _quoted(value.replace("%", "%%"))


def _quoted(value: str) -> str:
    value = _one_line(value)
    if value and not any(c.isspace() or c in "\"'\\#=" for c in value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _one_line(value: str) -> str:
    if any(ord(c) < 32 or ord(c) == 127 for c in value):
        raise HostConfigError(f"{value!r} has a control character in it.", "Correct ~/.ssh/config or eagledeck.toml.")
    return value
