"""`eagledeck doctor`: what must be right on a host, checked from both ends; a remedy for each finding."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from console.command.astyped import as_typed
from console.command.session import Target, connected, find_where, run_async
from console.format import sentence
from console.views import table

if TYPE_CHECKING:
    from remote.checkup import Finding

HOST_S = 600.0
"""The host imports torch and engines, each of which may take a minute from a cold disk."""
MARK = 5


def doctor(args: argparse.Namespace) -> int:
    target = find_where(args)
    found = run_async(_examine(target, args.accept_host_key))
    good = all(one.ok is not False for one in found)
    if args.json:
        print(json.dumps({"findings": [_json(one) for one in found], "ok": good}, indent=2))
    else:
        print(as_typed("\n".join(line for one in found for line in finding_lines(one)), args))
        bad = sum(one.ok is False for one in found)
        print(f"{target.host.name}: {'nothing is bad' if good else f'{bad} bad'}, of {len(found)} findings")
    return 0 if good else 1


async def _examine(target: Target, accept_host_key: str | None) -> list[Finding]:
    """The host's findings, then those of both ends, for which the first connection must be gone."""
    from console.demo.server import at_hand
    from remote.checkup import Finding, check_wire, clock
    from remote.hostkeys import HostKeyStore

    run: dict[str, Any] = {"run": target.run} if target.run else {}
    async with connected(target.state, target.host, accept_host_key) as link:
        said = table(await link.request("doctor", deadline_s=HOST_S, **run)).get("findings")
        skew_s = link.state.skew_s
    rows = said if isinstance(said, list) else []
    found = [Finding.of_wire(row) for row in rows if isinstance(row, Mapping) and row.get("name") != "clock"]
    host, up = at_hand(target.state, target.host)
    async with up:
        return [*found, clock(skew_s), *await check_wire(host.to_spec(), HostKeyStore(target.state.state))]


def finding_lines(one: Finding) -> list[str]:
    """`bad  …` and, indented, what to do."""
    lines = [f"{one.state:<{MARK}}{sentence('', one.message)}"]
    return [*lines, f"{'':<{MARK}}-> {sentence('', one.remedy)}"] if one.remedy else lines


def _json(one: Finding) -> dict[str, Any]:
    return {
        "name": one.name,
        "state": one.state,
        "message": one.message,
        "remedy": one.remedy,
        "value": one.value,
    }
