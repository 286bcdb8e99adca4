"""How much of a log is asked for at once."""

from __future__ import annotations

import pytest

from remote.protocol import TAIL_MAX
from remote.session import FIRST_PIECE, LEAST_PIECE, next_piece
from remote.transfer import (
    FIRST_PART,
    FIRST_TAKEN,
    LEAST_PART,
    LEAST_TAKEN,
    MOST_PART,
    MOST_TAKEN,
    next_part,
    next_taken,
)


def after(rate: float, asked: int = FIRST_PIECE, rounds: int = 12) -> int:
    """The piece that is settled on over a link of ``rate`` bytes a second."""
    for _ in range(rounds):
        asked = next_piece(asked, asked, asked / rate)
    return asked


@pytest.mark.parametrize(("rate", "want"), [(1e9, TAIL_MAX), (20_000, 20_000), (5_000, 5_000), (10, LEAST_PIECE)])
def test_a_piece_takes_a_second(rate: float, want: int) -> None:
    assert after(rate) == pytest.approx(want, abs=1)
    assert after(rate, TAIL_MAX) == pytest.approx(want, abs=1)


def test_it_grows_step_by_step_and_shrinks_at_once() -> None:
    assert next_piece(8192, 8192, 0.01) == 32768
    assert next_piece(TAIL_MAX, TAIL_MAX, 8.0) == TAIL_MAX // 8


def test_a_log_that_ended_says_nothing_about_the_link() -> None:
    assert next_piece(16384, 0, 0.05) == 16384
    assert next_piece(16384, 100, 4.0) < 16384


@pytest.mark.parametrize(("rate", "want"), [(1e9, MOST_PART), (1e6, 10**6), (8_000, 8_000), (10, LEAST_PART)])
def test_a_part_of_an_upload_takes_a_second(rate: float, want: int) -> None:
    part = FIRST_PART
    for _ in range(12):
        part = next_part(part, part / rate)
    assert part == pytest.approx(want, abs=1)


@pytest.mark.parametrize(("rate", "want"), [(1e9, MOST_TAKEN), (1e6, 500_000), (8_000, 4_000), (10, LEAST_TAKEN)])
@pytest.mark.parametrize("rtt", [0.0, 0.3])
def test_two_parts_of_a_download_take_a_second(rate: float, want: int, rtt: float) -> None:
    part = FIRST_TAKEN
    for _ in range(30):
        part = next_taken(2 * part, max(rtt, 2 * part / rate))
    assert part == pytest.approx(want, abs=1)
