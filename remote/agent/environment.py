"""What a stage or service gets of the environment: a short base, what its plan allows and sets, and its GPUs.

Imports the standard library only. A container's ENV is missing from SSH sessions, so allowed names are also looked up
in the environment of process 1.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BASE = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")


def container_environment(path: Path = Path("/proc/1/environ")) -> dict[str, str]:
    """The environment process 1 was started with; {} where it can't be read."""
    try:
        data = path.read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in data.split(b"\0") if b"=" in entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def stage_environment(spec: Mapping[str, Any], ours: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for a spec.json: BASE and ``env_allow`` from ours (or process 1's), then ``env`` and ``gpus``."""
    ours = os.environ if ours is None else ours
    allowed = [str(name) for name in spec.get("env_allow") or ()]
    missing = [name for name in allowed if name not in ours]
    container = container_environment() if missing else {}
    found = {name: ours[name] for name in (*BASE, *allowed) if name in ours}
    found.update({name: container[name] for name in missing if name in container})
    found.setdefault("PATH", os.defpath)
    found["PYTHONUNBUFFERED"] = "1"
    gpus = spec.get("gpus", "all")
    if gpus != "all":
        found["CUDA_VISIBLE_DEVICES"] = ",".join(str(int(index)) for index in gpus)
    found.update({str(name): str(value) for name, value in (spec.get("env") or {}).items()})
    return found
