"""Packing, order, split, and what a batch holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.rundir import RunDir
from pipeline.shards import Sequence, ShardIndex, ShardStore, ShardWriter
from pipeline.train.data import Corpus, epoch_batches, find_pairs, pack
from pipeline.train.rows import serving_mask
from pipeline.train.split import split


def test_split_goes_by_the_id_alone() -> None:
    ids = [f"sample-{number}" for number in range(400)]
    training, validation = split(ids, 0.1)
    assert 20 < len(validation) < 60 and sorted(training + validation) == list(range(400))
    held = {ids[number] for number in validation}
    more = [f"other-{number}" for number in range(50)] + list(reversed(ids))
    assert {more[number] for number in split(more, 0.1)[1]} >= held
    assert split(["a", "b"], 0.001)[1] in ([0], [1])  # never empty where there are two
    assert split(["a"], 0.5) in (([0], []), ([], [0]))
    assert split(ids, 0.0)[1] == []


def test_packing_fills_batches_in_order() -> None:
    assert pack([0, 1, 2, 3], [5, 5, 20, 1], 10) == [[0, 1], [2], [3]]
    assert pack([], [], 10) == []


def test_an_epoch_is_a_permutation_of_its_own() -> None:
    lengths = [7] * 50
    first = epoch_batches(range(50), lengths, 21, seed=3, epoch=0)
    assert first == epoch_batches(range(50), lengths, 21, seed=3, epoch=0)
    assert sorted(number for batch in first for number in batch) == list(range(50)) and {
        len(batch) for batch in first[:-1]
    } == {3}
    assert first != epoch_batches(range(50), lengths, 21, seed=3, epoch=1)
    assert first != epoch_batches(range(50), lengths, 21, seed=4, epoch=0)


def test_pairs_list_every_supervised_pair_once() -> None:
    generated = np.array([0, 0, 1, 1, 1, 1, 0, 1, 1, 1], dtype=bool)
    for cut in (False, True):
        pairs, mask = find_pairs(generated, cut, 3), serving_mask(generated, cut, 3)
        listed = {
            (int(pairs.rows[pairs.state[u, k]]), k)
            for u in range(len(pairs.teachers))
            for k in range(3)
            if pairs.mask[u, k] and pairs.rows[pairs.state[u, k]] == pairs.teachers[u] - 1 - k
        }
        assert listed == {(int(t), int(k)) for t, k in zip(*np.nonzero(mask))}
        assert pairs.mask.sum() == mask.sum()


def test_a_batch_reads_each_pair_from_its_own_sequence(prepared: RunDir) -> None:
    output = prepared.stage("extract").current()
    assert output is not None
    store = ShardStore(output.path)
    corpus = Corpus(store, 3, 2048, heads=4)
    numbers = corpus.useful([5, 0, 17])
    batch = corpus.batch(numbers)
    assert batch.tokens == sum(len(store.sequence(number).input_ids) for number in numbers) == len(batch.aux)
    firsts = np.cumsum([0] + [corpus.lengths[number] for number in numbers])
    for place, (number, piece) in enumerate(zip(numbers, batch.pieces)):
        sequence, pairs = store.sequence(number), corpus.pairs(number)
        ids = sequence.input_ids.long()
        for row, teacher in zip(range(piece.start, piece.stop), pairs.teachers.tolist()):
            assert torch.equal(batch.last[row], sequence.last[teacher])
            assert batch.argmax[row] == sequence.argmax[teacher]
            assert batch.token[row] == (ids[teacher + 1] if teacher + 1 < len(ids) else -1)
            for step in range(3):
                if batch.mask[row, step]:
                    slot = int(batch.rows[batch.state[row, step]]) - firsts[place]
                    assert slot == teacher - 1 - step
                    assert torch.equal(batch.aux[firsts[place] + slot], sequence.aux[slot].flatten())
                    assert batch.following[firsts[place] + slot] == ids[slot + 1]
                    if step:
                        assert batch.later[step - 1, batch.state[row, step]] == ids[slot + 1 + step]
    assert batch.positions.tolist() == [at for number in numbers for at in range(corpus.lengths[number])]


@pytest.mark.parametrize(("length", "rows"), [(2048, [3, 4, 5, 6, 7]), (8, [3, 4, 5, 6])])
def test_a_sequence_cut_for_training_keeps_its_last_row(tmp_path: Path, length: int, rows: list[int]) -> None:
    ids = torch.arange(10, 20, dtype=torch.int32)
    mask = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 1, 1], dtype=torch.uint8)
    writer = ShardWriter(
        tmp_path / "shard-00000.safetensors", ids=["a"], tokens=10, hidden_size=4, dtype=torch.bfloat16
    )
    aux, last = torch.zeros(10, 3, 4, dtype=torch.bfloat16), torch.zeros(10, 4, dtype=torch.bfloat16)
    writer.append(Sequence("a", aux, last, ids, mask, ids, torch.zeros(10), False))
    info = writer.close()
    assert info is not None
    ShardIndex(4, (2, 4, 5), 32, "bfloat16", 2048, (info,)).write(tmp_path)
    corpus = Corpus(ShardStore(tmp_path), 3, length)
    batch = corpus.batch([0])
    assert batch.rows.tolist() == rows
    assert batch.tokens == min(10, length)
    assert batch.token.tolist() == [*range(15, 15 + len(rows))]  # the token past the cut is known, and judged
