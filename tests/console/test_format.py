"""Numbers as shown: known values, the rounding edges between units, and unknown that never becomes 0."""

from __future__ import annotations

import math

import pytest

from console import format as shown


@pytest.mark.parametrize(
    ("value", "si", "iec"),
    [
        (0, "0 B", "0 B"),
        (999, "999 B", "999 B"),
        (1000, "1.00 kB", "1000 B"),
        (1024, "1.02 kB", "1.00 KiB"),
        (57_344, "57.3 kB", "56.0 KiB"),
        (999_600, "1.00 MB", "976 KiB"),
        (2_293_760_000_000, "2.29 TB", "2.09 TiB"),
        (5_734_400_000_000, "5.73 TB", "5.22 TiB"),
        (-5_000_000_000, "-5.00 GB", "-4.66 GiB"),
    ],
)
def test_bytes(value: int, si: str, iec: str) -> None:
    assert shown.si_bytes(value) == si
    assert shown.iec_bytes(value) == iec
    assert shown.both_bytes(value) == f"{si} ({iec})"


def test_counts() -> None:
    assert shown.full_count(21_033_536) == "21,033,536"
    assert [shown.short_count(n) for n in (0, 9_999, 10_000, 21_033_536, 999_999, 1.2e9)] == [
        "0",
        "9,999",
        "10.0k",
        "21.0M",
        "1.00M",
        "1.20B",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0s"),
        (8.44, "8.4s"),
        (9.96, "10s"),
        (59.6, "1m00s"),
        (187, "3m07s"),
        (3599.7, "1h00m"),
        (15_120, "4h12m"),
        (183_600, "2d03h"),
        (-5, "-5.0s"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert shown.duration(seconds) == text


def test_a_part_is_100_percent_only_when_it_is_whole() -> None:
    assert [shown.percent(part, 1000) for part in (0, 4, 414, 999.9, 1000, 1500)] == [
        "0%",
        "0%",
        "41%",
        "99%",
        "100%",
        "150%",
    ]


def test_rates_change_their_time_base_with_their_size() -> None:
    assert shown.rate(182_345, "tokens") == "182k tokens/s"
    assert shown.rate(3.26, "steps") == "3.3 steps/s"
    assert shown.rate(0.07, "samples") == "4.2 samples/min"
    assert shown.rate(0.001, "samples") == "3.6 samples/h"
    assert shown.rate(0, "samples") == "0.0 samples/s"
    assert shown.byte_rate(10_555_555) == "+38.0 GB/h"


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_unknown_is_a_dash_everywhere(value: float | None) -> None:
    one_argument = (
        shown.si_bytes,
        shown.iec_bytes,
        shown.both_bytes,
        shown.full_count,
        shown.short_count,
        shown.number,
        shown.percent,
        shown.duration,
        shown.byte_rate,
        shown.age,
    )
    assert [function(value) for function in one_argument] == [shown.UNKNOWN] * len(one_argument)
    assert shown.rate(value, "tokens") == shown.UNKNOWN
    assert shown.percent(1, value) == shown.UNKNOWN
    assert shown.percent(1, 0) == shown.UNKNOWN


@pytest.mark.parametrize(
    ("message", "remedy", "said"),
    [
        ("r1 is running", "stop it first", "r1 is running. Stop it first."),
        ("It is lost.", "Try again.", "It is lost. Try again."),
        ("Why?", "", "Why?"),
        ("", "look here", "Look here."),
        ("", "", ""),
    ],
)
def test_a_message_and_its_remedy_are_sentences(message: str, remedy: str, said: str) -> None:
    assert shown.sentence(message, remedy) == said
