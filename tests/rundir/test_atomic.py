"""Whole files: old or new, never half, whatever happens in between."""

from __future__ import annotations

import errno
import json
import os
import resource
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.rundir import read_json, replace_link, write_bytes, write_json, write_json_fast
from pipeline.rundir.atomic import TEMPORARY, write_new

Crashes = Callable[..., Iterator[int]]


def leftovers(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if TEMPORARY in name]


def test_replaces_with_private_mode_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    write_json(path, {"a": 1})
    write_json(path, {"a": 2, "ü": "✓"})
    assert read_json(path) == {"a": 2, "ü": "✓"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["state.json"]


def test_a_reader_with_the_old_file_open_still_reads_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_bytes(path, b"old")
    with path.open("rb") as reader:
        write_bytes(path, b"newer")
        assert reader.read() == b"old"
    assert path.read_bytes() == b"newer"


def test_nan_and_lone_surrogates_become_valid_json(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"loss": float("nan"), "rate": [float("inf"), 1.5], "text": "\ud83d!"})
    assert json.loads(path.read_text("utf-8"), parse_constant=pytest.fail) == {
        "loss": None,
        "rate": [None, 1.5],
        "text": "\ud83d!",
    }


@pytest.mark.parametrize("write", [write_json, write_json_fast])
def test_a_short_write_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[..., None]
) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:3]))
    write(tmp_path / "x.json", {"text": "longer than three bytes"})
    monkeypatch.undo()
    assert read_json(tmp_path / "x.json") == {"text": "longer than three bytes"}


@pytest.mark.parametrize("room", [0, 1, 17])
@pytest.mark.parametrize("write", [write_json, write_json_fast])
def test_a_full_volume_leaves_the_old_file_and_no_temporary(
    tmp_path: Path, full_after: Callable[[int], None], write: Callable[..., None], room: int
) -> None:
    path = tmp_path / "state.json"
    write(path, {"value": "old"})
    full_after(room)
    with pytest.raises(OSError, match="No space left") as caught:
        write(path, {"value": "new" * 50})
    assert caught.value.errno == errno.ENOSPC
    assert read_json(path) == {"value": "old"}
    assert os.listdir(tmp_path) == ["state.json"]


def test_a_really_full_volume(tmp_path: Path, on_small_volume: Callable[..., None]) -> None:
    volume = tmp_path / "volume"

    def fill() -> None:
        path = volume / "state.json"
        write_bytes(path, b"old" * 1000)
        with pytest.raises(OSError, match="No space left"):
            write_bytes(path, bytes(4 << 20))
        assert path.read_bytes() == b"old" * 1000
        assert os.listdir(volume) == ["state.json"]
        write_bytes(path, b"new" * 1000)
        assert path.read_bytes() == b"new" * 1000

    on_small_volume(volume, "1m", fill)


def test_the_kernel_cuts_a_write_at_a_size_limit(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_bytes(path, b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="too large") as caught:
            write_bytes(path, bytes(10_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]


def test_an_error_that_only_close_reports_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    write_bytes(path, b"old")
    real = os.close
    reported: list[int] = []

    def close(fd: int) -> None:
        real(fd)
        if not reported:
            reported.append(fd)
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "close", close)
    with pytest.raises(OSError, match=r"[Qq]uota"):
        write_bytes(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]


def test_killed_at_any_step_there_is_the_old_file_or_the_new_one(tmp_path: Path, every_crash: Crashes) -> None:
    path = tmp_path / "state.json"
    seen = set()
    for _ in every_crash(lambda: write_json(path, {"v": "old"}), lambda: write_json(path, {"v": "new"})):
        found = read_json(path)
        assert found in ({"v": "old"}, {"v": "new"})
        seen.add(found["v"])
    assert seen == {"old", "new"}


def test_killed_at_any_step_a_link_points_at_the_old_or_the_new(tmp_path: Path, every_crash: Crashes) -> None:
    link = tmp_path / "current"
    seen = set()
    for _ in every_crash(lambda: replace_link(link, "out/0001"), lambda: replace_link(link, "out/0002")):
        seen.add(os.readlink(link))
    assert seen == {"out/0001", "out/0002"}


def test_a_new_file_is_whole_or_not_there_and_never_replaces(tmp_path: Path, every_crash: Crashes) -> None:
    path = tmp_path / "0001.json"
    for _ in every_crash(lambda: path.unlink(missing_ok=True), lambda: write_new(path, b"whole")):
        assert not path.exists() or path.read_bytes() == b"whole"
    assert write_new(path, b"other") is False
    assert path.read_bytes() == b"whole"


def test_a_new_file_where_the_volume_has_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object) -> None:
        raise PermissionError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", link)
    path = tmp_path / "x"
    assert write_new(path, b"first") is True
    assert write_new(path, b"second") is False
    assert path.read_bytes() == b"first"
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\x00" * 64, b"\xff\xfe", b"nul", b"[" * 100_000])
def test_what_holds_no_object_reads_as_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.json").write_bytes(content)
    assert read_json(tmp_path / "x.json") is None


def test_reading_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text('{"a": 1}')
    (tmp_path / "x.json").symlink_to("secret.json")
    assert read_json(tmp_path / "x.json") is None
    assert read_json(tmp_path / "missing.json") is None
    assert read_json(tmp_path) is None


def test_writing_replaces_a_link_instead_of_writing_through_it(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("untouched")
    (tmp_path / "x").symlink_to("outside")
    write_bytes(tmp_path / "x", b"new")
    assert outside.read_text() == "untouched"
    assert not (tmp_path / "x").is_symlink()
