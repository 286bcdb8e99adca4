"""`eagledeck doctor` over a real connection."""

from __future__ import annotations

import sys
from typing import Any


def test_a_host_and_a_run_are_checked_from_both_ends(container: Any) -> None:
    container.eagledeck("init", "r1")
    report = container.json("doctor", "box")
    states = {found["name"]: found["state"] for found in report["findings"]}
    assert states["locks"] == states["clock"] == states["sessions"] == states["survival"] == "ok"
    assert states["volume"] == states["agent python"] == states["stage python"] == "ok"
    assert report["ok"] is True
    said = container.eagledeck("doctor", "box").stdout.splitlines()
    assert "ok   What is detached outlives the connection." in said
    assert said[-1].startswith("box: nothing is bad, of ")


def test_what_is_bad_has_a_remedy_and_status_1(container: Any) -> None:
    bare = container.folder / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    bare.chmod(0o755)
    text = container.path.read_text().replace(f'python = "{container.double}"', f'python = "{bare}"')
    container.path.write_text(text)
    container.eagledeck("init", "r1")
    said = container.eagledeck("doctor", "r1", status=1).stdout
    assert "torch missing" in said
    needs = "openai, torch, transformers, safetensors"
    assert f"     -> Install {needs} into it, or set generate.python to a Python that has them." in said
    assert "box: 1 bad, of " in said
