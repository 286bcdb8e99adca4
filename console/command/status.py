"""`eagledeck status`: one run in full, or a line for every run of every host."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from console.collector import Collector
from console.command.astyped import as_typed
from console.command.printing import status_json, status_lines
from console.command.refusal import Refusal
from console.command.session import Target, connected, find_host, find_run, read_config, run_async
from console.config import Config, HostConfig
from console.snapshot import Snapshot
from pipeline.config import STAGES
from remote.errors import RemoteError

if TYPE_CHECKING:
    from remote.link import Link


def status(args: argparse.Namespace) -> int:
    if args.run is None:
        return _hosts(args)
    if args.host:
        raise Refusal("--host lists all runs of a host.", "Leave RUN or --host out; HOST:RUN names a run on a host.", 2)
    target = find_run(args)
    return run_async(_run(target, args))


async def _run(target: Target, args: argparse.Namespace) -> int:
    async with (
        connected(target.state, target.host, args.accept_host_key) as link,
        Collector(link, target.run) as collector,
    ):
        await collector.filled()
        snapshot = collector.snapshot
        if not snapshot.stages:
            raise await _not_there(link, target, snapshot)
    print(
        json.dumps(status_json(snapshot), indent=2) if args.json else as_typed("\n".join(status_lines(snapshot)), args)
    )
    return 0


async def _not_there(link: Link, target: Target, snapshot: Snapshot) -> Exception:
    """Why the host tells nothing about the run: mostly because it is only in the file."""
    rows = await link.request("runs")
    if any(row.get("name") == target.run for row in rows):
        said = snapshot.conductor.message or f"{target.host.name} says nothing about {target.run}."
        return RemoteError(said, snapshot.conductor.remedy)
    if target.config is not None:
        remedy = f"`eagledeck init {target.run}` makes it."
    else:
        remedy = f"`eagledeck status --host {target.host.name}` lists those there are."
    return RemoteError(f"There is no run {target.run} on {target.host.name} yet.", remedy)


def _hosts(args: argparse.Namespace) -> int:
    config = read_config(args)
    hosts = [find_host(config, args.host)] if args.host else list(config.hosts.values())
    rows, failures = [], []
    for host in hosts:
        try:
            found = run_async(_runs(config, host, args.accept_host_key))
        except (RemoteError, Refusal) as error:
            failures.append({"host": host.name, "error": error.message, "remedy": error.remedy})
        else:
            rows += [{"host": host.name, **row} for row in found]
    if args.json:
        print(json.dumps({"runs": rows, "unreachable": failures}, indent=2))
    else:
        print(as_typed("\n".join(_row_lines(rows, failures)), args))
    return 1 if failures else 0


async def _runs(config: Config, host: HostConfig, accept: str | None) -> list[dict[str, Any]]:
    async with connected(config, host, accept) as link:
        reply = await link.request("runs")
        return [dict(row) for row in reply if isinstance(row, Mapping)] if isinstance(reply, list) else []


def _row_lines(rows: list[dict[str, Any]], failures: list[dict[str, str]]) -> list[str]:
    lines = []
    for row in rows:
        stages = row.get("stages")
        stale = row.get("stale") or ()
        through = row.get("through")
        ahead = STAGES[STAGES.index(through) + 1 :] if through in STAGES else ()
        states = "  ".join(
            f"{name} {_state(state)}{' STALE' if name in stale else ''}"
            for name, state in (stages.items() if isinstance(stages, dict) else ())
            if name not in ahead or _state(state) != "PENDING"
        )
        lines.append(f"{row['host']}:{row.get('name')}   {row.get('state')}   {states}".rstrip())
        message = str(row.get("message") or "").partition("\n")[0]
        if message and row.get("state") not in ("DONE", "RUNNING"):
            lines.append(f"    {message}")
    for failure in failures:
        lines.append(f"{failure['host']}   not reached: {failure['error']} {failure['remedy']}".rstrip())
    return lines or ["No runs yet. `eagledeck init RUN` makes one."]


def _state(value: object) -> str:
    return str(value.get("state")) if isinstance(value, Mapping) else str(value)
