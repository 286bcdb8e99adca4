"""Whether the GPU memory of a stage is free: NVML's list of processes, asked in a child, because NVML can hang.

Where NVML numbers processes of another pid namespace (some containers), none of ours is in its list: nothing is waited
for then. Imports modules beside it.
"""

from __future__ import annotations

import json
import subprocess
import sys

from remote.agent.cuda import without_cuda
from remote.agent.paths import CODE

ANSWER_S = 5.0


def holding() -> set[int]:
    """Pids that hold memory of a card; empty where NVML is missing, hangs or crashes."""
    argv = [sys.executable, "-S", "-E", "-B", "-m", "remote.agent.nvml", "pids"]
    try:
        done = subprocess.run(argv, cwd=CODE, env=without_cuda(), capture_output=True, timeout=ANSWER_S, check=False)
        return {int(pid) for pid in json.loads(done.stdout)} if done.returncode == 0 else set()
    except (OSError, ValueError, TypeError, subprocess.TimeoutExpired):
        return set()
