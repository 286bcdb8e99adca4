"""Whether what is detached outlives its connection: one is left behind, and looked for from the next connection.

Some hosts end everything of a session when it closes (systemd's KillUserProcesses, wrappers in containers), and nothing
says so beforehand. Imports pipeline.rundir and modules beside it.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

from pipeline.rundir import RunError, process_start
from remote.agent.detach import Ready, detach, start_detached
from remote.agent.members import send
from remote.agent.paths import CODE
from remote.agent.starting import command

LIVES_S = 120.0


def leave(root: Path) -> dict[str, Any]:
    """Starts a process as a supervisor would be; {"pid", "start"}. It ends by itself after LIVES_S. Raises RunError."""
    word = start_detached(command("linger", "--root", str(root)), CODE)
    if not word.get("ok"):
        raise RunError(f"nothing can be detached: {word.get('message', '')}", str(word.get("remedy", "")))
    pid = int(word["pid"])
    return {"pid": pid, "start": process_start(pid) or 0}


def look_for(pid: int, start: int) -> dict[str, Any]:
    """{"alive"}; one that is found is ended."""
    return {"alive": send((pid, start), signal.SIGKILL)}


def linger(root: Path) -> int:
    """The subcommand that is left behind."""
    (root / "telemetry").mkdir(mode=0o700, parents=True, exist_ok=True)
    return detach(_wait, root / "telemetry" / "log")


def _wait(ready: Ready) -> int:
    ready.running()
    time.sleep(LIVES_S)
    return 0
