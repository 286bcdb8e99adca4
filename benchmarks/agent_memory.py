"""What the agent takes of the host's memory, with its NVML child and the driver's own library where there are GPUs.

    python -m benchmarks.agent_memory [--seconds 30] [--json]

The agent is started as the product starts it, through the embedded SSH server: a container without sshd will do, and
so will a host without a GPU (then there is no NVML child). Beside it: a bare interpreter, and one that has done no more
than `pynvml.nvmlInit()` and asked every card once. PSS, in MB of 10^6 bytes. The goal is 30 MB.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.remote.footprint import family, pss_mb
from benchmarks.remote.host import write_verifier
from pipeline.config import Plan, VerifierPlan
from remote.hostkeys import HostKey, HostKeyStore
from remote.link import Kind, Link
from remote.loopback import serve
from remote.resolve import HostSpec

GOAL_MB = 30.0
CONNECT_S = 60.0
SETTLE_S = 5.0
BARE = "print(flush=True); input()"
PLAIN = """
import pynvml
pynvml.nvmlInit()
cards = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
for card in cards:
    pynvml.nvmlDeviceGetMemoryInfo(card), pynvml.nvmlDeviceGetPowerUsage(card)
    pynvml.nvmlDeviceGetUtilizationRates(card), pynvml.nvmlDeviceGetTemperature(card, 0)
print(flush=True); input()
"""


def alone_mb(program: str) -> float | None:
    """PSS of a Python that has done this much; None when it can't."""
    argv = [sys.executable, "-B", "-c", program]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None and process.stdout is not None
        ready = process.stdout.readline()
        found = pss_mb([process.pid]) if ready else None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    return found


async def agent_mb(folder: Path, seconds: float) -> dict[str, Any]:
    """Medians over `seconds` of telemetry at 1 Hz. TimeoutError when there is no connection."""
    server = await serve(folder / "server")
    address = server.address
    pins = HostKeyStore(folder / "laptop")
    pins.pin("here", HostKey.parse(address.pin))
    spec = HostSpec(
        "here",
        f"{address.host}:{address.port}",
        str(folder / "root"),
        user=address.user,
        identity_files=(address.identity,),
        python=sys.executable,
        ssh_config=False,
    )
    pushes: list[dict[str, Any]] = []
    try:
        async with Link(spec, pins) as link:
            link.subscribe(lambda name, data: pushes.append(data) if name == "host" else None)
            async with asyncio.timeout(CONNECT_S):
                await link.wait_for(Kind.LIVE)
            agent = link.session.agent.hello.pid
            plan = Plan(verifier=VerifierPlan(str(write_verifier(folder)), "made up"))
            await link.request("create", name="quiet", plan=plan.to_json())
            await link.watch("quiet")
            await asyncio.sleep(SETTLE_S)
            whole: list[float] = []
            own: list[float] = []
            for _ in range(max(1, round(seconds))):
                await asyncio.sleep(1.0)
                whole.append(pss_mb(family(agent)))
                own.append(pss_mb([agent]))
    finally:
        await server.close()
    gpus = pushes[-1].get("gpus") or [] if pushes else []
    return {
        "agent_mb": statistics.median(whole),
        "agent_itself_mb": statistics.median(own),
        "gpus": [str(gpu.get("name")) for gpu in gpus],
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agent_memory", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30.0, help="how long the agent is watched")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="eagledeck-") as folder:
        found = asyncio.run(agent_mb(Path(folder), options.seconds))
    found |= {"bare_mb": alone_mb(BARE), "plain_nvml_mb": alone_mb(PLAIN), "goal_mb": GOAL_MB}
    if options.json:
        print(json.dumps(found))
        return 0
    child = found["agent_mb"] - found["agent_itself_mb"]
    print(f"agent and child    {found['agent_mb']:6.1f} MB   goal {GOAL_MB:g}")
    print(f"  the agent        {found['agent_itself_mb']:6.1f} MB")
    print(f"  its NVML child   {child:6.1f} MB")
    print(f"bare interpreter   {found['bare_mb']:6.1f} MB")
    plain = found["plain_nvml_mb"]
    print("plain NVML: no driver here" if plain is None else f"plain NVML client  {plain:6.1f} MB")
    print(f"GPUs: {', '.join(found['gpus']) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
