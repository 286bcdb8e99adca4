"""The client against agents that answer late, out of order, with garbage, hostile, or not at all."""

from __future__ import annotations

import asyncio
import base64
import json
import time
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from remote import client as module
from remote import protocol
from remote.client import MAX_GARBAGE, MAX_UNFRAMED, AgentClient
from remote.errors import ConnectionLost, DeadlineExceeded, RemoteError

HELLO = protocol.Hello(protocol.PROTOCOL, "", "3.11.0", 1, {}, 0.0, 0.0, "box", 0, "/data")
Answer = Callable[[dict[str, Any]], list[Any]]


class Wire:
    """The channel of an agent that answers each request as ``answer`` says: objects, or bytes as they are."""

    stderr_tail = b"Traceback (most recent call last):\nMemoryError: \x1b[31mno memory\n"

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.requests: list[dict[str, Any]] = []
        self.incoming: asyncio.Queue[bytes] = asyncio.Queue()
        self._decoder = protocol.Decoder()

    async def read(self, size: int = 65536) -> bytes:
        return await self.incoming.get()

    async def write(self, data: bytes) -> None:
        for line in data.splitlines():
            request = vars(self._decoder.decode(line))
            self.requests.append(request)
            if request["op"] == "ping":
                self.send({"id": request["id"], "ok": True, "result": {"wall": time.time()}})
            else:
                self.send(*self.answer(request))

    def send(self, *messages: Any) -> None:
        for message in messages:
            self.incoming.put_nowait(message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n")

    def end(self) -> None:
        self.incoming.put_nowait(b"")

    async def close(self) -> None:
        self.end()


def echo(request: dict[str, Any]) -> list[Any]:
    return [{"id": request["id"], "ok": True, "result": request["args"]}]


def never(request: dict[str, Any]) -> list[Any]:
    return []


@asynccontextmanager
async def client_of(answer: Answer, **settings: Any) -> AsyncIterator[tuple[AgentClient, Wire, list[Any]]]:
    wire: Any = Wire(answer)
    pushes: list[Any] = []
    client = AgentClient(wire, HELLO, lambda name, data: pushes.append((name, data)), **settings)
    running = asyncio.create_task(client.run())
    try:
        yield client, wire, pushes
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def lost(client: AgentClient) -> ConnectionLost:
    """Waits for a request that can only end in the loss of the connection."""
    with pytest.raises(ConnectionLost) as caught:
        await client.request("runs", {}, 30)
    return caught.value


async def test_answers_find_their_requests_in_any_order() -> None:
    held: list[Any] = []

    def reversed_pairs(request: dict[str, Any]) -> list[Any]:
        held.append(echo(request)[0])
        return [held.pop(), held.pop()] if len(held) == 2 else []

    async with client_of(reversed_pairs) as (client, _, _):
        first, second = await asyncio.gather(client.request("plan", {"run": "a"}), client.request("plan", {"run": "b"}))
    assert (first, second) == ({"run": "a"}, {"run": "b"})


async def test_a_line_may_arrive_in_pieces_and_several_at_once() -> None:
    def pieces(request: dict[str, Any]) -> list[Any]:
        line = json.dumps(echo(request)[0]).encode() + b"\n" + b'{"push":"host","seq":1,"data":{"cpu_pct":1.5}}\n'
        return [line[at : at + 7] for at in range(0, len(line), 7)]

    async with client_of(pieces) as (client, _, pushes):
        assert await client.request("plan", {"run": "é漢"}) == {"run": "é漢"}
        await client.ping()
    assert pushes == [("host", {"cpu_pct": 1.5})]


async def test_a_packed_answer_is_joined_also_with_others_in_between() -> None:
    rows = {"step": list(range(5000))}
    text = base64.b64encode(zlib.compress(json.dumps(rows).encode())).decode()
    middle = len(text) // 2

    def packed(request: dict[str, Any]) -> list[Any]:
        head = {"id": request["id"], "ok": True}
        push = {"push": "run", "seq": 1, "data": {"run": "r"}}
        return [{**head, "zip": text[:middle], "more": True}, push, {**head, "zip": text[middle:]}]

    async with client_of(packed) as (client, _, pushes):
        assert await client.request("metrics", {"run": "r", "stage": "train"}) == rows
    assert pushes == [("run", {"run": "r"})]


async def test_a_refusal_is_typed_and_sanitised() -> None:
    def refuse(request: dict[str, Any]) -> list[Any]:
        error = {"code": "refused", "message": "full\x1b]52;c;eA==\x07 disk", "remedy": "free \u202espace"}
        return [{"id": request["id"], "ok": False, "error": error}]

    async with client_of(refuse) as (client, _, _):
        with pytest.raises(RemoteError) as caught:
            await client.request("start", {"run": "r"})
    error = caught.value
    assert (error.code, error.message, error.remedy) == ("refused", "full disk", "free \ufffdspace")


async def test_results_and_pushes_are_sanitised() -> None:
    dirty = {"na\x1b[2Jme": ["\x1b]0;t\x07ok", {"deep": "\x9b31mred\x00"}], "n": 1}

    def answer(request: dict[str, Any]) -> list[Any]:
        return [{"push": "run\x1b[m", "seq": 1, "data": dirty}, {"id": request["id"], "ok": True, "result": dirty}]

    clean = {"name": ["ok", {"deep": "red\ufffd"}], "n": 1}
    async with client_of(answer) as (client, _, pushes):
        assert await client.request("runs", {}) == clean
    assert pushes == [("run", clean)]


async def test_a_deadline_that_passes_leaves_the_outcome_open_and_the_late_answer_unread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "GRACE_S", 0.0)
    async with client_of(never) as (client, wire, _):
        with pytest.raises(DeadlineExceeded, match="not known"):
            await client.request("stop", {"run": "r"}, deadline_s=0.05)
        late = wire.requests[-1]["id"]
        wire.send({"id": late, "ok": True, "result": "late"})
        wire.answer = echo
        assert await client.request("plan", {"run": "next"}) == {"run": "next"}


async def test_everything_in_flight_hears_of_the_loss_and_so_does_everything_after() -> None:
    async with client_of(never) as (client, wire, _):
        waiting = [asyncio.create_task(client.request("runs", {})) for _ in range(3)]
        await asyncio.sleep(0)
        wire.end()
        assert all(isinstance(e, ConnectionLost) for e in await asyncio.gather(*waiting, return_exceptions=True))
        with pytest.raises(ConnectionLost, match="MemoryError: no memory"):
            await client.request("runs", {})


GARBAGE = [
    b"not json\n",
    b"[]\n",
    b"{}\n",
    b'{"id": 1, "ok": true, "result": NaN}\n',
    b'{"id": 1, "ok": true, "result": 1e999}\n',
    b'{"id": 1, "ok": true, "result": ' + b"9" * 5000 + b"}\n",
    b'{"id": 1, "ok": true, "result": ' + b"[" * 500 + b"]" * 500 + b"}\n",
    b'{"id": "1", "ok": true, "result": 1}\n',
    b'{"push": "x", "seq": 1, "data": []}\n',
    b'{"id": 1, "ok": true, "zip": "!!!"}\n',
    b'{"id": 5, "op": "runs", "args": {}}\n',
    b"\xff\xfe\n",
    b"x" * (protocol.MAX_LINE + 10) + b"\n",
]


async def test_a_stream_with_a_piece_missing_is_hung_up_on_at_once() -> None:
    streamer = protocol.Streamer()
    lines = [streamer.pack(protocol.encode(protocol.Push("host", n, {"n": n}))[0]) for n in range(3)]
    async with client_of(never) as (client, wire, pushes):
        wire.send(lines[0], lines[2])
        assert "missing" in (await lost(client)).message
    assert pushes == [("host", {"n": 0})]


@pytest.mark.parametrize("line", GARBAGE, ids=range(len(GARBAGE)))
async def test_garbage_is_counted_and_then_hung_up_on(line: bytes) -> None:
    async with client_of(echo) as (client, wire, _):
        wire.send(*[line] * MAX_GARBAGE)
        assert await client.request("plan", {"run": "still"}) == {"run": "still"}
        assert client.garbage == MAX_GARBAGE
        wire.answer = never
        wire.send(line)
        assert "breaks the protocol" in (await lost(client)).message


async def test_something_endless_is_hung_up_on_without_being_kept() -> None:
    async with client_of(never) as (client, wire, _):
        for _ in range(MAX_UNFRAMED // 65536 + 1):
            wire.send(b"x" * 65536)
        assert "endless" in (await lost(client)).message


async def test_pings_go_out_and_tell_round_trip_and_skew() -> None:
    class Ahead(Wire):
        def send(self, *messages: Any) -> None:
            for message in messages:
                message["result"]["wall"] += 3600
            super().send(*messages)

    wire: Any = Ahead(never)
    client = AgentClient(wire, HELLO, lambda name, data: None, ping_s=0.01)
    running = asyncio.create_task(client.run())
    while len(wire.requests) < 3 or client.skew_s is None:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    running.cancel()
    assert client.skew_s == pytest.approx(3600, abs=1)
    assert client.rtt_s is not None and 0 <= client.rtt_s < 1


async def test_an_agent_that_hangs_is_given_up() -> None:
    class Hung(Wire):
        async def write(self, data: bytes) -> None:
            await asyncio.Event().wait()

    wire: Any = Hung(never)
    client = AgentClient(wire, HELLO, lambda name, data: None, silence_s=0.2)
    with pytest.raises(ConnectionLost, match="silent"):
        await client.run()


async def test_a_request_too_long_for_a_line_is_refused_here() -> None:
    async with client_of(echo) as (client, _, _):
        with pytest.raises(RemoteError, match="cannot be sent"):
            await client.request("plan", {"run": "x" * protocol.MAX_LINE})
        assert await client.request("plan", {"run": "x"}) == {"run": "x"}
