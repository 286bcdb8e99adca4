"""Ids to text: any cutting into pieces gives the same text, split and stopped at the same place."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engine.text import Answer, Pieces, StopStrings, Think

START, END = 300, 301
OPEN = Think(START, END, open=True)


def decode(ids: Sequence[int]) -> str:
    """A byte-level tokenizer with one token a byte; the special tokens say nothing."""
    return bytes(one for one in ids if one < 256).decode("utf-8", "replace")


def cut(ids: list[int], places: list[int]) -> list[list[int]]:
    marks = sorted({place % (len(ids) + 1) for place in places} | {0, len(ids)})
    return [ids[a:b] for a, b in pairwise(marks)]


TEXTS = st.text(alphabet="ab\n é😀\N{REPLACEMENT CHARACTER}", max_size=20)


@given(TEXTS, st.lists(st.integers(0, 100), max_size=8))
def test_pieces_add_up_to_the_text(text: str, places: list[int]) -> None:
    pieces = Pieces(decode)
    parts = [pieces.push(part) for part in cut(list(text.encode()), places)]
    assert "".join(parts) + pieces.finish() == text


@given(st.lists(st.integers(0, 255), max_size=12), st.lists(st.integers(0, 100), max_size=8))
def test_pieces_of_what_is_no_text_end_like_the_whole(ids: list[int], places: list[int]) -> None:
    pieces = Pieces(decode)
    text = "".join(pieces.push(part) for part in cut(ids, places)) + pieces.finish()
    assert text.replace("\N{REPLACEMENT CHARACTER}", "") == decode(ids).replace("\N{REPLACEMENT CHARACTER}", "")


def test_a_character_waits_for_its_last_byte() -> None:
    pieces = Pieces(decode)
    given_out = [pieces.push([byte]) for byte in "a😀b".encode()]
    assert given_out == ["a", "", "", "", "😀", "b"]


@given(TEXTS, TEXTS, st.lists(st.integers(0, 100), max_size=8), st.integers(0, 6))
def test_reasoning_and_content_part_at_the_end_tag(reasoning: str, content: str, places: list[int], hold: int) -> None:
    ids = [*reasoning.encode(), END, *content.encode()]
    answer = Answer(decode, OPEN, hold)
    parts = [answer.push(part) for part in cut(ids, places)] + [answer.finish()]
    assert "".join(part for part, _ in parts) == reasoning
    assert "".join(part for _, part in parts) == content
    assert answer.reasoning_tokens == len(reasoning.encode())


def read(think: Think | None, ids: list[int]) -> tuple[str, str, int]:
    answer = Answer(decode, think)
    return (*answer.finish(ids), answer.reasoning_tokens)


def test_where_reasoning_starts_and_ends() -> None:
    a, b = list(b"aa"), list(b"bb")
    assert read(OPEN, a) == ("aa", "", 2)
    assert read(OPEN, [END, *b]) == ("", "bb", 0)
    assert read(OPEN, [START, *a, END, *b]) == ("aa", "bb", 2)
    assert read(OPEN, [*a, END, *b, END, *a]) == ("aa", "bbaa", 2)
    closed = Think(START, END, open=False)
    assert read(closed, b) == ("", "bb", 0)
    assert read(closed, [START, *a, END, *b]) == ("aa", "bb", 2)
    assert read(None, [*a, END, *b]) == ("", "aabb", 0)


@given(
    st.text(alphabet="ab", max_size=14), st.integers(0, 14), st.lists(st.sampled_from(["ab", "bba", "aa"]), min_size=1)
)
def test_a_stop_string_cuts_streams_and_wholes_alike(text: str, tag: int, stops: list[str]) -> None:
    ids = [*text[:tag].encode(), END, *text[tag:].encode()]
    watch = StopStrings(Answer(decode, OPEN), stops)
    answer = Answer(decode, OPEN, max(map(len, stops)) - 1)
    streamed = ["", ""]
    taken, found = 0, False
    while taken < len(ids) and not found:
        found = watch.push([ids[taken]])
        taken += 1
        parts = answer.finish([ids[taken - 1]], watch.length) if found else answer.push([ids[taken - 1]])
        streamed = [streamed[0] + parts[0], streamed[1] + parts[1]]
    if not found:
        parts = answer.finish()
        streamed = [streamed[0] + parts[0], streamed[1] + parts[1]]
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    # the string that is complete first ends the answer
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    assert found == bool(places)
    expected = text
    if found:
        first = min(ends)
        expected = min((text[: first - len(stop)] for stop in stops if text[:first].endswith(stop)), key=len)
    assert "".join(streamed) == expected
    assert Answer(decode, OPEN).finish(ids[:taken], watch.length) == (streamed[0], streamed[1])


@pytest.mark.parametrize("at_once", [True, False])
def test_a_stop_string_across_the_end_tag(at_once: bool) -> None:
    ids = [*b"xSTO", END, *b"Py"]
    watch = StopStrings(Answer(decode, OPEN), ["STOP"])
    found = watch.push(ids) if at_once else [watch.push([one]) for one in ids[:-1]][-1]
    assert (found, watch.found, watch.length) == (True, "STOP", 1)
    assert Answer(decode, OPEN, 3).finish(ids, watch.length) == ("x", "")
