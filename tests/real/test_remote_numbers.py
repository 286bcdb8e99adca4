"""`python -m benchmarks.remote` measures every number that the README claims, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.remote.__main__ import GOALS

pytestmark = pytest.mark.real
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(700)
def test_all_numbers_of_the_remote_layer_are_measured(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.remote", "--rounds", "1", "--seconds", "5", "--json"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["own_network"], "this needs root and iproute2"
    assert all(found[name] > 0 for name in GOALS)
    assert found["wire_bytes_per_s"] < found["working_pushes_bytes_per_s"] < found["working_wire_bytes_per_s"]
    assert found["gpus"] == 8 or not found["made_up_gpus"]
    assert found["hole_steps"] == 0
    assert found["log_flood"]["flood"]["followed_mb_per_s"] > found["log_flood"]["calm"]["followed_mb_per_s"]
    assert list(tmp_path.iterdir()) == []
    assert not _naming(tmp_path)


def _naming(folder: Path) -> list[str]:
    """Command lines that name something below ``folder``."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return [line for line in lines if str(folder) in line]
