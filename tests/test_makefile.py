"""What `make` says while it makes the environment: one line before the wait, and nothing else that isn't wrong."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# `make test VENV=... ARGS=...` hands its variables on to every make below it, in MAKEFLAGS and in the environment.
ALONE = {"PATH": os.environ["PATH"]}
PYTHON = """#!/bin/sh
echo "$@" >> calls
case "$*" in "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;; esac
"""


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_the_installation_is_announced_in_one_line_and_made_once(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)

    def make() -> str:
        command = ["make", "--no-print-directory", ".venv/.installed", f"PYTHON={python}"]
        done = subprocess.run(command, cwd=tmp_path, env=ALONE, capture_output=True, text=True, check=True, timeout=60)
        assert done.stderr == ""
        return done.stdout

    said = make().splitlines()
    assert len(said) == 1
    assert said[0].startswith("Installing into .venv, once: torch, transformers and the test tools, ")
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[-2] == "-m venv .venv"
    assert calls[-1].startswith("-m pip install --quiet ")
    make()
    assert (tmp_path / "calls").read_text().splitlines() == calls
