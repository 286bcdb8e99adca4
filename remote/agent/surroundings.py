"""What surrounds a run's processes: the container's environment that SSH sessions lack, the filesystem of the volume.

Part of doctor; pure but for what reads /proc. Standard library and modules beside it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from remote.agent.finding import finding

MATTER = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "TRITON_CACHE_DIR")
FAMILIES = ("CUDA_", "HF_", "HUGGING", "NCCL_", "NVIDIA_", "TORCH", "TRANSFORMERS_", "VLLM_", "SGL", "OMP_", "GLOO_")
PROXIES = ("http_proxy", "https_proxy", "no_proxy")
"""Variables that decide whether stages and engines find their libraries, models, GPUs and each other."""
_OCTAL = re.compile(r"\\([0-7]{3})")
PASSING = {"overlay": "the container's own layer, and goes with the container", "tmpfs": "memory, and goes with it"}


def environment(
    container: Mapping[str, str], ours: Mapping[str, str], run: str = "", allowed: tuple[str, ...] = ()
) -> Iterator[dict[str, Any]]:
    """What process 1 has (``container``) and this session hasn't. Names alone but for PATH: some values are secrets.

    ``allowed`` is train's env_allow of the run, whose names come from process 1 where the session lacks them.
    """
    if not container:
        yield finding("environment", None, None, "the environment of process 1 can't be read; sessions may lack some")
        return
    counts = [name for name in sorted(container) if _counts(name)]
    missing = [name for name in counts if name not in ours and name not in allowed]
    other = [name for name in counts if name in ours and ours[name] != container[name]]
    there = ours.get("PATH", "").split(os.pathsep)
    folders = [folder for folder in container.get("PATH", "").split(os.pathsep) if folder and folder not in there]
    if missing:
        listed = ",".join([*allowed, *missing])
        yield finding(
            "environment",
            None,
            missing,
            f"the container sets {', '.join(missing)}, which SSH sessions, and so the stages, don't have",
            f"let each stage that needs them have them: `eagledeck set {run or 'RUN'} train.env_allow={listed}`",
        )
    if other:
        yield finding(
            "environment, other values",
            None,
            other,
            f"SSH sessions have other values than the container for {', '.join(other)}",
            "env_allow takes the session's; the container's, where they are wanted, have to stand in a stage's env",
        )
    if folders:
        path = os.pathsep.join(folders)
        yield finding(
            "path",
            None,
            folders,
            f"the container's PATH has {path}, which SSH sessions don't have",
            "name programs there by their whole path (python, command), or set PATH in env",
        )
    if not (missing or other or folders):
        yield finding("environment", True, [], "SSH sessions have what counts of the container's environment")


def _counts(name: str) -> bool:
    return name in MATTER or name.startswith(FAMILIES) or name.lower() in PROXIES


def passing(path: Path, mounts: str) -> Iterator[dict[str, Any]]:
    """A finding when ``path`` lies on what doesn't outlive the container; ``mounts`` is the text of mountinfo."""
    where, kind = "", ""
    for line in mounts.splitlines():
        words = line.split()
        if len(words) < 10 or "-" not in words:
            continue
        point = _OCTAL.sub(lambda found: chr(int(found[1], 8)), words[4])
        inside = str(path) == point or str(path).startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(where):
            where, kind = point, words[words.index("-") + 1]
    if kind in PASSING:
        message = f"{path} is on {kind}: it lies in {PASSING[kind]}"
        yield finding(
            "volume lasts", None, kind, message, "name a mounted volume in eagledeck.toml if runs are to last"
        )
