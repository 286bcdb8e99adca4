"""Doctor's end on the host: the programs that a plan names, and what SSH sessions lack of the container."""

from __future__ import annotations

import os
import sys

import pytest

from pipeline.config import Plan
from pipeline.rundir import RunDir
from remote.agent.doctor import lacking
from remote.agent.programs import engines


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


def test_what_sessions_lack_of_the_container_is_named_without_values():
    container = {
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
    ours = {"PATH": "/usr/bin:/bin", "CUDA_HOME": "/usr/local/cuda", "LD_LIBRARY_PATH": "/other"}
    names, folders = lacking(container, ours)
    assert names == ["HF_HOME", "HF_TOKEN", "HTTPS_PROXY", "LD_LIBRARY_PATH", "NCCL_P2P_DISABLE"]
    assert folders == ["/opt/conda/bin", "/opt/nvidia/bin"]
    assert lacking(container, container) == ([], [])
