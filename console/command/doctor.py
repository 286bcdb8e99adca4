"""`eagledeck doctor`: what is wrong on a host, each with a remedy. What only this end can see is seen from here."""

from __future__ import annotations

import argparse
import json
from typing import Any

from console.command.session import Target, connected, find_where, run_async

DOCTOR_S = 600.0
"""Importing torch alone may take minutes on a cold network volume."""
SKEW_S = 5.0


def doctor(args: argparse.Namespace) -> int:
    target = find_where(args)
    findings = run_async(_examine(target, args.accept_host_key))
    good = all(finding.get("ok") is not False for finding in findings)
    if args.json:
        print(json.dumps({"host": target.host.name, "ok": good, "findings": findings}, indent=2))
    else:
        for finding in findings:
            print(line(finding))
    return 0 if good else 1


def line(finding: dict[str, Any]) -> str:
    """`WRONG  what was seen`, and below it what to do."""
    mark = {True: "ok", False: "WRONG", None: "note"}[finding.get("ok")]
    remedy = finding.get("remedy")
    return f"{mark:>5}  {finding.get('message', '')}" + (f"\n       {remedy}" if remedy else "")


async def _examine(target: Target, accept_host_key: str | None) -> list[dict[str, Any]]:
    run = {"run": target.run} if target.run else {}
    async with connected(target.state, target.host, accept_host_key) as link:
        report = await link.request("doctor", deadline_s=DOCTOR_S, **run)
        left = await link.request("survivor")
        findings = [*report["findings"], skew(link.state.skew_s)]
    # the connection is closed by now, and with it the session that left somebody behind
    async with connected(target.state, target.host, accept_host_key) as link:
        found = await link.request("survivor", pid=left["pid"], start=left["start"])
    return [*findings, survival(bool(found["alive"]))]


def skew(seconds: float | None) -> dict[str, Any]:
    """The host's clock against ours."""
    if seconds is None:
        message, ok = "the host's clock could not be compared with this machine's", None
    else:
        ok = abs(seconds) <= SKEW_S
        message = f"the host's clock is {abs(seconds):.1f} s {'ahead of' if seconds > 0 else 'behind'} this machine's"
    remedy = "set the clock of the one that is wrong: ages on the screen are off by that much" if ok is False else ""
    return {"name": "clock skew", "ok": ok, "value": seconds, "message": message, "remedy": remedy}


def survival(alive: bool) -> dict[str, Any]:
    """Whether a detached process outlived the connection that had started it."""
    message = "what is detached goes on when the connection ends" if alive else "processes end with their connection"
    remedy = (
        ""
        if alive
        else "the host ends what sessions leave: `loginctl enable-linger` there, or KillUserProcesses=no in its logind"
    )
    return {"name": "survival", "ok": alive, "value": alive, "message": message, "remedy": remedy}
