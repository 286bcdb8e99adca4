"""The serving-exact mask and the serving walk against their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.train.rows import serving_mask, serving_walk, turns_of


def by_definition(generated: list[int], cut: bool, t: int, k: int) -> bool:
    """mask(t, k) = l_{t+1} · … · l_{t+2+k}; the token past a cut end counts as generated."""
    known = dict(enumerate(generated))
    if cut and generated and generated[-1]:
        known[len(generated)] = 1
    return all(known.get(i, 0) for i in range(t + 1, t + 3 + k))


@pytest.mark.parametrize("cut", [False, True])
def test_mask_is_its_definition_on_every_pattern(cut: bool) -> None:
    for length in range(1, 9):
        for pattern in range(2**length):
            generated = [pattern >> place & 1 for place in range(length)]
            mask = serving_mask(np.array(generated, dtype=bool), cut, 3)
            for t in range(length):
                for k in range(3):
                    assert mask[t, k] == by_definition(generated, cut, t, k), (generated, t, k)


def test_mask_of_one_turn() -> None:
    # prompt 0 0 0, answer 1 1 1 1 (the last is the end token): rows 2, 3, 4 at step 0, one less at each further step
    mask = serving_mask(np.array([0, 0, 0, 1, 1, 1, 1], dtype=bool), False, 3)
    assert [np.flatnonzero(mask[:, k]).tolist() for k in range(3)] == [[2, 3, 4], [2, 3], [2]]
    cut = serving_mask(np.array([0, 0, 0, 1, 1, 1, 1], dtype=bool), True, 3)
    assert [np.flatnonzero(cut[:, k]).tolist() for k in range(3)] == [[2, 3, 4, 5], [2, 3, 4], [2, 3]]


def test_no_chain_bridges_two_turns() -> None:
    generated = np.array([0, 1, 1, 1, 0, 0, 1, 1, 1, 1], dtype=bool)
    mask = serving_mask(generated, False, 3)
    assert [np.flatnonzero(mask[:, k]).tolist() for k in range(3)] == [[0, 1, 5, 6, 7], [0, 5, 6], [5]]
    assert turns_of(generated) == [(0, 3), (5, 9)]


def walk_by_hand(hits: list[list[int]], start: int, end: int, steps: int) -> tuple[int, list[int]]:
    """One turn that ended by itself: token end is the end token."""
    rounds, accepted, newest = 0, [0] * steps, start + 1
    while newest < end:
        rounds += 1
        run = 0
        while run < steps and newest + run + 1 <= end and hits[newest - 1][run]:
            accepted[run] += 1
            run += 1
        newest += run + 1
    return rounds, accepted


def test_walk_jumps_by_what_it_accepts() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        prompt, answer = random.integers(1, 5), random.integers(1, 15)
        generated = np.array([False] * prompt + [True] * answer)
        hits = random.random((prompt + answer, 3)) < 0.6
        found = serving_walk(hits, generated, False)
        wanted = walk_by_hand(hits.tolist(), prompt - 1, prompt + answer - 1, 3)
        assert (found[0], found[1].tolist()) == wanted


def test_walk_known_values() -> None:
    generated = np.array([False] * 2 + [True] * 9)
    always, never = np.ones((11, 3), dtype=bool), np.zeros((11, 3), dtype=bool)
    # x_2 is given; then 4 tokens a round: 3..6, 7..10, which is the end token
    assert serving_walk(always, generated, False)[0] == 2
    assert serving_walk(always, generated, False)[1].tolist() == [2, 2, 2]
    assert serving_walk(never, generated, False)[0] == 8
    # cut: the round after token 9 could not be judged in full
    assert serving_walk(always, generated, True)[0] == 2
    assert serving_walk(never, generated, True)[0] == 6
    assert serving_walk(always[:2], generated[:2], True)[0] == 0
