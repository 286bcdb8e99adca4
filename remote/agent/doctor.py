"""What must be right on a host, checked: each finding says what was seen and, where something is wrong, what to do.

First form: the Pythons, torch where stages need it, the volume, its locks, the clock. Imports pipeline.rundir,
pipeline.config and modules beside it.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.budget import size_text
from pipeline.config import STAGES, Plan
from pipeline.rundir import RunDir, RunError, try_locks
from pipeline.rundir.claims import working
from pipeline.volume import Volume, space, volume_of
from remote.agent.environment import BASE, container_environment
from remote.agent.gpus import GpuReader
from remote.agent.paths import CODE
from remote.agent.trouble import told

PROBE_S = 120.0
CHANNELS = 4
LIBRARIES = ("torch", "transformers", "safetensors", "openai")
_PROBE = """
import importlib, json, sys
found = {"python": sys.version.split()[0]}
for name in %r:
    try:
        module = importlib.import_module(name)
        found[name] = getattr(module, "__version__", "?")
    except Exception as error:
        found[name] = None
        found.setdefault("errors", {})[name] = f"{type(error).__name__}: {error}"[:200]
if found.get("torch"):
    import torch
    found["cuda"] = torch.version.cuda if torch.cuda.is_available() else None
    found["gpus"] = torch.cuda.device_count() if torch.cuda.is_available() else 0
print(json.dumps(found))
"""


def examine(root: Path, run: RunDir | None = None) -> dict[str, Any]:
    """{"findings": [{"name", "ok": bool|None, "value", "message", "remedy"}], "ok"}; ok None: for information."""
    plan = run.plan() if run else None
    volume = volume_of(run, plan) if run and plan else Volume(root)
    findings = [
        *_agent(),
        *_pythons(plan),
        *_volume(volume),
        *_locks(root),
        *_gpus(),
        *_clock(),
        *_environment(plan),
        *_sessions(),
    ]
    return {"findings": findings, "ok": all(finding["ok"] is not False for finding in findings)}


def _finding(name: str, ok: bool | None, value: Any, message: str, remedy: str = "") -> dict[str, Any]:
    return {"name": name, "ok": ok, "value": value, "message": message, "remedy": remedy}


def _agent() -> Iterator[dict[str, Any]]:
    version = platform.python_version()
    good = sys.version_info >= (3, 9)
    yield _finding(
        "agent python",
        good,
        version,
        f"{sys.executable} is Python {version}",
        "" if good else "install Python 3.9 or newer",
    )
    yield _finding("system", None, platform.platform(), f"{platform.platform()}, {os.cpu_count()} processors")


def _pythons(plan: Plan | None) -> Iterator[dict[str, Any]]:
    used: dict[str, list[str]] = {}
    for stage in STAGES:
        python = (plan.stages[stage].python if plan else "") or sys.executable
        used.setdefault(python, []).append(stage)
    for python, stages in used.items():
        where = ", ".join(stages)
        seen, why = probe_python(python)
        remedy = f"install torch into it, or set {stages[0]}.python to a Python that has it"
        if seen is None:
            yield _finding("stage python", False, python, f"{python} ({where}): {why}", remedy)
            continue
        missing = [name for name in ("torch", "transformers", "safetensors") if not seen.get(name)]
        versions = ", ".join(f"{name} {seen.get(name) or 'missing'}" for name in ("python", *LIBRARIES))
        cuda = f"CUDA {seen['cuda']}, {seen['gpus']} GPUs" if seen.get("cuda") else "no CUDA"
        yield _finding(
            "stage python", not missing, seen, f"{python} ({where}): {versions}, {cuda}", remedy if missing else ""
        )


def probe_python(python: str) -> tuple[dict[str, Any] | None, str]:
    """Versions of what stages import in ``python``, or None and why it can't be told."""
    try:
        done = subprocess.run(
            [python, "-c", _PROBE % (LIBRARIES,)], cwd=CODE, capture_output=True, timeout=PROBE_S, check=False
        )
        found = json.loads(done.stdout.decode("utf-8", "replace").splitlines()[-1])
    except FileNotFoundError:
        return None, "there is no such program"
    except subprocess.TimeoutExpired:
        return None, f"importing torch took longer than {PROBE_S:.0f} s"
    except (OSError, ValueError, IndexError) as error:
        return None, f"it doesn't run: {error}"
    return (found, "") if isinstance(found, dict) else (None, "it answers nothing")


def _volume(volume: Volume) -> Iterator[dict[str, Any]]:
    try:
        seen = space(volume)
    except OSError as error:
        yield _finding(
            "volume", False, str(volume.path), f"{volume.path}: {error.strerror}", "mount it, or set volume.path"
        )
        return
    message = f"{volume.path}: {size_text(seen.free)} free of {size_text(seen.capacity)}"
    good = seen.free > volume.reserve and not seen.read_only
    remedy = (
        ""
        if good
        else ("it is read-only: mount it writable" if seen.read_only else "free some space, or lower the reserve")
    )
    yield _finding("volume", good, {"free": seen.free, "total": seen.total}, message, remedy)
    if seen.inodes_free is not None:
        few = seen.inodes_free < 10_000
        yield _finding(
            "inodes",
            not few,
            seen.inodes_free,
            f"{seen.inodes_free:,} files can still be made",
            "delete small files" if few else "",
        )


def _locks(root: Path) -> Iterator[dict[str, Any]]:
    """Two processes: a lock that one holds must be seen and refused by the other."""
    try:
        good = try_locks(root)
    except RunError as error:
        yield _finding("locks", False, None, error.message, error.remedy)
        return
    except OSError as error:
        yield _finding("locks", False, None, *told(error, root))
        return
    if good == working(root):
        decides = "" if good else "; the identity of processes decides instead, which their children don't keep"
    else:
        decides = "; what decides changes once nothing of this root runs and doctor looks again"
    message = f"locks {'hold' if good else 'fail'} between processes on {root}{decides}"
    yield _finding("locks", good, {"work": good}, message, "" if good else "put the root on a local filesystem")


def _gpus() -> Iterator[dict[str, Any]]:
    reader = GpuReader()
    with contextlib.closing(reader):
        seen = reader.read()
    bad = [row for row in seen["gpus"] if row["error"]]
    names = ", ".join(f"{row['index']}: {row['name'] or row['error']}" for row in seen["gpus"])
    yield _finding(
        "gpus", None if not bad else False, len(seen["gpus"]), names or seen["note"], bad[0]["error"] if bad else ""
    )


def _environment(plan: Plan | None, ours: Mapping[str, str] | None = None) -> Iterator[dict[str, Any]]:
    """What the container was started with and an SSH session lacks: names only, since values may be secrets."""
    ours = os.environ if ours is None else ours
    allowed = {name for settings in plan.stages.values() for name in settings.env_allow} if plan else set()
    lacking = sorted(set(container_environment()) - set(ours) - set(BASE) - allowed)
    message = f"{len(lacking)} variables of the container are missing here: {', '.join(lacking)[:400]}"
    yield _finding(
        "environment",
        None,
        lacking,
        message if lacking else "the container has no variable that stages lack",
        f"a stage that needs one gets it by STAGE.env_allow={lacking[0]}" if lacking else "",
    )


def _sessions() -> Iterator[dict[str, Any]]:
    """sshd's limit of sessions on one connection, as its configuration has it; root alone may ask."""
    program = shutil.which("sshd", path="/usr/sbin:/sbin:/usr/local/sbin:" + os.environ.get("PATH", ""))
    try:
        shown = subprocess.run([program or "sshd", "-T"], capture_output=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        shown = b""
    words = next((line.split() for line in shown.lower().splitlines() if line.startswith(b"maxsessions ")), [])
    limit = int(words[1]) if len(words) == 2 and words[1].isdigit() else None
    if limit is None:
        yield _finding("sessions", None, None, "sshd doesn't tell how many sessions one connection may have")
        return
    few = limit < CHANNELS
    yield _finding(
        "sessions",
        not few,
        limit,
        f"sshd allows {limit} sessions on one connection (MaxSessions)",
        f"set MaxSessions to {CHANNELS} or more in sshd_config: logs and files have their own" if few else "",
    )


def _clock() -> Iterator[dict[str, Any]]:
    yield _finding("clock", None, time.time(), time.strftime("the host says %Y-%m-%d %H:%M:%S %Z"))
