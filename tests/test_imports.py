"""The rules of who may import whom, and what must stay light, checked on the real interpreter and the real source."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("torch", "transformers", "textual", "asyncssh", "numpy", "openai", "safetensors")
HOST_ONLY_STDLIB = [
    "remote/protocol.py",
    "remote/unpack.py",
    "pipeline/config.py",
    "pipeline/command.py",
    "pipeline/budget.py",
    "pipeline/forecast.py",
    "pipeline/fields.py",
    "pipeline/geometry.py",
    "pipeline/counts.py",
    "pipeline/fate.py",
    "pipeline/hostpath.py",
    "pipeline/stages.py",
    "pipeline/volume.py",
    *(str(path.relative_to(ROOT)) for path in (ROOT / "remote" / "agent").rglob("*.py")),
    *(str(path.relative_to(ROOT)) for path in (ROOT / "pipeline" / "rundir").rglob("*.py")),
]


def sources(room: str) -> list[Path]:
    return sorted(path for path in (ROOT / room).rglob("*.py") if "__pycache__" not in path.parts)


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import in a file, at any depth; relative ones resolved."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"


def offenders(room: str, *forbidden: str) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sources(room)
        for line, name in imported(path)
        if any(name == bad or name.startswith(bad + ".") for bad in forbidden)
    ]


@pytest.mark.parametrize("module", ["console", "remote", "pipeline.rundir", "pipeline.budget", "pipeline.config"])
def test_light_modules_load_nothing_heavy(module: str) -> None:
    program = f"import sys, {module}; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


@pytest.mark.parametrize("module", ["console.command", "console.collector", "console.app"])
def test_the_console_never_loads_torch_or_the_wire_at_import(module: str) -> None:
    late = ("torch", "transformers", "asyncssh", "numpy")
    program = f"import sys, {module}; print(*[name for name in {late!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


def test_a_supervisor_loads_neither_plans_nor_lineage() -> None:
    late = ("pipeline.config", "pipeline.rundir.lineage", "hashlib", "shutil", "uuid")
    program = f"import sys, remote.agent.supervisor; print(*[name for name in {late!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-S", "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


def test_every_name_of_the_run_directory_is_there_whatever_was_imported_before() -> None:
    names = "from pipeline import rundir; import pipeline.rundir.start, pipeline.rundir.states; "
    program = names + "print(*[name for name in rundir.__all__ if type(getattr(rundir, name)) is type(rundir)])"
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


def test_pipeline_knows_nothing_of_the_console_or_the_wire() -> None:
    assert offenders("pipeline", "console", "remote", "textual", "asyncssh") == []


def test_remote_knows_nothing_of_the_console_and_no_stage() -> None:
    assert offenders("remote", "console", "textual", "torch") == []
    light = ("rundir", "config", "budget", "forecast", "geometry", "counts", "fate", "hostpath", "volume")
    allowed = {f"pipeline.{name}" for name in light}
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sources("remote")
        for line, name in imported(path)
        if name.split(".")[0] == "pipeline" and not any(name == a or name.startswith(a + ".") for a in allowed)
    ]
    assert found == []


def test_the_console_uses_only_the_light_modules_of_pipeline() -> None:
    heavy = ("generate", "extract", "vocab", "train", "deploy", "drafter", "engine", "shards")
    assert offenders("console", *(f"pipeline.{name}" for name in heavy)) == []


def test_textual_stays_in_the_console() -> None:
    assert offenders("remote", "textual") + offenders("pipeline", "textual") == []


def test_torch_stays_in_the_pipeline() -> None:
    assert offenders("console", "torch", "transformers") + offenders("remote", "torch", "transformers") == []


def test_the_protocol_imports_nothing_of_ours() -> None:
    ours = ("console", "remote", "pipeline", "themes")
    path = ROOT / "remote" / "protocol.py"
    assert [name for _, name in imported(path) if name.split(".")[0] in ours] == []


def test_remote_init_is_empty() -> None:
    assert (ROOT / "remote" / "__init__.py").read_text() == ""


def test_host_side_code_is_standard_library_only() -> None:
    ours = {"pipeline", "remote"}
    guarded = {"psutil", "pynvml"}
    found = [
        f"{name}:{line} imports {module}"
        for name in HOST_ONLY_STDLIB
        for line, module in imported(ROOT / name)
        if module.split(".")[0] not in ours | guarded | set(sys.stdlib_module_names)
    ]
    assert found == []


def test_host_side_code_runs_on_python_3_9() -> None:
    command = [str(Path(sys.executable).with_name("vermin")), "-t=3.9-", "--no-tips", "--violations"]
    files = [str(ROOT / name) for name in HOST_ONLY_STDLIB]
    result = subprocess.run([*command, *files], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


def test_nothing_but_the_demo_knows_that_its_host_is_this_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sources("console")
        if "demo" not in path.relative_to(ROOT).parts
        for line, name in imported(path)
        if name.startswith("remote.loopback")
    ]
    assert found == []
