"""Why there is no connection: the sentences, the same whichever program made the attempt. Pure functions.

``where`` is HOST:PORT; texts that a host wrote are sanitised before they get here.
"""

from __future__ import annotations

import errno
import re
import shlex

from remote.errors import AuthenticationError, HostConfigError, PassphraseNeeded, UnreachableError
from remote.resolve import Resolved


def where(hop: Resolved) -> str:
    return f"{hop.host}:{hop.port}"


def login_refused(hop: Resolved, keys: str, locked: tuple[str, ...]) -> AuthenticationError:
    """``keys``: which were tried, in sentences; ``locked``: identity files that were not, for want of a passphrase."""
    message = f"{hop.address} refused to log us in. {keys}"
    remedy = (
        f"`ssh -p {hop.port} {hop.user}@{hop.host}`; add your public key to ~/.ssh/authorized_keys there, or "
        "name the right one (identity in eagledeck.toml, IdentityFile in ~/.ssh/config)."
    )
    token = dict(hop.ssh_settings).get("pkcs11provider", "none")
    if token != "none":  # nobody is asked for its PIN here, whichever the backend
        remedy += f" A token's keys: `ssh-add -s {shlex.quote(token)}` asks for its PIN and gives them to your agent."
    if not locked:
        return AuthenticationError(message, f"Try {remedy}")
    files = " ".join(shlex.quote(file) for file in locked)
    return PassphraseNeeded(
        message, f"If a key with a passphrase is the right one: `ssh-add {files}`. Otherwise try {remedy}", locked
    )


def jump_cannot_reach(hop: Resolved, said: str) -> UnreachableError:
    return UnreachableError(f"The jump host cannot reach {where(hop)} ({said}).", "Check ProxyJump.", "refused")


def not_ssh(hop: Resolved) -> UnreachableError:
    return UnreachableError(
        f"{where(hop)} accepts connections but does not speak SSH.", "Check the port: another server has it.", "not-ssh"
    )


def no_common_algorithm(hop: Resolved, said: str) -> HostConfigError:
    return HostConfigError(f"{where(hop)} and we have no algorithm in common: {said}.", "Update its SSH server.")


def no_answer(hop: Resolved) -> UnreachableError:
    return UnreachableError(
        f"{where(hop)} did not answer within {hop.connect_timeout_s:g} s.",
        "Check that the host is up and that the network (VPN, firewall) lets you reach it.",
        "timeout",
    )


def silent_server(hop: Resolved) -> UnreachableError:
    return UnreachableError(
        f"{where(hop)} accepts connections, but no SSH server answered within {hop.connect_timeout_s:g} s.",
        "Check the port (is it another server's?), and whether the host hangs.",
        "timeout",
    )


def login_unfinished(hop: Resolved, login_s: float) -> UnreachableError:
    return UnreachableError(
        f"{where(hop)} did not finish the login within {login_s:g} s.", "It may be overloaded; try again.", "timeout"
    )


def name_unknown(hop: Resolved) -> UnreachableError:
    return UnreachableError(f"The name {hop.host} is not known.", "Check the host's name and your network.", "dns")


def hung_up(hop: Resolved, spoke_ssh: bool, said: str) -> UnreachableError:
    when = f"during the login ({said})." if spoke_ssh else "before it said anything."
    return UnreachableError(
        f"{where(hop)} hung up {when}",
        "It may be starting, limiting connections (MaxStartups, PerSourcePenalties), or not be an SSH server.",
        "closed",
    )


def network_error(error: OSError, hop: Resolved) -> UnreachableError:
    numbers = {error.errno} if error.errno else {int(n) for n in re.findall(r"\[Errno (\d+)\]", str(error))}
    if numbers == {errno.ECONNREFUSED}:
        return UnreachableError(
            f"{where(hop)} refuses connections.",
            "Check the port, and that sshd runs there (a container may have restarted).",
            "refused",
        )
    if numbers & {errno.ETIMEDOUT}:
        return UnreachableError(f"{where(hop)} did not answer.", "Check that the host is up and reachable.", "timeout")
    if numbers & {errno.ECONNRESET, errno.EPIPE}:
        return UnreachableError(f"{where(hop)} hung up.", "It may be starting or limiting connections.", "closed")
    return UnreachableError(f"{where(hop)} cannot be reached: {error.strerror or error}.", "Check your network.")


def proxy_failed(hop: Resolved, said: str, within_s: float | None) -> UnreachableError:
    """``said``: the last words of the ProxyCommand; ``within_s`` is None when it ended by itself."""
    what = "ended" if within_s is None else f"led to no SSH server within {within_s:g} s"
    return UnreachableError(
        f"The ProxyCommand for {where(hop)} {what}" + (f": {said}." if said else "."),
        f"Run it by hand, sign in where it asks for it, then try again: {hop.proxy_command}",
        "closed" if within_s is None else "timeout",
    )
