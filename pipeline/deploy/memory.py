"""How much memory this process may still take: what the host has free, and what its cgroups leave.

In a container the host's MemAvailable says nothing about the limit that ends the process. Standard library only.
"""

from __future__ import annotations

from pathlib import Path

HOST = Path("/")
_UNLIMITED = 1 << 60
"""cgroup v1 writes a huge number where nothing is limited."""


def free_bytes(root: Path = HOST) -> int | None:
    """Bytes that are free, the smallest of what the host and every cgroup above this process say; None where neither
    tells. root: where /proc and /sys are found.
    """
    found = [_available(root / "proc/meminfo")]
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            names = ("memory.max", "memory.current", "")
            found += _groups(root / "sys/fs/cgroup", path, names)
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
            found += _groups(root / "sys/fs/cgroup/memory", path, names)
    return min((one for one in found if one is not None), default=None)


def _groups(mount: Path, path: str, names: tuple[str, str, str]) -> list[int | None]:
    """What the group and those above it leave. A path from outside the container is not there; its mount's root is."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [_left(mount.joinpath(*parts[:depth]), *names) for depth in range(len(parts) + 1)]


def _left(folder: Path, limit: str, used: str, prefix: str) -> int | None:
    allowed, taken = _text(folder / limit).strip(), _text(folder / used).strip()
    if not allowed.isdigit() or not taken.isdigit() or int(allowed) >= _UNLIMITED:
        return None
    # the page cache counts as used, and is given back when memory is wanted
    cache = {f"{prefix}active_file", f"{prefix}inactive_file"}
    lines = (line.split() for line in _text(folder / "memory.stat").splitlines())
    given_back = sum(int(words[1]) for words in lines if len(words) == 2 and words[0] in cache)
    return max(0, int(allowed) - int(taken) + given_back)


def _available(meminfo: Path) -> int | None:
    for line in _text(meminfo).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace")
    except OSError:
        return ""
