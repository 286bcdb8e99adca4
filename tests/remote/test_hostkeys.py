"""The pins: fingerprints as OpenSSH prints them, nothing silent, two writers, a damaged file."""

from __future__ import annotations

import base64
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from remote.errors import HostConfigError, HostKeyChanged, HostKeyUnknown, RemoteError
from remote.hostkeys import HostKey, HostKeyStore

# `ssh-keygen -lf` on GitHub's published ed25519 host key
GITHUB = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
GITHUB_FINGERPRINT = "SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU"


def key(seed: int) -> HostKey:
    blob = b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + bytes([seed]) * 32
    return HostKey.parse("ssh-ed25519 " + base64.b64encode(blob).decode())


def test_the_fingerprint_is_the_published_one() -> None:
    parsed = HostKey.parse(GITHUB + " a comment")
    assert parsed.fingerprint == GITHUB_FINGERPRINT
    assert parsed.line == GITHUB


@pytest.mark.parametrize("line", ["", "ssh-ed25519", "ssh-ed25519 !!!", GITHUB.replace("ed25519", "rsa", 1)])
def test_what_is_no_key_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        HostKey.parse(line)


def test_an_unknown_key_is_unknown_until_it_is_pinned(tmp_path: Path) -> None:
    store = HostKeyStore(tmp_path / "state")
    with pytest.raises(HostKeyUnknown) as caught:
        store.check("box", key(1))
    assert caught.value.fingerprint == key(1).fingerprint and caught.value.fingerprint in str(caught.value)
    store.pin("box", key(1))
    store.check("box", key(1))
    with pytest.raises(HostKeyUnknown):
        store.check("box2", key(1))


def test_a_changed_key_shows_both_fingerprints_and_stays_refused(tmp_path: Path) -> None:
    store = HostKeyStore(tmp_path)
    store.pin("box", key(1))
    for attempt in (store.check, store.pin):
        with pytest.raises(HostKeyChanged) as caught:
            attempt("box", key(2))
        assert key(1).fingerprint in caught.value.message and key(2).fingerprint in caught.value.message
    assert store.get("box") == key(1)


@pytest.mark.parametrize("typed", ["", "yes", "BOX", "box ", key(2).fingerprint])
def test_a_pin_is_replaced_only_when_the_name_is_typed(tmp_path: Path, typed: str) -> None:
    store = HostKeyStore(tmp_path)
    store.pin("box", key(1))
    with pytest.raises(RemoteError, match="kept"):
        store.replace("box", key(2), typed)
    assert store.get("box") == key(1)
    store.replace("box", key(2), "box")
    assert store.get("box") == key(2)


def test_the_file_is_private_and_other_pins_survive(tmp_path: Path) -> None:
    store = HostKeyStore(tmp_path / "state")
    store.pin("a", key(1))
    store.pin("jump:10.0.0.1:22", key(2))
    store.replace("a", key(3), "a")
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700
    assert store.path.read_text() == f"a {key(3).line}\njump:10.0.0.1:22 {key(2).line}\n"
    assert sorted(os.listdir(store.path.parent)) == ["host_keys", "host_keys.lock"]


@pytest.mark.parametrize("name", ["", "two words", "tab\there", "line\nbreak", "#hash", "esc\x1b"])
def test_a_name_that_would_break_the_file_is_refused(tmp_path: Path, name: str) -> None:
    store = HostKeyStore(tmp_path)
    with pytest.raises(HostConfigError):
        store.pin(name, key(1))
    assert not store.path.exists()


@pytest.mark.parametrize("damage", [b"box ssh-ed25519 AAAA\n", b"box\n", b"\xff\xfe\n"])
def test_a_damaged_file_trusts_nothing_and_says_where(tmp_path: Path, damage: bytes) -> None:
    store = HostKeyStore(tmp_path)
    store.pin("other", key(1))
    store.path.write_bytes(store.path.read_bytes() + damage)
    with pytest.raises(HostConfigError, match="host_keys"):
        store.check("other", key(1))
    with pytest.raises(HostConfigError):
        store.pin("third", key(2))
    assert damage in store.path.read_bytes()


def test_a_full_disk_leaves_the_old_pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = HostKeyStore(tmp_path)
    store.pin("box", key(1))

    def no_space(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(HostConfigError, match="No space left"):
        store.pin("next", key(2))
    assert store.get("box") == key(1) and store.get("next") is None
    assert sorted(os.listdir(tmp_path)) == ["host_keys", "host_keys.lock"]


def test_many_writers_lose_no_pin(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from remote.hostkeys import *\n"
        "store = HostKeyStore(Path(sys.argv[1]))\n"
        "for n in range(40): store.pin(f'{sys.argv[2]}-{n}', HostKey.parse(sys.argv[3]))\n"
    )
    argv = [sys.executable, "-c", program, str(tmp_path)]
    writers = [subprocess.Popen([*argv, name, GITHUB]) for name in ("a", "b", "c")]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert len(HostKeyStore(tmp_path).path.read_text().splitlines()) == 120
