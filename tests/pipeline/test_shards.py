"""Shards: what is written is what safetensors itself reads; views, early ends, damage, checksums."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from pipeline.shards import Sequence, ShardError, ShardIndex, ShardStore, ShardWriter, read_index, token_bytes

HIDDEN = 12
ROOT = Path(__file__).resolve().parents[2]


def made(name: str, tokens: int, *, hidden: int = HIDDEN, truncated: bool = False) -> Sequence:
    generator = torch.Generator().manual_seed(len(name) + tokens)
    normal = torch.randn(tokens, 5, hidden, generator=generator)
    return Sequence(
        id=name,
        aux=normal[:, :3].bfloat16(),
        last=normal[:, 3].bfloat16(),
        input_ids=torch.randint(0, 99, (tokens,), generator=generator, dtype=torch.int32),
        loss_mask=(torch.arange(tokens) > 1).byte(),
        argmax=torch.randint(0, 99, (tokens,), generator=generator, dtype=torch.int32),
        logsumexp=normal[:, 4, 0].contiguous(),
        truncated=truncated,
    )


def same(one: Sequence, other: Sequence) -> bool:
    names = ("aux", "last", "input_ids", "loss_mask", "argmax", "logsumexp")
    tensors = all(torch.equal(getattr(one, name), getattr(other, name)) for name in names)
    return tensors and (one.id, one.truncated) == (other.id, other.truncated)


def write(out: Path, groups: list[list[Sequence]], *, planned_extra: int = 0, hidden: int = HIDDEN) -> ShardIndex:
    index = ShardIndex(hidden, (2, 4, 5), 99, "bfloat16", 64)
    for number, group in enumerate(groups):
        writer = ShardWriter(
            out / f"shard-{number:05d}.safetensors",
            ids=[one.id for one in group] + ["never-comes"] * planned_extra,
            tokens=sum(len(one.input_ids) for one in group) + 17 * planned_extra,
            hidden_size=hidden,
            dtype=torch.bfloat16,
        )
        for one in group:
            writer.append(one)
        info = writer.close()
        assert info is not None
        index = index.with_shard(info)
        index.write(out)
    return index


@pytest.mark.parametrize("extra", [0, 3])
@pytest.mark.parametrize("hidden", [1, 12])
def test_safetensors_reads_what_was_written(tmp_path: Path, extra: int, hidden: int) -> None:
    group = [made("a", 5, hidden=hidden), made("bb", 1, hidden=hidden, truncated=True), made("ccc", 7, hidden=hidden)]
    write(tmp_path, [group], planned_extra=extra, hidden=hidden)
    with safe_open(tmp_path / "shard-00000.safetensors", "pt") as file:
        assert torch.equal(file.get_tensor("aux"), torch.cat([one.aux for one in group]))
        assert torch.equal(file.get_tensor("last"), torch.cat([one.last for one in group]))
        assert torch.equal(file.get_tensor("logsumexp"), torch.cat([one.logsumexp for one in group]))
        assert file.get_tensor("offsets").tolist() == [0, 5, 6, 13]
        assert file.get_tensor("truncated").tolist() == [0, 1, 0]
        assert file.metadata()["ids"] == '["a","bb","ccc"]'
        assert file.get_tensor("input_ids").dtype == torch.int32


@pytest.mark.parametrize("extra", [0, 2])
def test_store_finds_every_sequence_over_shards(tmp_path: Path, extra: int) -> None:
    groups = [[made("a", 5), made("b", 2)], [made("ü", 9)], [made("d", 1), made("e", 3), made("f", 8)]]
    index = write(tmp_path, groups, planned_extra=extra)
    flat = [one for group in groups for one in group]
    store = ShardStore(tmp_path)
    assert len(store) == 6 and store.tokens == index.tokens == 28
    assert store.ids() == ["a", "b", "ü", "d", "e", "f"]
    assert store.lengths() == [5, 2, 9, 1, 3, 8]
    assert all(same(found, one) for found, one in zip(store, flat, strict=True))
    assert same(store.sequence(3), flat[3])
    with pytest.raises(IndexError):
        store.sequence(6)
    store.verify()


def test_sequences_are_views_and_never_change_the_file(tmp_path: Path) -> None:
    write(tmp_path, [[made("a", 5), made("b", 6)]])
    before = (tmp_path / "shard-00000.safetensors").read_bytes()
    store = ShardStore(tmp_path)
    one, again = store.sequence(1), store.sequence(1)
    assert one.aux.data_ptr() == again.aux.data_ptr()
    assert one.aux.data_ptr() - store.sequence(0).aux.data_ptr() == 5 * 3 * HIDDEN * 2
    one.aux.zero_()
    assert (tmp_path / "shard-00000.safetensors").read_bytes() == before
    copy = pickle.loads(pickle.dumps(store))
    assert same(copy.sequence(0), made("a", 5))


def test_size_of_a_shard_is_its_token_bytes_and_little_more(tmp_path: Path) -> None:
    index = write(tmp_path, [[made("a", 400)]])
    assert 0 <= index.bytes - 400 * token_bytes(HIDDEN, torch.bfloat16) < 1500


def test_empty_or_aborted_shard_leaves_nothing(tmp_path: Path) -> None:
    make = {"ids": ["a"], "tokens": 5, "hidden_size": HIDDEN, "dtype": torch.bfloat16}
    assert ShardWriter(tmp_path / "s.safetensors", **make).close() is None
    writer = ShardWriter(tmp_path / "s.safetensors", **make)
    writer.append(made("a", 5))
    with pytest.raises(ValueError, match="planned"):
        writer.append(made("b", 1))
    writer.abort()
    writer.abort()
    assert list(tmp_path.iterdir()) == []


def test_state_of_another_type_or_shape_is_refused(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path / "s.safetensors", ids=["a"], tokens=9, hidden_size=16, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="state"):
        writer.append(made("a", 5))
    writer.abort()


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped", "header", "index", "newer"])
def test_damage_is_named_with_file_and_remedy(tmp_path: Path, damage: str) -> None:
    write(tmp_path, [[made("a", 5)], [made("b", 6)]])
    victim = tmp_path / "shard-00001.safetensors"
    data = bytearray(victim.read_bytes())
    if damage == "missing":
        victim.unlink()
    elif damage == "cut":
        victim.write_bytes(data[:-1])
    elif damage == "flipped":
        data[-40] ^= 1
        victim.write_bytes(data)
    elif damage == "header":
        data[9] = 0
        victim.write_bytes(data)
    else:
        victim = tmp_path / "index.json"
        victim.write_text("{" if damage == "index" else victim.read_text().replace('"schema": 1', '"schema": 2'))

    def read_all() -> None:
        store = ShardStore(tmp_path)
        store.lengths()
        store.verify()

    with pytest.raises(ShardError) as caught:
        read_all()
    assert victim.name in caught.value.message
    assert caught.value.remedy


def test_no_index_means_extract_first(tmp_path: Path) -> None:
    assert read_index(tmp_path) is None
    with pytest.raises(ShardError, match="Run extract first"):
        ShardStore(tmp_path)


MANY = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
from pipeline.shards import ShardStore
store = ShardStore(Path(sys.argv[1]))
held = [store.sequence(number) for number in range(len(store))]  # as a batch of many short sequences does
assert store.ids() == [one.id for one in held]
assert store.lengths() == [len(one.input_ids) for one in held]
assert all(int(one.loss_mask.sum()) == len(one.input_ids) - 2 for one in held)
from pipeline.train.data import Corpus
corpus = Corpus(store, 3, 64)
print(corpus.batch(corpus.useful(range(len(store)))).tokens)
"""


def test_hundreds_of_shards_need_no_descriptors(tmp_path: Path) -> None:
    """A 2 TB output has more shards than a process may have open files: here 300 shards and 128 files."""
    index = write(tmp_path, [[made(f"s{number}", 4 + number % 5)] for number in range(300)])
    ran = subprocess.run([sys.executable, "-c", MANY, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) == index.tokens


def test_only_the_shards_used_last_stay_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.shards.store.MAPPED_SHARDS", 2)
    write(tmp_path, [[made("a", 5)], [made("b", 6)], [made("c", 7)]])
    store = ShardStore(tmp_path)
    first = store.sequence(0)
    assert store.sequence(1).aux.data_ptr() == store.sequence(1).aux.data_ptr()
    store.sequence(0)
    store.sequence(2)  # in the place of shard 1, which was used before shard 0
    assert store.sequence(0).aux.data_ptr() == first.aux.data_ptr()
    store.sequence(1)
    store.sequence(2)
    assert same(first, made("a", 5))  # a view outlives its shard's place
    assert same(store.sequence(0), first)
