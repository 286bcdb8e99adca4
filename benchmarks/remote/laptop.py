"""A laptop that was just opened: JSON on stdin says where to connect, JSON on stdout how long each state took.

A process of its own, as the console is: asyncssh is imported and the archive built in the time that is measured.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from console.collector import Collector
from remote.hostkeys import HostKeyStore
from remote.link import Kind, Link
from remote.resolve import HostSpec


async def connect(spec: HostSpec, state: Path) -> dict[str, Any]:
    """Seconds from entering the link to each of its states."""
    began = time.perf_counter()
    seconds: dict[str, float] = {}
    link = Link(spec, HostKeyStore(state))
    link.on_state(lambda now: seconds.update({now.kind.value: time.perf_counter() - began}))
    async with link, Collector(link, "nothing"):
        seen = await link.wait_for(Kind.LIVE, Kind.BLOCKED, Kind.LOST)
        return {"seconds": dict(seconds), "error": "" if seen.kind is Kind.LIVE else seen.message}


if __name__ == "__main__":
    asked = json.loads(sys.stdin.read())
    asked["spec"]["identity_files"] = tuple(asked["spec"]["identity_files"])
    print(json.dumps(asyncio.run(connect(HostSpec(**asked["spec"]), Path(asked["state"])))))
