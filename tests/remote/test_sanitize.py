"""Remote text on a terminal: nothing that a terminal obeys, reorders by or hides survives."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote.sanitize import KEY_CAP, clean, clean_text, scrub

PIECES = st.sampled_from(
    ["\x1b", "[", "]", "0;", "52;c;", "\x07", "\x1b\\", "\x9b", "\x9d", "\x90", "\x9c", "m", "H", "P", "_", "^",
     "\r", "\n", "\t", "\b", "\x7f", "\u202e", "\u2066", "\u200b", "\ufeff", "\U000e0041", "ok", "é漢", "\ud800", "?25"]
)  # fmt: skip
MIXES = st.one_of(st.lists(PIECES, max_size=40).map("".join), st.text(max_size=60))


SEEN = {0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD, *range(0x600, 0x606), *range(0x13430, 0x13440)}
"""Format characters that have a shape of their own: signs before Arabic, Syriac and Kaithi numbers, and the like."""


def harmless(text: str, allowed: str = "") -> bool:
    return all(
        c in allowed or ord(c) in SEEN or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in text
    )


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"loss 6.127\n", "loss 6.127"),
        (b"\x1b[1;31mred\x1b[0m plain", "red plain"),
        (b"\x1b]52;c;ZXZpbA==\x07after", "after"),
        (b"\x1b]0;title\x1b\\after", "after"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        (b"\x1bP1;2q unterminated DCS", ""),
        (b"\xc2\x9b31mC1 CSI", "C1 CSI"),
        (b"10%\r50%\r100%\r\n", "100%"),
        (b"a\tb", "a       b"),
        (b"bad \xff byte", "bad \ufffd byte"),
        ("left \u202e right".encode(), "left \ufffd right"),
        (b"bell\x07null\x00", "bell\ufffdnull\ufffd"),
        (b"[not markup](x) [/red]", "[not markup](x) [/red]"),
    ],
)
def test_lines_people_meet(raw: bytes, shown: str) -> None:
    assert clean(raw) == shown


def test_a_line_is_capped() -> None:
    assert len(clean(b"x" * 1_000_000)) == 4096
    assert clean("漢".encode() * 10, cap=4) == "漢漢漢漢"


@settings(max_examples=400, deadline=None)
@given(st.one_of(st.binary(max_size=80), MIXES.map(lambda text: text.encode("utf-8", "surrogatepass"))))
def test_no_bytes_get_a_control_character_through(data: bytes) -> None:
    assert harmless(clean(data))


@settings(max_examples=400, deadline=None)
@given(MIXES)
def test_no_text_gets_more_than_newlines_and_tabs_through(text: str) -> None:
    cleaned = clean_text(text)
    assert harmless(cleaned, "\n\t")
    assert clean_text(cleaned) == cleaned
    cleaned.encode("utf-8")


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), max_size=80))
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert clean_text(text) == text


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), MIXES),
        lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(MIXES, inner, max_size=4)),
        max_leaves=12,
    )
)
def test_every_string_of_a_value_is_cleaned(value: object) -> None:
    def walk(item: object) -> None:
        if isinstance(item, str):
            assert harmless(item, "\n\t")
        elif isinstance(item, list):
            for inner in item:
                walk(inner)
        elif isinstance(item, dict):
            for name, inner in item.items():
                walk(name)
                walk(inner)

    walk(scrub(value))


def test_numbers_and_long_payloads_are_kept() -> None:
    value = {"data": "QUJD" * 16384, "offset": 12, "done": True, "loss": [1.5, None]}
    assert scrub(json.loads(json.dumps(value))) == value
    assert len(next(iter(scrub({"k" * 1000: 1})))) == KEY_CAP


def test_hostile_input_takes_no_noticeable_work() -> None:
    # each of these is quadratic or worse for a careless pattern; the suite's timeout would end the test
    for data in ("\x1b]" * 500_000, "\x1b[" + "0;" * 500_000, "\x9d" * 500_000, "\x1b" + " " * 500_000):
        assert harmless(clean_text(data), "\n\t")
