"""What the person's own known_hosts say about a new key, in files as OpenSSH's tools write them."""

from __future__ import annotations

import base64
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from remote.hostkeys import HostKey
from remote.known_hosts import hint
from remote.resolve import Resolved

HOP = Resolved("box", "Gpu.example", 22, "root")


def key(seed: int) -> HostKey:
    blob = b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + bytes([seed]) * 32
    return HostKey.parse("ssh-ed25519 " + base64.b64encode(blob).decode())


def with_file(path: Path, text: str, hop: Resolved = HOP) -> Resolved:
    path.write_text(text)
    return replace(hop, known_hosts_files=(str(path.with_name("absent")), str(path)))


@pytest.mark.parametrize(
    ("names", "hop"),
    [
        ("gpu.example", HOP),
        ("other,gpu.example,10.0.0.1", HOP),
        ("*.example,!bad.example", HOP),
        ("[gpu.example]:2200", replace(HOP, port=2200)),
        ("alias", replace(HOP, port=2200, host_key_alias="alias")),
    ],
)
def test_the_same_key_is_said_to_be_known(tmp_path: Path, names: str, hop: Resolved) -> None:
    file = tmp_path / "known_hosts"
    found = with_file(file, f"# mine\n\nbroken line\n{names} {key(1).line} a comment\n", hop)
    assert hint(found, key(1)) == f"{file} has the same key for it."
    assert hint(found, key(2)) == f"Beware: {file} has another ssh-ed25519 key for it."


@pytest.mark.parametrize("hop", [HOP, replace(HOP, port=2200)])
def test_hashed_names_are_found(tmp_path: Path, hop: Resolved) -> None:
    file = tmp_path / "known_hosts"
    name = "gpu.example" if hop.port == 22 else "[gpu.example]:2200"
    found = with_file(file, f"{name} {key(1).line}\n", hop)
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", file], check=True, capture_output=True)
    assert "gpu" not in file.read_text()
    assert hint(found, key(1)) == f"{file} has the same key for it."


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"other.example {key(1).line}\n",
        f"gpu.example,!gpu.* {key(1).line}\n",
        f"[gpu.example]:2200 {key(1).line}\n",
        f"@cert-authority gpu.example {key(1).line}\n",
        "|1|x|y ssh-ed25519 AAAA\n",
        "gpu.example ssh-ed25519 AAAA\n",
    ],
)
def test_what_is_not_about_the_host_says_nothing(tmp_path: Path, text: str) -> None:
    assert hint(with_file(tmp_path / "known_hosts", text), key(1)) == ""


def test_a_revoked_key_is_not_to_be_confirmed(tmp_path: Path) -> None:
    found = with_file(tmp_path / "known_hosts", f"* {key(1).line}\n@revoked * {key(1).line}\n")
    assert hint(found, key(1)).startswith("DO NOT CONFIRM IT")
