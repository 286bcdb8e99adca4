"""The space of a volume: a quota counts the bytes of its own folder, whatever else lies on the filesystem."""

from __future__ import annotations

import itertools
import os
import threading
import time
from pathlib import Path

import pytest

from pipeline import volume as module
from pipeline.config import Plan, set_values
from pipeline.rundir import RunDir
from pipeline.volume import FolderMeter, Volume, space, tree_bytes, volume_of

MIB = 1 << 20


def test_without_a_quota_the_filesystem_says_it(tmp_path: Path) -> None:
    seen = space(Volume(tmp_path / "not" / "there" / "yet"))
    assert seen.capacity == seen.total >= seen.free > 0
    assert 0 < seen.used <= seen.total


def test_a_quota_counts_its_own_folder_only(tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume" / "ours").write_bytes(os.urandom(MIB))
    (tmp_path / "theirs").write_bytes(os.urandom(8 * MIB))
    seen = space(Volume(tmp_path / "volume", capacity=4 * MIB))
    assert seen.capacity == 4 * MIB < seen.total
    assert MIB <= seen.used < 2 * MIB
    assert seen.free == 4 * MIB - seen.used


def test_a_quota_that_is_used_up_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "ours").write_bytes(os.urandom(MIB))
    assert space(Volume(tmp_path, capacity=1000)).free == 0
    empty = space(Volume(tmp_path / "not" / "yet", capacity=1000))
    assert (empty.used, empty.free) == (0, 1000)


def test_a_quota_above_the_filesystem_changes_nothing(tmp_path: Path) -> None:
    plain, declared = space(Volume(tmp_path)), space(Volume(tmp_path, capacity=10**18))
    assert declared.capacity == plain.total
    assert abs(declared.used - plain.used) < 1 << 30
    assert declared.free > 0


def test_bytes_are_blocks_counted_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(os.urandom(MIB))
    os.link(tmp_path / "a", tmp_path / "b")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    (outside / "big").write_bytes(os.urandom(4 * MIB))
    (tmp_path / "link").symlink_to(outside)
    assert MIB <= tree_bytes(tmp_path) < 2 * MIB
    assert tree_bytes(tmp_path / "nowhere") == 0


def test_between_two_walks_the_growth_of_the_filesystem_is_added(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(os.urandom(MIB))
    meter = FolderMeter(tmp_path)
    first = meter.read(100 * MIB)
    assert first is not None and MIB <= first < 2 * MIB
    assert meter.read(103 * MIB) == first + 3 * MIB
    assert meter.read(90 * MIB) == first  # what others delete makes no room here
    assert meter.read(1000) == 1000


def test_a_walk_is_repeated_and_its_cost_bounds_how_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walks: list[float] = []

    def walk(folder: Path) -> int:
        walks.append(time.monotonic())
        time.sleep(0.02)
        return len(walks)

    monkeypatch.setattr(module, "tree_bytes", walk)
    monkeypatch.setattr(module, "FRESH_S", 0.0)
    monkeypatch.setattr(module, "REST", 10.0)
    meter, end = FolderMeter(tmp_path), time.monotonic() + 30
    while (meter.read(100) or 0) < 3 and time.monotonic() < end:
        time.sleep(0.001)
    assert len(walks) >= 3
    assert all(after - before >= 0.2 for before, after in itertools.pairwise(walks))


def test_a_walk_that_takes_long_holds_nobody_up_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    def walk(folder: Path) -> int:
        gate.wait()
        return 7

    monkeypatch.setattr(module, "tree_bytes", walk)
    monkeypatch.setattr(module, "WAIT_S", 0.05)
    meter = FolderMeter(tmp_path)
    assert meter.read(100) is None
    assert meter.read(100) is None
    gate.set()
    end = time.monotonic() + 30
    while meter.read(100) is None and time.monotonic() < end:
        time.sleep(0.001)
    assert meter.read(100) == 7


def test_a_large_folder_is_unknown_until_it_was_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    monkeypatch.setattr(module, "tree_bytes", lambda folder: int(gate.wait()) * 600)
    monkeypatch.setattr(module, "WAIT_S", 0.05)
    volume = Volume(tmp_path, capacity=1000)
    seen = space(volume)
    assert (seen.used, seen.free) == (None, 1000)
    gate.set()
    module.measure_again(volume)
    end = time.monotonic() + 30
    while space(volume).used is None and time.monotonic() < end:
        time.sleep(0.001)
    assert (space(volume).used or 0) >= 600


def test_nobody_is_refused_for_what_others_wrote(tmp_path: Path) -> None:
    (tmp_path / "ours").write_bytes(os.urandom(MIB))
    meter = FolderMeter(tmp_path)
    first = meter.read(100 * MIB)
    assert first is not None and meter.read(500 * MIB) == first + 400 * MIB
    meter.again()
    assert meter.read(500 * MIB) == first


def test_a_walk_under_way_is_not_the_one_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, go, walks = threading.Event(), threading.Event(), itertools.count()

    def slow(folder: Path) -> int:
        found = tree_bytes(folder)
        if next(walks) == 0:
            seen.set()
            go.wait(30)
        return found

    monkeypatch.setattr(module, "tree_bytes", slow)
    monkeypatch.setattr(module, "WAIT_S", 30.0)
    (tmp_path / "ours").write_bytes(os.urandom(MIB))
    meter = FolderMeter(tmp_path)
    first = threading.Thread(target=meter.read, args=(100 * MIB,))
    first.start()
    assert seen.wait(30)
    (tmp_path / "more").write_bytes(os.urandom(MIB))
    meter.again()
    go.set()
    first.join()
    assert (meter.read(100 * MIB) or 0) >= 2 * MIB


def test_the_volume_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDir.create(tmp_path / "root", "one", Plan())
    assert volume_of(run, Plan()).path == tmp_path / "root"
    monkeypatch.setenv("HOME", str(tmp_path))
    plan = set_values(Plan(), {"volume.path": "~/data", "volume.capacity_bytes": "3TB"})
    assert volume_of(run, plan) == Volume(tmp_path / "data", 3 * 10**12, 1 << 30)
