"""Is the remote layer as quick and as small as it claims? The product's own link, agents and supervisors, measured.

    python -m benchmarks.remote [--rounds 5] [--seconds 20] [--json]

Laptop and host are this machine, with Debian's sshd in between. As root both get a network of their own, which is cut
and joined again; without root those rows are left out. Eight made-up GPUs stand in where there is no real one. Exit
status 0 when it was measured, whatever was seen; 1 when it couldn't be.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.remote import measure
from benchmarks.remote.host import Host, Unmeasurable
from remote.errors import RemoteError

GOALS = {
    "live_first_s": 3.0,
    "live_again_s": 1.0,
    "loss_seen_s": 21.0,
    "back_live_s": 5.0,
    "agent_rss_mb": 30.0,
    "agent_cpu_pct": 1.0,
    "supervisor_above_bare_mb": 6.0,
    "supervisor_cpu_pct": 0.2,
    "wire_bytes_per_s": 2000.0,
}
"""What each is to be at most."""


def loop_ms() -> float:
    """Milliseconds for a million additions in Python: how quick this machine is, and how busy."""
    began = time.perf_counter()
    total = 0
    for number in range(1_000_000):
        total += number
    return 1000 * (time.perf_counter() - began)


def benchmark(rounds: int, seconds: float, folder: Path) -> dict[str, Any]:
    """All figures. Raises Unmeasurable, RemoteError."""

    async def stay(host: Host) -> dict[str, Any]:
        await measure.begin(host)
        found = await measure.standing(host, seconds)
        found["log_flood"] = await measure.flooded(host, min(8.0, seconds))
        if host.cuttable:
            found |= await measure.lost(host)
        await measure.end(host)
        return found

    found: dict[str, Any] = {"cores": os.cpu_count(), "loop_ms": min(loop_ms() for _ in range(5))}
    with Host(folder) as host:
        found |= {"made_up_gpus": host.gpus > 0, "own_network": host.cuttable}
        found |= measure.connecting(host, rounds)
        found |= measure.fetching(host, rounds)
        return found | asyncio.run(stay(host))


def table(found: dict[str, Any]) -> list[str]:
    """Rows of (what, seen, goal)."""
    calm, flood = found["log_flood"]["calm"], found["log_flood"]["flood"]
    memory, used = found["memory_mb"], found["cpu_pct"]
    wanted = {name: f"<= {goal:g}" for name, goal in GOALS.items()}
    rows = [
        ("", "seen", "goal"),
        ("LIVE the first time, s", f"{found['live_first_s']:.2f}", wanted["live_first_s"]),
        ("  beside `cat archive | ssh`", f"{found['live_first_to_copy']:.1f} times", ""),
        ("LIVE with the code there, s", f"{found['live_again_s']:.2f}", wanted["live_again_s"]),
        ("  beside `ssh host true`", f"{found['live_again_to_ssh_true']:.1f} times", ""),
    ]
    rows += [
        ("a file fetched, MB/s", f"{found['fetched_mb_per_s']:.0f}", ""),
        ("  beside `ssh host cat`", f"{found['fetch_to_cat']:.1f} times", ""),
    ]
    if found["own_network"]:
        rows += [
            ("loss of the network seen, s", f"{found['loss_seen_s']:.1f}", wanted["loss_seen_s"]),
            ("  numbers dimmed as old, s", f"{found['stale_seen_s']:.1f}", ""),
            ("LIVE after its return, s", f"{found['back_live_s']:.1f}", wanted["back_live_s"]),
            ("  the worst of them, s", f"{found['back_live_worst_s']:.1f}", ""),
            ("  curve filled after that, s", f"{found['filled_s']:.2f}", ""),
            ("  steps it misses", f"{found['hole_steps']:.0f}", "0"),
        ]
    rows += [
        ("agent with NVML, MB", f"{found['agent_rss_mb']:.1f}", wanted["agent_rss_mb"]),
        ("  second agent (logs), MB", f"{memory['second_agent']:.1f}", ""),
        ("agent, % of a core", f"{found['agent_cpu_pct']:.2f}", wanted["agent_cpu_pct"]),
        ("  second agent (logs), %", f"{used['second_agent']:.2f}", ""),
        ("supervisor above bare, MB", f"{found['supervisor_above_bare_mb']:.1f}", wanted["supervisor_above_bare_mb"]),
        ("supervisor, % of a core", f"{found['supervisor_cpu_pct']:.2f}", wanted["supervisor_cpu_pct"]),
        (f"telemetry of {found['gpus']} GPUs, B/s", f"{found['wire_bytes_per_s']:.0f}", wanted["wire_bytes_per_s"]),
        ("  with TCP's headers, B/s", f"{found['wire_with_headers_bytes_per_s']:.0f}", ""),
        ("with a stage at work, B/s", f"{found['working_wire_bytes_per_s']:.0f}", ""),
        ("  with TCP's headers, B/s", f"{found['working_wire_with_headers_bytes_per_s']:.0f}", ""),
        ("  what is told unasked, B/s", f"{found['working_pushes_bytes_per_s']:.0f}", ""),
        ("log flood, MB/s written", f"{flood['written_mb_per_s']:.0f}", "50"),
        ("  key, ms (without : with)", f"{calm['key_ms']:.1f} : {flood['key_ms']:.1f}", ""),
        ("  key, worst", f"{calm['key_worst_ms']:.0f} : {flood['key_worst_ms']:.0f}", ""),
        ("  heartbeat, worst", f"{calm['heartbeat_worst_ms']:.0f} : {flood['heartbeat_worst_ms']:.0f}", ""),
        ("  telemetry gap, s", f"{calm['telemetry_gap_s']:.1f} : {flood['telemetry_gap_s']:.1f}", ""),
    ]
    lines = [f"{what:30}{seen:>16}   {goal}".rstrip() for what, seen, goal in rows]
    if not found["own_network"]:
        lines.append("left out: loss_seen_s and back_live_s need root and iproute2, for a network that can be cut")
    if not found["made_up_gpus"] and not found["gpus"]:
        lines.append("no GPU and no C compiler: telemetry without GPUs")
    lines.append(f"a million additions in Python take {found['loop_ms']:.0f} ms here, {found['cores']} cores")
    return lines


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.remote", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="connections of each kind")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long processes and the wire are watched")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args(argv)
    try:
        with tempfile.TemporaryDirectory(prefix="eagledeck-remote-") as folder:
            found = benchmark(max(1, options.rounds), max(5.0, options.seconds), Path(folder))
    except (Unmeasurable, RemoteError) as error:
        print(f"remote: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(json.dumps(found) if options.json else "\n".join(table(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
