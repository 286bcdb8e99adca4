"""Whether the GPU memory of a stage is free: NVML's list of processes, asked in a child, because NVML can hang.

Where NVML numbers processes of another pid namespace (some containers), none of ours is in its list: nothing is waited
for then. Imports modules beside it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from remote.agent.cuda import without_cuda
from remote.agent.paths import CODE

ANSWER_S = 5.0
DRIVERS = ("/dev/nvidiactl", "/proc/driver/nvidia", "/dev/dxg")
"""What a host with NVIDIA's driver has one of; the last in a Linux on Windows."""
LIBRARY = "libnvidia-ml.so.1"


def holding() -> set[int]:
    """Pids that hold memory of a card; empty where NVML is missing, hangs or crashes."""
    if not _may_have_cards():
        return set()
    argv = [sys.executable, "-S", "-E", "-B", "-m", "remote.agent.nvml", "pids"]
    try:
        done = subprocess.run(argv, cwd=CODE, env=without_cuda(), capture_output=True, timeout=ANSWER_S, check=False)
        return {int(pid) for pid in json.loads(done.stdout)} if done.returncode == 0 else set()
    except (OSError, ValueError, TypeError, subprocess.TimeoutExpired):
        return set()


def _may_have_cards() -> bool:
    """Whether there is a driver, or a library of NVML in a place of its own: asking costs a Python start otherwise."""
    places = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    return any(map(os.path.exists, DRIVERS)) or any(
        place and os.path.exists(os.path.join(place, LIBRARY)) for place in places
    )
