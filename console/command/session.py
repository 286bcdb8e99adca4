"""From what was typed to a live link: which run on which host, and the question about a host key that is new.

A verb makes one attempt to connect and says what went wrong; only the console and `logs -f` wait and come back.
"""

from __future__ import annotations

import argparse
import asyncio
import difflib
import sys
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from console.command.refusal import Refusal
from console.config import FILE, Config, HostConfig, RunConfig, find_config, load_config, state_folder
from remote.errors import HostKeyChanged, HostKeyUnknown, PassphraseNeeded, RemoteError

if TYPE_CHECKING:
    from remote.link import Link

CONNECT_S = 180.0
"""An attempt has limits of its own, the longest where a person has to touch a token or to sign in."""
SECTION_S = 15.0
_LOG_BYTES = 1 << 20

Result = TypeVar("Result")


@dataclass(frozen=True)
class Target:
    """A run on a host. `config` is None for HOST:RUN, a run that this file doesn't describe."""

    state: Config
    host: HostConfig
    run: str
    config: RunConfig | None


def read_config(args: argparse.Namespace) -> Config:
    config = load_config(find_config(args.config))
    if config.path is None:
        from console.demo.settings import default_place

        demo = default_place().config
        other = f"that of the demo is taken with --config {demo}" if demo.is_file() else "`eagledeck demo` needs none"
        raise Refusal(
            f"There is no {FILE} here, and none in the user configuration.",
            f"`eagledeck init` writes one to start from; {other}.",
        )
    return config


def find_run(args: argparse.Namespace) -> Target:
    """The run that `args.run` names: one of the file, or HOST:RUN. Raises Refusal with the nearest spelling."""
    config = read_config(args)
    host, colon, run = str(args.run).partition(":")
    if colon:
        return Target(config, find_host(config, host), run, None)
    found = config.runs.get(args.run)
    if found is None:
        near = difflib.get_close_matches(args.run, [*config.runs, *args.instead_of], n=1)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise Refusal(
            f"{args.run} is {'neither a verb nor a' if args.instead_of else 'no'} run of {config.path}.",
            f"{hint}Its runs: {_names(config.runs)}. A run that it doesn't describe is named HOST:RUN.",
        )
    return Target(config, config.hosts[found.host], found.name, found)


def find_where(args: argparse.Namespace) -> Target:
    """`args.where`: a run, or a host alone; then `run` is empty."""
    config = read_config(args)
    if args.where in config.hosts and args.where not in config.runs:
        return Target(config, config.hosts[args.where], "", None)
    if ":" not in args.where and args.where not in config.runs:
        near = difflib.get_close_matches(args.where, [*config.hosts, *config.runs], n=1)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise Refusal(
            f"{args.where} is neither a host nor a run of {config.path}.",
            f"{hint}Its hosts: {_names(config.hosts)}. Its runs: {_names(config.runs)}.",
        )
    args.run = args.where
    return find_run(args)


def find_host(config: Config, name: str) -> HostConfig:
    if name not in config.hosts:
        raise Refusal(f"{config.path} has no host {name}.", f"Its hosts: {_names(config.hosts)}.")
    return config.hosts[name]


def _names(found: Iterable[str]) -> str:
    return ", ".join(found) or "none"


def make_link(config: Config, host: HostConfig, accept_host_key: str | None = None) -> Link:
    """The link to a host, not yet entered; host keys are pinned in the configuration's state folder."""
    from remote.hostkeys import HostKeyStore
    from remote.link import Link

    async def accept(unknown: HostKeyUnknown) -> bool:
        return unknown.fingerprint == accept_host_key

    return Link(host.to_spec(), HostKeyStore(config.state), accept)


@asynccontextmanager
async def connected(config: Config, host: HostConfig, accept_host_key: str | None) -> AsyncIterator[Link]:
    """A link that is LIVE. Raises RemoteError when it can't be made; what only a person knows is asked for."""
    from console.demo.server import at_hand
    from remote.link import Kind

    host, up = at_hand(config, host)
    async with up, make_link(config, host, accept_host_key) as link:
        while True:  # a jump host has a question of its own
            try:
                await require_live(link)
                break
            except HostKeyUnknown as error:
                _confirm(error, accept_host_key)
                link.confirm_host_key(error.fingerprint)
            except HostKeyChanged as error:
                link.replace_host_key(error.fingerprint, _typed_confirmation(error))
            except PassphraseNeeded as error:
                _unlock(link, error)
                link.retry_now()
            await link.wait_for(Kind.CONNECTING, Kind.BOOTSTRAP, Kind.LIVE)
        yield link


async def require_live(link: Link) -> None:
    """Returns when the link is LIVE; raises RemoteError as soon as one attempt has failed."""
    from remote.link import Kind

    try:
        async with asyncio.timeout(CONNECT_S):
            state = await link.wait_for(Kind.LIVE, Kind.BLOCKED, Kind.BACKOFF)
    except TimeoutError:
        raise RemoteError(f"{link.spec.alias} did not answer within {CONNECT_S:.0f} s.", "Try again.") from None
    if state.kind is not Kind.LIVE:
        raise state.error or RemoteError(f"{link.spec.alias}: {state.message}", state.remedy)


async def run_section(link: Link, run: str) -> Mapping[str, Any]:
    """What the host says about a run now: the section of a push. Raises RemoteError."""
    said: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()

    def take(name: str, data: Mapping[str, Any]) -> None:
        if name == "run" and data.get("run") == run and not said.done():
            said.set_result(data)

    forget = link.subscribe(take)
    try:
        async with asyncio.timeout(SECTION_S):
            await link.watch(run)
            return await said
    except TimeoutError:
        raise RemoteError(f"{link.spec.alias} says nothing about {run}.", "Try again.") from None
    finally:
        forget()


def _confirm(error: HostKeyUnknown, accept: str | None) -> None:
    """Returns when a person has confirmed the key at the terminal; raises Refusal otherwise."""
    if accept is not None:
        raise Refusal(
            f"{error.name} has the host key {error.fingerprint}, not {accept}.",
            "Someone may be in between, or the fingerprint is another host's.",
        )
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Refusal(
            error.message,
            f"Compare it with what the provider or the host's console shows, then repeat with "
            f"`--accept-host-key {error.fingerprint}`",
        )
    print(f"{error.name} is new. Its host key is\n\n    {error.kind} {error.fingerprint}\n", file=sys.stderr)
    if error.hint:
        print(error.hint, file=sys.stderr)
    print("Compare it with what the provider or the host's console shows.", file=sys.stderr)
    print("Type yes to trust it from now on: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != "yes":
        raise Refusal("The host key was not trusted; nothing was done.")


def _typed_confirmation(error: HostKeyChanged) -> str:
    """What a person at the terminal typed to replace a changed key; raises Refusal when it is not the phrase."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Refusal(
            error.message,
            "Someone may be in between. If the container was made anew, compare the new fingerprint with what the "
            "provider or the host's console shows, then repeat this in a terminal: it asks before it replaces the old.",
        )
    print(f"{error.message}\n\nSomeone may be in between. If the container was made anew,", file=sys.stderr)
    print("compare the new fingerprint with what the provider or the host's console shows.", file=sys.stderr)
    print(f"Type {error.phrase} to trust the new key from now on: ", end="", file=sys.stderr, flush=True)
    typed = sys.stdin.readline().strip()
    if typed != error.phrase:
        raise Refusal("The host key was not replaced; nothing was done.")
    return typed


def _unlock(link: Link, error: PassphraseNeeded) -> None:
    """Opens an identity file, for as long as this process lives, with what a person types; raises ``error`` where that
    can't be: without a terminal, or where the system's ssh connects, which takes keys from files and agents only.
    """
    if link.spec.backend == "openssh" or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise error
    from getpass import getpass

    file = error.files[0]
    print(f"{error.message}\n", file=sys.stderr)
    passphrase = getpass(f"Passphrase of {file} (nothing: give up): ")
    if not passphrase:
        raise error
    link.spec.keyring.unlock(file, passphrase)


def run_async(work: Coroutine[Any, Any, Result]) -> Result:
    """Runs a verb's coroutine. What libraries log goes to a file: the terminal may be showing the console."""
    with _logged(state_folder() / "eagledeck.log"):
        return asyncio.run(work)


@contextmanager
def _logged(path: Path) -> Iterator[None]:
    """Warnings and errors of all loggers go to `path`, which begins anew beyond a megabyte; where it can't be written,
    nowhere.
    """
    import logging

    logging.raiseExceptions = False  # or a full disk would be reported on the terminal
    handler: logging.Handler
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        full = path.exists() and path.stat().st_size > _LOG_BYTES
        handler = logging.FileHandler(path, mode="w" if full else "a", encoding="utf-8", delay=True)
    except OSError:
        handler = logging.NullHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.setLevel(logging.WARNING)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()


def ask_host(target: Target, accept_host_key: str | None, op: str, **args: Any) -> dict[str, Any]:
    """One operation of the protocol on the target's host; its result, which is an object."""

    async def work() -> dict[str, Any]:
        async with connected(target.state, target.host, accept_host_key) as link:
            reply = await link.request(op, **args)
            return reply if isinstance(reply, dict) else {"result": reply}

    return run_async(work())
