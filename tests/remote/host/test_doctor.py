"""Doctor's end on the host: the programs that a plan names, and what SSH sessions lack of the container."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pipeline.config import Plan
from pipeline.rundir import RunDir
from remote.agent.environment import container_environment
from remote.agent.programs import engines, pythons
from remote.agent.surroundings import environment, passing


def with_service(host, **service):
    raw = host.plan().to_json()
    raw["services"]["engine"] = {"command": ["{python}", "-m", "vllm"], **service}
    run = RunDir.create(host.root, "r1", Plan.from_json(raw))
    (found,) = engines(run, run.plan())
    return found


@pytest.fixture
def program(tmp_path):
    """Writes an executable script into a folder of its own, with this first line."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def write(name, first):
        path = folder / name
        path.write_text(f"#!{first}\n")
        path.chmod(0o755)
        return path

    return write


@pytest.fixture
def python(tmp_path):
    """A Python that has an engine, or one whose engine doesn't import."""

    def make(engine_text, name="python3"):
        library = tmp_path / f"library-{name}"
        library.mkdir()
        (library / "vllm.py").write_text(engine_text)
        path = tmp_path / name
        path.write_text(f'#!/bin/sh\nPYTHONPATH="{library}" exec {sys.executable} "$@"\n')
        path.chmod(0o755)
        return str(path)

    return make


def test_an_engine_is_imported_where_its_service_runs(host, python):
    found = with_service(host, python=python("__version__ = '0.99'"))
    assert found["ok"] is True
    assert "vllm 0.99" in found["message"]
    assert found["remedy"] == ""


def test_an_engine_that_does_not_import_says_why(host, python):
    found = with_service(host, python=python("raise ImportError('libcudart.so.12: cannot open shared object file')"))
    assert found["ok"] is False
    assert "libcudart.so.12: cannot open" in found["message"]
    assert "services.engine.python" in found["remedy"]


@pytest.fixture
def broken(tmp_path):
    """A Python whose openai can't be imported, for a module that it needs itself."""
    library = tmp_path / "broken"
    library.mkdir()
    (library / "openai.py").write_text("import httpx_of_another_age")
    path = tmp_path / "python-broken"
    path.write_text(f'#!/bin/sh\nPYTHONPATH="{library}" exec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_a_library_that_a_stage_cant_do_without_is_bad_and_says_why(broken):
    raw = Plan().to_json()
    raw["stages"]["generate"]["python"] = broken
    raw["stages"]["vocab"]["python"] = broken + "-gone"
    found = {row["message"].partition(")")[0].partition("(")[2]: row for row in pythons(Plan.from_json(raw))}
    bad = found["generate"]
    assert bad["ok"] is False
    assert "openai doesn't import (ModuleNotFoundError: No module named 'httpx_of_another_age')" in bad["message"]
    assert bad["remedy"] == "install openai into it, or set generate.python to a Python that has them"
    assert found["vocab"]["ok"] is False and "there is no such program" in found["vocab"]["message"]
    assert found["extract, train, deploy"]["ok"] is True


def test_a_python_is_looked_at_in_the_environment_that_a_stage_gets(tmp_path, monkeypatch):
    library = tmp_path / "shadow"
    library.mkdir()
    (library / "safetensors.py").write_text("raise RuntimeError('the session shows through')")
    monkeypatch.setenv("PYTHONPATH", str(library))
    (found,) = pythons(Plan())
    assert found["ok"] is True, found["message"]
    raw = Plan().to_json()
    raw["stages"]["train"]["env"] = {"PYTHONPATH": str(library)}
    others, train = pythons(Plan.from_json(raw))
    assert (others["ok"], train["ok"]) == (True, False)
    assert "(train)" in train["message"] and "the session shows through" in train["message"]


def test_the_python_of_a_command_is_read_from_its_first_line(host, program, python):
    path = program("vllm", python("__version__ = '0.98'"))
    found = with_service(host, command=["vllm", "serve"], env={"PATH": f"{path.parent}:{os.environ['PATH']}"})
    assert found["ok"] is True
    assert "vllm 0.98" in found["message"]


def test_a_program_that_is_not_there_is_named(host):
    found = with_service(host, command=["no-such-engine", "serve"])
    assert found["ok"] is False
    assert "there is no program no-such-engine" in found["message"]
    assert "services.engine.command" in found["remedy"]


def test_a_program_that_is_no_known_engine_is_only_noted(host, program):
    path = program("server", "/bin/sh")
    assert with_service(host, command=[str(path)])["ok"] is None


CONTAINER = {
    "PATH": "/opt/conda/bin:/usr/bin:/opt/nvidia/bin",
    "HF_HOME": "/data/hf",
    "HF_TOKEN": "secret",
    "NCCL_P2P_DISABLE": "1",
    "CUDA_HOME": "/usr/local/cuda",
    "LD_LIBRARY_PATH": "/usr/local/cuda/lib64",
    "HTTPS_PROXY": "http://proxy",
    "HOSTNAME": "box",
    "PWD": "/",
}


def test_what_sessions_lack_of_the_container_is_named_without_values():
    ours = {"PATH": "/usr/bin:/bin", "CUDA_HOME": "/usr/local/cuda", "LD_LIBRARY_PATH": "/other", "HOSTNAME": "x"}
    missing, other, path = environment(CONTAINER, ours, "r1", ("HF_HOME",))
    assert missing["value"] == ["HF_TOKEN", "HTTPS_PROXY", "NCCL_P2P_DISABLE"]
    assert "`eagledeck set r1 train.env_allow=HF_HOME,HF_TOKEN,HTTPS_PROXY,NCCL_P2P_DISABLE`" in missing["remedy"]
    assert other["value"] == ["LD_LIBRARY_PATH"]
    assert path["value"] == ["/opt/conda/bin", "/opt/nvidia/bin"]
    assert "secret" not in str([missing, other, path])


def test_the_remedy_gives_a_stage_what_its_session_lacks(host, tmp_path):
    """What doctor proposes is what the environment of a stage is made by."""
    environ = tmp_path / "environ"
    environ.write_bytes(b"\0".join(f"{name}={value}".encode() for name, value in CONTAINER.items()) + b"\0")
    assert container_environment(environ) == CONTAINER
    (whole,) = environment(container_environment(environ), CONTAINER)
    assert (whole["ok"], whole["value"]) == (True, [])
    run = host.run(changes={"train.env_allow": "HF_TOKEN,HTTPS_PROXY"})
    assert run.plan().stages["train"].env_allow == ("HF_TOKEN", "HTTPS_PROXY")


def test_an_environment_that_cant_be_read_is_only_noted():
    (found,) = environment({}, {})
    assert found["ok"] is None


MOUNTS = """\
21 1 0:20 / / rw,relatime - overlay overlay rw,lowerdir=/a
22 21 0:21 / /proc rw - proc proc rw
30 21 259:1 / /data rw,relatime shared:1 - xfs /dev/nvme1n1 rw
31 30 0:30 / /data/my\\040scratch rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/data/eagledeck", []), ("/database", ["overlay"]), ("/data/my scratch/x", ["tmpfs"]), ("/", ["overlay"])],
)
def test_a_volume_that_goes_with_the_container_is_noted(path, kind):
    assert [found["value"] for found in passing(Path(path), MOUNTS)] == kind
