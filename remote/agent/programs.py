"""The programs that a plan names, looked at: the Pythons of its stages, the engines of its services.

Part of doctor. Imports pipeline.config, pipeline.rundir and modules beside it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.config import STAGES, Plan
from pipeline.rundir import RunDir
from remote.agent.environment import stage_environment
from remote.agent.finding import finding
from remote.agent.paths import CODE
from remote.agent.service_view import define

PROBE_S = 120.0
LIBRARIES = ("torch", "transformers", "safetensors", "openai")
NEEDS = {
    "generate": ("openai",),
    "extract": ("torch", "transformers", "safetensors"),
    "vocab": ("safetensors",),
    "train": ("torch", "safetensors"),
    "deploy": ("torch", "transformers", "safetensors"),
}
"""Of LIBRARIES, what a stage can't do without."""
ENGINES = ("vllm", "sglang")
_PROBE = """
import importlib, importlib.util, json, sys
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


def pythons(plan: Plan | None) -> Iterator[dict[str, Any]]:
    """A finding for each Python that stages run in, with the environment that they get there."""
    used: dict[tuple[str, tuple[str, ...], tuple[tuple[str, str], ...]], list[str]] = {}
    for stage in STAGES:
        settings = plan.stages[stage] if plan else None
        python = (settings.python if settings else "") or sys.executable
        allowed = tuple(settings.env_allow) if settings else ()
        given = tuple(sorted(settings.env.items())) if settings else ()
        used.setdefault((python, allowed, given), []).append(stage)
    for (python, allowed, given), stages in used.items():
        where = ", ".join(stages)
        seen, why = probe_python(python, LIBRARIES, stage_environment({"env_allow": allowed, "env": dict(given)}))
        if seen is None:
            remedy = f"set {stages[0]}.python to a Python that has what the stages need"
            yield finding("stage python", False, python, f"{python} ({where}): {why}", remedy)
            continue
        lacks = {stage: [name for name in NEEDS[stage] if not seen.get(name)] for stage in stages}
        missing = list(dict.fromkeys(name for names in lacks.values() for name in names))
        remedy = ""
        if missing:
            first = next(stage for stage, names in lacks.items() if names)
            remedy = f"install {', '.join(missing)} into it, or set {first}.python to a Python that has them"
        versions = ", ".join(f"{name} {_version(seen, name)}" for name in ("python", *LIBRARIES))
        cuda = f"CUDA {seen['cuda']}, {seen['gpus']} GPUs" if seen.get("cuda") else "no CUDA"
        yield finding("stage python", not missing, seen, f"{python} ({where}): {versions}, {cuda}", remedy)


def _version(seen: dict[str, Any], name: str) -> str:
    """Its version, or why it can't be used: one that is there and doesn't import says so."""
    error = str((seen.get("errors") or {}).get(name, ""))
    if seen.get(name):
        return str(seen[name])
    return "missing" if not error or error.endswith(f"No module named {name!r}") else f"doesn't import ({error})"


def engines(run: RunDir, plan: Plan) -> Iterator[dict[str, Any]]:
    """A finding for each service of a plan: whether its program is there, and its engine can be imported."""
    for name, service in plan.services.items():
        words = define(run, plan, name).command("0")
        spec = {"env_allow": list(service.env_allow), "env": dict(service.env), "gpus": service.gpus}
        environment = stage_environment(spec)
        program = shutil.which(words[0], path=environment.get("PATH"))
        label = f"service {name}"
        if program is None:
            yield finding(
                label,
                False,
                words[0],
                f"service {name}: there is no program {words[0]} on the PATH that it gets",
                f"set services.{name}.command to its whole path, or services.{name}.env to a PATH that has it",
            )
            continue
        engine = next((one for one in ENGINES if any(one in word for word in words)), "")
        python = service.python or _python_of(program)
        if not (engine and python):
            yield finding(label, None, program, f"service {name}: {program}; whether it can serve shows when it starts")
            continue
        seen, why = probe_python(python, (engine, "torch"), environment)
        version = (seen or {}).get(engine)
        why = why or str(((seen or {}).get("errors") or {}).get(engine, "")) or f"{engine} is missing"
        remedy = f"install {engine} into that Python, or set services.{name}.python to one that has it"
        said = f"{engine} {version}" if version else why
        yield finding(label, bool(version), seen, f"service {name}: {python}: {said}", "" if version else remedy)


def probe_python(
    python: str, libraries: tuple[str, ...] = LIBRARIES, environment: dict[str, str] | None = None
) -> tuple[dict[str, Any] | None, str]:
    """Versions of ``libraries`` in ``python``, each imported, or None and why it can't be told."""
    argv = [python, "-c", _PROBE % (libraries,)]
    try:
        done = subprocess.run(argv, cwd=CODE, env=environment, capture_output=True, timeout=PROBE_S, check=False)
        found = json.loads(done.stdout.decode("utf-8", "replace").splitlines()[-1])
    except FileNotFoundError:
        return None, "there is no such program"
    except subprocess.TimeoutExpired:
        return None, f"importing {libraries[0]} took longer than {PROBE_S:.0f} s"
    except (OSError, ValueError, IndexError) as error:
        return None, f"it doesn't run: {error}"
    return (found, "") if isinstance(found, dict) else (None, "it answers nothing")


def _python_of(program: str) -> str:
    """The Python that a program is, or that its first line names; "" for any other program."""
    if "python" in os.path.basename(program):
        return program
    try:
        with Path(program).open("rb") as file:
            first = file.readline(4096)
    except OSError:
        return ""
    words = first[2:].decode("utf-8", "replace").split() if first.startswith(b"#!") else []
    return words[0] if words and "python" in os.path.basename(words[0]) else ""
