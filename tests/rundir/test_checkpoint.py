"""Checkpoints: at every moment there is a whole one to resume from, and it is the newest whole one."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.rundir import RunError, checkpoint_meta, latest_checkpoint, write_checkpoint
from pipeline.rundir.checkpoint import holds

Crashes = Callable[..., Iterator[int]]


def writer(step: int) -> Callable[[Path], None]:
    """Two files, one of them in a folder, whose content tells the step."""

    def write(folder: Path) -> None:
        (folder / "model.bin").write_bytes(bytes([step % 256]) * 5000)
        (folder / "ranks").mkdir()
        (folder / "ranks" / "0.bin").write_bytes(f"step {step}".encode())

    return write


def save(parent: Path, step: int, keep: int = 2) -> Path:
    return write_checkpoint(parent, f"step-{step:06d}", writer(step), {"step": step}, keep)


def step_of(path: Path | None) -> int:
    """The step of a checkpoint, all of its content checked."""
    assert path is not None
    step: int = checkpoint_meta(path)["step"]
    assert (path / "model.bin").read_bytes() == bytes([step % 256]) * 5000
    assert (path / "ranks" / "0.bin").read_bytes() == f"step {step}".encode()
    return step


def test_the_newest_is_found_and_the_old_ones_go(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path / "none") is None
    for step in (100, 200, 300):
        path = save(tmp_path, step)
        assert path == tmp_path / f"step-{step:06d}"
        assert step_of(latest_checkpoint(tmp_path)) == step
        assert os.readlink(tmp_path / "latest") == path.name
    assert sorted(os.listdir(tmp_path)) == ["latest", "step-000200", "step-000300"]


def test_the_manifest_lists_every_file_with_size_and_hash(tmp_path: Path) -> None:
    manifest = json.loads((save(tmp_path, 1) / "manifest.json").read_text())
    assert manifest["meta"] == {"step": 1}
    # from `printf 'step 1' | sha256sum`
    want = "9a2deff46ae163a6c486098a08b796b7f8d506fb0a25eeec025f306b33b79aeb"
    assert set(manifest["files"]) == {"model.bin", "ranks/0.bin"}
    assert manifest["files"]["ranks/0.bin"]["bytes"] == 6
    assert manifest["files"]["ranks/0.bin"]["sha256"] == want


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "manifest", "empty manifest"])
def test_a_damaged_one_is_passed_over(tmp_path: Path, damage: str) -> None:
    save(tmp_path, 1)
    newest = save(tmp_path, 2)
    file = newest / "model.bin"
    if damage == "truncate":
        os.truncate(file, 10)
    elif damage == "flip":
        data = bytearray(file.read_bytes())
        data[2500] ^= 1
        file.write_bytes(data)
    elif damage == "remove":
        file.unlink()
    elif damage == "manifest":
        (newest / "manifest.json").unlink()
    else:
        (newest / "manifest.json").write_bytes(b"")
    assert not holds(newest)
    assert step_of(latest_checkpoint(tmp_path)) == 1
    save(tmp_path, 3, keep=3)
    assert step_of(latest_checkpoint(tmp_path)) == 3


def test_newest_means_written_last_not_the_highest_number(tmp_path: Path) -> None:
    save(tmp_path, 900)
    save(tmp_path, 150)
    assert step_of(latest_checkpoint(tmp_path)) == 150
    save(tmp_path, 160)
    assert sorted(os.listdir(tmp_path)) == ["latest", "step-000150", "step-000160"]


def test_what_a_link_points_at_stays(tmp_path: Path) -> None:
    best = save(tmp_path, 1)
    (tmp_path / "best").symlink_to(best.name)
    for step in (2, 3, 4):
        save(tmp_path, step)
    assert sorted(os.listdir(tmp_path)) == ["best", "latest", "step-000001", "step-000003", "step-000004"]


def test_what_is_no_checkpoint_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("keep")
    for step in (1, 2, 3, 4):
        save(tmp_path, step, keep=1)
    assert sorted(os.listdir(tmp_path)) == ["latest", "notes", "step-000004"]
    assert latest_checkpoint(tmp_path / "notes") is None


def test_the_same_step_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, 5)
    path = write_checkpoint(tmp_path, "step-000005", writer(6), {"step": 6}, 2)
    assert step_of(path) == 6
    assert step_of(latest_checkpoint(tmp_path)) == 6
    assert sorted(os.listdir(tmp_path)) == ["latest", "step-000005"]


@pytest.mark.parametrize("name", ["latest", "", "../x", ".hidden", "a/b"])
def test_bad_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunError, match="can't be the name of a checkpoint"):
        write_checkpoint(tmp_path, name, writer(1), {}, 1)


def test_links_have_no_place_in_a_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 1)
    with pytest.raises(RunError, match="is a link"):
        write_checkpoint(tmp_path, "step-2", lambda folder: (folder / "x").symlink_to("/etc/passwd"), {}, 2)
    assert sorted(os.listdir(tmp_path)) == ["latest", "step-000001"]


def test_a_writer_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    save(tmp_path, 1)

    def fail(folder: Path) -> None:
        writer(2)(folder)
        raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        write_checkpoint(tmp_path, "step-000002", fail, {}, 1)
    assert sorted(os.listdir(tmp_path)) == ["latest", "step-000001"]
    assert step_of(latest_checkpoint(tmp_path)) == 1


def test_a_loss_that_is_nan_does_not_cost_the_checkpoint(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, "step-1", writer(1), {"val_loss": float("nan")}, 1)
    assert checkpoint_meta(path) == {"val_loss": None}
    assert latest_checkpoint(tmp_path) == path


def test_a_folder_without_a_manifest_has_no_meta(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is no checkpoint"):
        checkpoint_meta(tmp_path)


def test_killed_at_every_step_there_is_always_a_whole_one(tmp_path: Path, every_crash: Crashes) -> None:
    parent = tmp_path / "checkpoints"

    def prepare() -> None:
        shutil.rmtree(parent, ignore_errors=True)
        save(parent, 1)
        save(parent, 2)

    seen = []
    for _ in every_crash(prepare, lambda: save(parent, 3)):
        step = step_of(latest_checkpoint(parent))
        seen.append(step)
        assert step in (2, 3)
        assert holds(parent / "latest")
        assert step_of(save(parent, 4)) == 4
        named = sorted(os.listdir(parent))
        assert [name for name in named if name.startswith(".")] == []
        assert named == ["latest", f"step-{step:06d}", "step-000004"]
    assert seen == sorted(seen)
    assert set(seen) == {2, 3}


def test_killed_at_every_step_of_replacing_the_only_one(tmp_path: Path, every_crash: Crashes) -> None:
    parent = tmp_path / "checkpoints"

    def prepare() -> None:
        shutil.rmtree(parent, ignore_errors=True)
        save(parent, 7)

    def again() -> None:
        write_checkpoint(parent, "step-000007", writer(8), {"step": 8}, 1)

    seen = []
    for _ in every_crash(prepare, again):
        seen.append(step_of(latest_checkpoint(parent)))
        assert step_of(save(parent, 9, keep=2)) == 9
        assert sorted(os.listdir(parent)) == ["latest", "step-000007", "step-000009"]
        assert holds(parent / "step-000007")
    assert seen == sorted(seen)
    assert set(seen) == {7, 8}


def test_killed_at_random_moments(tmp_path: Path) -> None:
    parent = tmp_path / "checkpoints"
    save(parent, 1)
    chance = random.Random(11)
    reached = 1
    for _ in range(20):
        out, into = os.pipe()
        pid = os.fork()
        if pid == 0:
            step = reached
            while True:
                step += 1
                save(parent, step)
                os.write(into, f"{step}\n".encode())
        os.close(into)
        with os.fdopen(out) as said:
            reached = int(said.readline())
            time.sleep(chance.uniform(0, 0.02))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            promised = [reached, *(int(line) for line in said)][-1]
        reached = step_of(latest_checkpoint(parent))
        assert reached in (promised, promised + 1)
    assert reached >= 21


def test_a_full_volume_leaves_the_old_one(tmp_path: Path, full_after: Callable[[int], None]) -> None:
    save(tmp_path, 1)
    full_after(30)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path, 2)
    assert sorted(os.listdir(tmp_path)) == ["latest", "step-000001"]
    assert step_of(latest_checkpoint(tmp_path)) == 1


def test_a_really_full_volume_then_freed(tmp_path: Path, on_small_volume: Callable[..., None]) -> None:
    volume = tmp_path / "volume"

    def fill() -> None:
        save(volume, 1)
        ballast = volume / "ballast"
        with ballast.open("wb") as file:
            file.truncate(0)
            os.posix_fallocate(file.fileno(), 0, 190_000)
        with pytest.raises(OSError, match="No space left"):
            write_checkpoint(volume, "step-000002", lambda folder: (folder / "x").write_bytes(bytes(90_000)), {}, 2)
        assert sorted(os.listdir(volume)) == ["ballast", "latest", "step-000001"]
        assert step_of(latest_checkpoint(volume)) == 1
        ballast.unlink()
        assert step_of(save(volume, 2)) == 2

    on_small_volume(volume, "256k", fill)


def test_files_are_on_the_disk_before_the_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[tuple[int, int]] = set()
    at_rename: list[set[tuple[int, int]]] = []
    real_fsync, real_rename = os.fsync, os.rename

    def fsync(fd: int) -> None:
        info = os.fstat(fd)
        synced.add((info.st_dev, info.st_ino))
        real_fsync(fd)

    def rename(old: Path, new: Path) -> None:
        at_rename.append(set(synced))
        real_rename(old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    path = save(tmp_path, 1)
    assert len(at_rename) == 1
    for file in [path, *path.rglob("*")]:
        info = file.stat()
        assert (info.st_dev, info.st_ino) in at_rename[0], file.name
    info = tmp_path.stat()
    assert (info.st_dev, info.st_ino) in synced
