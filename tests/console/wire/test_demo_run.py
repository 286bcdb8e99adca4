"""The demo as processes: its server, its run on disk, a console that is killed, and headless from end to end."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.rundir import RunDir


@pytest.fixture
def box(container: Any) -> Any:
    """Only for its environment and for ending what is left: the demo brings a server and a root of its own."""
    return container


@pytest.fixture
def folder(box: Any) -> Iterator[Path]:
    return box.folder / "demo"


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def open_and_kill(
    box: Any, folder: Path, seen: Callable[[], Any], wait_for: Callable[..., Any], key: bytes = b""
) -> str:
    """Opens the demo's console until `seen` is true, then leaves it with `key` or kills it. What it drew."""
    primary, secondary = os.openpty()
    terminal = {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    console = box.process(
        "demo", "--keep", str(folder), env=terminal, stdin=secondary, stdout=secondary, stderr=secondary
    )
    os.close(secondary)
    os.set_blocking(primary, False)
    drawn = bytearray()

    def look() -> Any:
        with contextlib.suppress(OSError):  # nothing new, or nobody at the other end any more
            while piece := os.read(primary, 1 << 16):
                drawn.extend(piece)
        return b"LIVE" in drawn and seen()

    def ended() -> bool:
        over = console.poll() is not None
        look()  # what it says at the end has to be read
        return over

    wait_for(look, 60)
    if key:
        os.write(primary, key)
        wait_for(ended)
    else:
        console.kill()
    console.wait(10)
    os.close(primary)
    return drawn.decode("utf-8", "replace")


def test_a_killed_console_leaves_the_run_and_the_next_one_finds_it(
    box: Any, folder: Path, wait_for: Callable[..., Any]
) -> None:
    root = folder / "volume" / "eagledeck"
    made = lambda: (root / "demo" / "plan" / "0001.json").exists()  # noqa: E731
    assert "generate" in open_and_kill(box, folder, made, wait_for)
    port = json.loads((folder / "demo.json").read_text())["ssh_port"]
    wait_for(lambda: not answers(port))
    identity = (root / "demo" / "run.json").read_bytes()
    prompts = (root / "files" / "demo-train.jsonl").read_text().splitlines()
    assert len(prompts) == RunDir.open(root / "demo").plan().params("generate").max_samples  # type: ignore[union-attr]
    open_and_kill(box, folder, lambda: True, wait_for)
    assert json.loads((folder / "demo.json").read_text())["ssh_port"] == port
    assert (root / "demo" / "run.json").read_bytes() == identity
    assert sorted(path.name for path in root.iterdir() if (path / "run.json").exists()) == ["demo"]


def test_any_command_works_with_the_demo_that_is_open_and_with_one_that_was_left(
    box: Any, folder: Path, wait_for: Callable[..., Any]
) -> None:
    toml = folder / "eagledeck.toml"
    made = lambda: (folder / "volume" / "eagledeck" / "demo" / "plan" / "0001.json").exists()  # noqa: E731
    pending = lambda: "generate  PENDING" in box.eagledeck("--config", str(toml), "status", "demo").stdout  # noqa: E731
    drawn = open_and_kill(box, folder, lambda: made() and pending(), wait_for, key=b"q")
    assert f"--keep {folder}` comes back to it" in drawn
    assert f"--config {toml} status demo`" in drawn
    port = json.loads((folder / "demo.json").read_text())["ssh_port"]
    assert not answers(port)
    assert pending()
    wait_for(lambda: not box.ours("remote.loopback"))


def test_a_demo_that_the_host_refuses_fails_with_one_sentence(
    box: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("console.demo.prepare._verifier_folder", lambda _: folder / "no-verifier")
    said = box.eagledeck("demo", "--headless", "--keep", str(folder), status=1)
    assert "no-verifier" in said.stderr
    assert len(said.stderr.strip().splitlines()) == 1


@pytest.mark.real
@pytest.mark.timeout(600)
def test_a_tiny_demo_goes_through_all_five_stages_and_leaves_nothing(
    box: Any, tmp_path: Path, wait_for: Callable[..., Any]
) -> None:
    numbers = tmp_path / "numbers.json"
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    command = box.process(
        "demo",
        "--headless",
        "--samples",
        "40",
        "--json",
        str(numbers),
        env={"TMPDIR": str(temporary)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, errors = command.communicate()
    assert (command.returncode, errors) == (0, ""), (out, errors)
    stages = ["generate", "extract", "vocab", "train", "deploy"]
    assert [line.split()[:2] for line in out.splitlines()[:5]] == [[name, "DONE"] for name in stages]
    measured = json.loads(numbers.read_text())
    assert measured["ok"] is True
    assert measured["stages"]["generate"]["counts"]["samples"] == 40
    assert measured["acceptance_length"] >= 1
    agreement = measured["greedy_agreement"]
    assert agreement["different"] == 0
    assert agreement["identical"] + agreement["near_ties"] == agreement["prompts"]
    assert not list(temporary.glob("eagledeck-demo-*"))
    wait_for(lambda: not any(str(temporary).encode() in line for line in command_lines()), 90)


def command_lines() -> list[bytes]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                found.append((entry / "cmdline").read_bytes())
    return found
