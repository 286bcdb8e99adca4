"""Processor and memory of the host, from /proc and the container's own limits. Standard library only.

A value that can't be told is None: macOS has neither file, and gets only the load average.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

CGROUP = Path("/sys/fs/cgroup")


class LoadReader:
    """``read()`` gives {"cpu_pct", "cpus", "mem_used", "mem_total", "load"}; cpu_pct since the last call."""

    def __init__(self, proc: Path = Path("/proc"), cgroup: Path = CGROUP) -> None:
        self._proc, self._cgroup = proc, cgroup
        self._before: tuple[int, int] | None = None

    def read(self) -> dict[str, Any]:
        used, total = self._memory()
        return {
            "cpu_pct": self._cpu(),
            "cpus": os.cpu_count(),
            "mem_used": used,
            "mem_total": total,
            "load": round(os.getloadavg()[0], 2),
        }

    def _cpu(self) -> float | None:
        try:
            first = (self._proc / "stat").read_text().split("\n", 1)[0].split()[1:9]
        except OSError:
            return None
        ticks = [int(field) for field in first]
        # user nice system idle iowait irq softirq steal (proc(5))
        now = sum(ticks), ticks[3] + ticks[4]
        before, self._before = self._before, now
        if before is None or now[0] <= before[0]:
            return None
        return round(100 * (1 - (now[1] - before[1]) / (now[0] - before[0])), 1)

    def _memory(self) -> tuple[int | None, int | None]:
        """(used, total) in bytes: the container's limit where it has one below the host's memory."""
        try:
            lines = (self._proc / "meminfo").read_text().splitlines()
        except OSError:
            return None, None
        fields = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
        total, free = fields.get("MemTotal"), fields.get("MemAvailable")
        used = total - free if total and free is not None else None
        limit = _number(self._cgroup / "memory.max")
        current = _number(self._cgroup / "memory.current")
        if limit is not None and current is not None and (total is None or limit < total):
            return max(0, current - _stat(self._cgroup / "memory.stat", "inactive_file")), limit
        return used, total


def out_of_memory_kills() -> int:
    """How often the container's memory limit has killed something so far (cgroup v2); 0 where that can't be told."""
    return _stat(CGROUP / "memory.events", "oom_kill")


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _stat(path: Path, name: str) -> int:
    try:
        for line in path.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    except (OSError, ValueError):
        pass
    return 0
