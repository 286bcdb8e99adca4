"""Who a process is, and which life of the host this is, so that a remembered pid is never mistaken for another.

Linux reads /proc. Elsewhere (macOS) `ps` and `sysctl` answer: start times are in seconds then, and there are no
namespaces. Standard library only.
"""

from __future__ import annotations

import calendar
import functools
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_PROC = sys.platform.startswith("linux")


def incarnation() -> dict[str, Any]:
    """{"boot_id", "pidns", "pid1_start"}: changes when the host boots or the container is started anew."""
    if not _PROC:
        return dict(_boot_session())
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot_id = ""
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = 0
    return {"boot_id": boot_id, "pidns": namespace, "pid1_start": process_start(1)}


def process_start(pid: int) -> int | None:
    """When a process started (Linux: clock ticks after boot; else epoch seconds). None when it is gone or a zombie."""
    if pid <= 0:
        return None
    if not _PROC:
        return _start_from_ps(pid)
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # the command name stands in parentheses and may hold any byte, ')' included
    fields = stat[stat.rfind(b")") + 2 :].split()
    if len(fields) < 20 or fields[0] in (b"Z", b"X", b"x"):
        return None
    return int(fields[19])


def alive(pid: int, start: int | None) -> bool:
    """Whether the process remembered as (pid, start) still lives; `start` None asks for the pid alone."""
    found = process_start(pid)
    return found is not None and (start is None or found == start)


@functools.lru_cache(maxsize=1)
def _boot_session() -> tuple[tuple[str, Any], ...]:
    boot = _output(["sysctl", "-n", "kern.bootsessionuuid"]) or _output(["sysctl", "-n", "kern.boottime"])
    return (("boot_id", boot), ("pidns", 0), ("pid1_start", 0))


def _start_from_ps(pid: int) -> int | None:
    words = _output(["ps", "-o", "state=,lstart=", "-p", str(pid)]).split(None, 1)
    if len(words) != 2 or words[0].startswith("Z"):
        return None
    try:
        return calendar.timegm(time.strptime(words[1], "%a %b %d %H:%M:%S %Y"))
    except ValueError:
        return None


def _output(argv: list[str]) -> str:
    environment = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=5, check=False, env=environment)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
