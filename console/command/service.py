"""`eagledeck service`: the servers that a run's stages need; listed, started without a stage, stopped."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from console.command.astyped import as_typed
from console.command.confirming import confirm
from console.command.refusal import Refusal
from console.command.session import ask_host, find_run
from console.views import service_message, table, text, whole

UP = ("STARTING", "READY", "SILENT", "STOPPING", "LOST", "FAILED")
"""What can be stopped; of one that FAILED, its coming back."""


def list_service(args: argparse.Namespace) -> int:
    target = find_run(args)
    rows = table(ask_host(target, args.accept_host_key, "services", run=target.run).get("services"))
    if args.json:
        print(json.dumps({"services": rows}, indent=2))
    elif rows:
        print("\n".join(service_line(name, table(row)) for name, row in rows.items()))
    else:
        print(f"{target.run} has no services. [services.NAME] in eagledeck.toml describes one before the run is made.")
    return 0


def service_line(name: str, row: Mapping[str, Any]) -> str:
    """`vllm   READY   http://127.0.0.1:8000   used by kimi/generate   restarted 1 time: ended by SIGKILL`."""
    used = row.get("uses")
    parts = [name, text(row.get("state")), text(row.get("url")), service_message(row)]
    parts.append(f"used by {', '.join(map(text, used))}" if isinstance(used, list) and used else "")
    restarts = whole(row.get("restarts"))
    parts.append(f"restarted {restarts} time{'s' if restarts > 1 else ''}: {text(row.get('why'))}" if restarts else "")
    return "   ".join(part for part in parts if part)


def start_service(args: argparse.Namespace) -> int:
    target, name = find_run(args), args.service
    row = ask_host(target, args.accept_host_key, "service_start", run=target.run, service=name)
    if row.get("already"):
        print(f"{name} on {target.host.name} is up already: {service_line(name, row)}")
        return 0
    said = (
        f"Started {name} on {target.host.name}, at {text(row.get('url'))}. "
        f"`eagledeck service {args.run}` says when it is READY, `eagledeck logs {args.run} --service {name}` its log."
    )
    print(as_typed(said, args))
    return 0


def stop_service(args: argparse.Namespace) -> int:
    target, name = find_run(args), args.service
    rows = table(ask_host(target, args.accept_host_key, "services", run=target.run).get("services"))
    used = table(rows.get(name)).get("uses")
    despite = [text(use) for use in used] if isinstance(used, list) else []
    if despite and not args.yes:
        loss = f"Stopping {name} pulls it away under {', '.join(despite)}, which fails then."
        runs = dict.fromkeys(use.partition("/")[0] for use in despite)
        stops = " and ".join(f"`eagledeck stop {run}`" for run in runs)
        confirm(name, loss, f"{stops} saves and ends the stage first.", "stopped")
    asked = {"run": target.run, "service": name, "despite": despite}
    before = ask_host(target, args.accept_host_key, "service_stop", **asked).get("before")
    if before not in UP:
        raise Refusal(f"{name} on {target.host.name} isn't up.", f"`eagledeck service {args.run}` tells more.")
    when = as_typed(f"`eagledeck service {args.run}` says when it is STOPPED.", args)
    print(f"{name} on {target.host.name} was asked to end; {when}")
    return 0
