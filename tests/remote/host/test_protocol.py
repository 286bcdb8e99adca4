"""The wire: what is encoded comes back the same within its bounds, and no line, however hostile, does harm."""

from __future__ import annotations

import base64
import contextlib
import json
import math
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.protocol import (
    MAX_LINE,
    MAX_OPEN_PARTS,
    OPS,
    STREAM_MOST,
    Decoder,
    Failure,
    Hello,
    ProtocolError,
    Push,
    Reply,
    Request,
    Splitter,
    StreamBroken,
    Streamer,
    check_args,
    dump_json,
    encode,
    parse_json,
)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(blacklist_categories=("Cs",))),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=8), inner, max_size=8),
    max_leaves=60,
).filter(lambda value: "\ud800" not in repr(value))


def roundtrip(message):
    decoder, splitter, found = Decoder(), Splitter(), []
    for line in encode(message):
        assert len(line) <= MAX_LINE and line.endswith(b"\n") and line.count(b"\n") == 1
        found += [decoder.decode(piece) for piece in splitter.feed(line)]
    assert found[:-1] == [None] * (len(found) - 1)
    return found[-1]


@given(st.integers(0, 2**31), JSON)
def test_replies_come_back(number, result):
    assert roundtrip(Reply(number, result)) == Reply(number, result)


@given(st.dictionaries(st.text(max_size=8).filter(lambda key: key.isascii()), JSON, max_size=5))
def test_pushes_and_requests_come_back(data):
    assert roundtrip(Push("run", 7, data)) == Push("run", 7, data)
    assert roundtrip(Request(3, "set", data, 2.5)) == Request(3, "set", data, 2.5)


def test_hello_and_failure_come_back():
    hello = Hello(2, "ab", "3.11", 5, {"boot_id": "x"}, 1.5, 2.0, "box", 0, "/r")
    assert roundtrip(hello) == hello
    assert roundtrip(Failure(4, "refused", "no", "do")) == Failure(4, "refused", "no", "do")


def test_a_large_result_is_cut_into_lines_and_joined_with_others_between():
    columns = {"loss": [math.sin(n) for n in range(30_000)]}
    lines, decoder = encode(Reply(1, columns)), Decoder()
    assert len(lines) > 3
    other = encode(Push("host", 1, {"n": 1}))[0]
    for line in lines[:-1]:
        assert decoder.decode(line) is None
        assert decoder.decode(other) == Push("host", 1, {"n": 1})
    assert decoder.decode(lines[-1]) == Reply(1, columns)


def streamed(messages):
    streamer = Streamer()
    return [streamer.pack(line) for message in messages for line in encode(message)]


@given(st.lists(st.tuples(st.integers(0, 2**31), JSON), max_size=8))
def test_a_stream_of_messages_comes_back(pairs):
    messages = [Reply(number, result) for number, result in pairs]
    decoder = Decoder()
    lines = streamed(messages)
    assert all(len(line) <= MAX_LINE and line.count(b"\n") == 1 for line in lines)
    assert [message for line in lines if (message := decoder.decode(line))] == messages


@pytest.mark.parametrize("size", [STREAM_MOST - 1, STREAM_MOST, STREAM_MOST + 1, MAX_LINE])
def test_lines_around_the_most_that_is_streamed(size):
    head = dump_json({"id": 1, "ok": True, "result": ""})
    line = head[:-2] + bytes(35 + at * 7919 % 55 for at in range(size - len(head) - 1)) + b'"}\n'
    streamer, decoder = Streamer(), Decoder()
    assert len(line) == size and line.count(b'"') == 8
    for _ in range(3):
        packed = streamer.pack(line)
        assert (packed == line) is (size > STREAM_MOST)
        assert decoder.decode(packed) == Reply(1, line[len(head) - 2 : -3].decode())


def test_a_snapshot_costs_what_is_new_in_it():
    rows = [{"index": card, "name": f"card {card}", "power_w": 500 + math.sin(card)} for card in range(40)]
    same = [Push("host", number, {"gpus": rows}) for number in range(300)]
    lines = streamed(same)
    assert len(lines[0]) > 600 and max(map(len, lines[1:])) < 100
    changed = {"gpus": [{**rows[0], "power_w": 1.5}, *rows[1:]]}
    decoder = Decoder()
    assert [decoder.decode(line) for line in streamed([*same, Push("host", 300, changed)])][-1].data == changed


def test_a_piece_of_the_stream_that_is_missing_damaged_or_doubled_is_noticed():
    lines = streamed([Push("host", number, {"n": [number] * 50}) for number in range(600)])
    for bad in (lines[1], lines[3], b'{"z":""}', b'{"z":"Ag=="}', b'{"z":"AgAA"}', b'{"z":"Av//"}', b'{"z":"?"}'):
        decoder = Decoder()
        for line in lines[:2]:
            decoder.decode(line)
        with pytest.raises(StreamBroken):
            decoder.decode(bad)


def test_bombs_in_the_stream():
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = deflate.compress(b" " * 30_000_000) + deflate.flush(zlib.Z_SYNC_FLUSH)
    with pytest.raises(StreamBroken, match="too long"):
        Decoder().decode(b'{"z":"' + base64.b64encode(b"\0" + bomb[:-4]) + b'"}')
    streamer = Streamer()
    with pytest.raises(ProtocolError):  # a stream within the stream
        Decoder().decode(streamer.pack(Streamer().pack(b'{"id":1,"ok":true,"result":1}\n')))


def test_what_json_lacks_becomes_null_on_the_way_out():
    assert json.loads(dump_json({"a": [math.nan, math.inf, 1.5], "b": "\ud800"})) == {"a": [None, None, 1.5], "b": "?"}


def test_a_message_that_cannot_be_sent_is_refused():
    with pytest.raises(ProtocolError, match="longer than a line"):
        encode(Request(1, "create", {"plan": {"x": "y" * MAX_LINE}}))


@pytest.mark.parametrize(
    "text",
    [
        "NaN",
        "[Infinity]",
        '{"a": -Infinity}',
        "1e400",
        "-1e999",
        "9" * 30,
        "[" * 100 + "]" * 100,
        "{",
        "",
        "\x00",
        "'a'",
    ],
)
def test_strict_json(text):
    with pytest.raises(ProtocolError):
        parse_json(text.encode())


@given(st.binary(max_size=300))
def test_no_bytes_do_more_than_fail(data):
    with contextlib.suppress(ProtocolError):
        Decoder().decode(data)


@given(JSON)
def test_no_json_does_more_than_fail(value):
    with contextlib.suppress(ProtocolError):
        Decoder().decode(dump_json(value))


def part(number, text, more):
    return dump_json({"id": number, "ok": True, "zip": text, "more": more})


def decode_all(lines):
    decoder = Decoder()
    for line in lines:
        decoder.decode(line)


def test_bombs():
    bomb = base64.b64encode(zlib.compress(b" " * 200_000_000)).decode()
    pieces = [bomb[at : at + 60_000] for at in range(0, len(bomb), 60_000)]
    with pytest.raises(ProtocolError, match="too large"):
        decode_all([*(part(1, piece, True) for piece in pieces[:-1]), part(1, pieces[-1], False)])
    with pytest.raises(ProtocolError, match="too many parts"):
        decode_all(part(number, "x", True) for number in range(MAX_OPEN_PARTS + 1))
    with pytest.raises(ProtocolError, match="too many parts"):
        decode_all(part(1, "x" * 60_000, True) for _ in range(1000))


@given(st.lists(st.binary(max_size=50).filter(lambda line: b"\n" not in line), max_size=20), st.integers(1, 40))
def test_lines_whatever_the_pieces(lines, step):
    data = b"".join(line + b"\n" for line in lines) + b"rest"
    splitter, found = Splitter(), []
    for at in range(0, len(data), step):
        found += splitter.feed(data[at : at + step])
    assert found == lines
    assert splitter.feed(b"!\n") == [b"rest!"]


def test_a_line_without_end_is_dropped_and_the_next_one_read():
    splitter, found = Splitter(), []
    for _ in range(100):
        found += splitter.feed(b"x" * 10_000)
        assert len(splitter._held) < MAX_LINE
    assert splitter.feed(b"tail\nnext\n") == [None, b"next"]
    assert found == []
    assert splitter.feed(b"y" * MAX_LINE + b"\n") == [None]
    assert splitter.feed(b"y" * (MAX_LINE - 1) + b"\n") == [b"y" * (MAX_LINE - 1)]


@pytest.mark.parametrize("op", OPS)
def test_every_operation_refuses_what_it_does_not_take(op):
    with pytest.raises(ProtocolError, match="unknown argument"):
        check_args(op, {"surprise": 1})
    for name, kind in OPS[op].items():
        if not kind.endswith("?"):
            with pytest.raises(ProtocolError, match="missing"):
                check_args(op, {})
        with pytest.raises(ProtocolError):
            check_args(op, {name: object()})
