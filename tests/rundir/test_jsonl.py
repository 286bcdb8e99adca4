"""JSON lines: torn tails are cut by the writer, passed over by readers; a full volume loses nothing that was there."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.rundir import JsonLines, iter_jsonl, read_jsonl, repair_tail

rows_of_a_file = st.lists(
    st.dictionaries(st.text(max_size=5), st.none() | st.booleans() | st.integers() | st.text(max_size=20), max_size=4),
    max_size=6,
)


def line(row: dict[str, Any]) -> bytes:
    return json.dumps(row).encode() + b"\n"


def is_row(data: bytes) -> bool:
    try:
        return isinstance(json.loads(data), dict)
    except (ValueError, RecursionError):
        return False


@settings(deadline=None, max_examples=200)
@given(rows=rows_of_a_file, data=st.data())
def test_after_a_crash_the_file_goes_on_with_its_whole_lines(
    fresh: Callable[[], Path], rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    path = fresh() / "rows.jsonl"
    lines = [line(row) for row in rows]
    whole = b"".join(lines)
    kept_bytes = data.draw(st.integers(0, len(whole)), label="bytes that reached the disk")
    garbage = data.draw(
        st.sampled_from([b"", b"\x00" * 40, b'{"half": ', b"\xff\xfe{", b"\x00\x00\n\x00"]), label="garbage"
    )
    path.write_bytes(whole[:kept_bytes] + garbage)
    complete, end = 0, 0
    while complete < len(lines) and end + len(lines[complete]) <= kept_bytes:
        end += len(lines[complete])
        complete += 1
    assert read_jsonl(path)[0][:complete] == rows[:complete]
    cut = repair_tail(path)
    assert path.read_bytes() == whole[:end]
    assert cut == kept_bytes + len(garbage) - end
    assert repair_tail(path) == 0
    with JsonLines(path) as file:
        file.append({"after": 1})
    assert read_jsonl(path)[0] == [*rows[:complete], {"after": 1}]


@settings(deadline=None, max_examples=100)
@given(rows=rows_of_a_file, splits=st.lists(st.integers(0, 400), max_size=6))
def test_reading_on_from_the_offset_sees_every_row_once(
    fresh: Callable[[], Path], rows: list[dict[str, Any]], splits: list[int]
) -> None:
    path = fresh() / "rows.jsonl"
    whole = b"".join(line(row) for row in rows)
    seen, offset = [], 0
    for end in [*sorted(min(split, len(whole)) for split in splits), len(whole)]:
        path.write_bytes(whole[:end])
        new, offset = read_jsonl(path, offset)
        seen += new
    assert seen == rows
    assert offset == len(whole)


def test_a_line_longer_than_a_block_is_found_and_cut(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    long = {"text": "x" * 300_000}
    path.write_bytes(line({"a": 1}) + line(long) + line(long)[:-1])
    assert repair_tail(path) == len(line(long)) - 1
    assert read_jsonl(path)[0] == [{"a": 1}, long]


def test_terminated_garbage_in_the_middle_is_passed_over_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(line({"a": 1}) + b"not json\n[1]\n" + line({"a": 2}))
    assert repair_tail(path) == 0
    assert read_jsonl(path)[0] == [{"a": 1}, {"a": 2}]


def test_the_unterminated_tail_waits_for_its_newline(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": 2}')
    rows, offset = read_jsonl(path)
    assert (rows, offset) == ([{"a": 1}], 9)
    with path.open("ab") as file:
        file.write(b"\n")
    assert read_jsonl(path, offset) == ([{"a": 2}], 18)


def test_a_file_that_was_replaced_by_a_shorter_one_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(line({"a": 1}))
    assert read_jsonl(path, 1000) == ([{"a": 1}], len(line({"a": 1})))


def test_no_file_is_no_rows(tmp_path: Path) -> None:
    assert read_jsonl(tmp_path / "x") == ([], 0)
    assert list(iter_jsonl(tmp_path / "x")) == []
    assert repair_tail(tmp_path / "x") == 0


def test_one_line_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes = []
    real = os.write

    def write(fd: int, data: bytes) -> int:
        writes.append(bytes(data))
        return real(fd, data)

    with JsonLines(tmp_path / "x.jsonl") as file:
        monkeypatch.setattr(os, "write", write)
        file.append({"text": "a\nb", "nan": float("nan"), "half": "\udc80"})
        file.append({})
    assert writes == [b'{"text":"a\\nb","nan":null,"half":"\\udc80"}\n', b"{}\n"]


@pytest.mark.parametrize("room", [0, 1, 25])
def test_a_full_volume_takes_back_the_half_written_line(
    tmp_path: Path, full_after: Callable[[int], None], room: int
) -> None:
    path = tmp_path / "x.jsonl"
    with JsonLines(path, durable=True) as file:
        file.append({"a": 1})
        full_after(room)
        with pytest.raises(OSError, match="No space left"):
            file.append({"text": "x" * 100})
        assert path.read_bytes() == b'{"a":1}\n'


def test_a_full_device(tmp_path: Path) -> None:
    file = JsonLines(Path("/dev/full"))
    with pytest.raises(OSError, match="No space left") as caught:
        file.append({"a": 1})
    assert caught.value.errno == errno.ENOSPC


def test_a_really_full_volume(tmp_path: Path, on_small_volume: Callable[..., None]) -> None:
    volume = tmp_path / "volume"

    def fill() -> None:
        path, written = volume / "x.jsonl", 0
        with JsonLines(path) as file:
            while written < 1000:
                try:
                    file.append({"n": written, "text": "x" * 1500})
                except OSError:
                    break
                written += 1
            assert 10 < written < 100
        assert [row["n"] for row in read_jsonl(path)[0]] == list(range(written))
        assert path.read_bytes().endswith(b"}\n")

    on_small_volume(volume, "128k", fill)


def test_killed_at_any_step_only_whole_lines_remain(tmp_path: Path, every_crash: Callable[..., Any]) -> None:
    path = tmp_path / "x.jsonl"

    def write() -> None:
        with JsonLines(path, durable=True) as file:
            for number in range(3):
                file.append({"n": number})

    lengths = set()
    for _ in every_crash(lambda: path.write_bytes(b'{"n":-1}\n{"torn'), write):
        rows = read_jsonl(path)[0]
        assert [row["n"] for row in rows] == list(range(-1, len(rows) - 1))
        lengths.add(len(rows))
    assert lengths == {1, 2, 3, 4}


def test_a_writer_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match="symbolic links"):
        JsonLines(tmp_path / "x.jsonl")
    assert not (tmp_path / "outside").exists()
