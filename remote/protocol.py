"""The wire between the console and the agent: one JSON object a line, at most 64 KiB, both ways.

What it is for: framing, strict parsing of untrusted lines, typed messages, the table of operations, the error codes.
Imports the standard library only, and nothing of this project: the host runs it on any Python >= 3.9.

Messages, one a line, UTF-8, terminated by ``\\n``:

    nonce                                            first line of the agent, as given; everything before it is noise
    {"hello": {…}}                                   second line of the agent
    {"id", "op", "args", "deadline_s"}               request
    {"id", "ok": true, "result": …}                  reply
    {"id", "ok": false, "error": {"code", "message", "remedy"}}
    {"push": name, "seq": n, "data": {…}}            push

The ``result`` of a reply (``data`` of a push) of more than PACK_ABOVE bytes is packed: JSON, zlib, base64, cut into
``"zip"`` parts, every part but the last with ``"more": true``. Parts of one message keep their order; other messages
may lie between them. Decoder joins them.

Behind the hello each end sends its lines through one deflate stream, which lasts as long as the connection: a line of
at most STREAM_MOST bytes travels as

    {"z": base64 of [the line's number in the stream modulo 256, its piece of the stream]}

so that a snapshot costs what is new in it, and is whole all the same: what was replaced before it was sent, or told to
a laptop that has gone, is missing nowhere. The numbers show a piece that got lost, after which nothing more can be
understood: StreamBroken, and the connection is made anew.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import zlib
from dataclasses import dataclass, field
from typing import Any, Union

PROTOCOL = 2
MAX_LINE = 65536
"""Bytes of a line, its newline included."""
MAX_DEPTH = 32
MAX_RESULT = 16 * 1024 * 1024
"""Bytes of one joined and unpacked result."""
MAX_OPEN_PARTS = 32
PACK_ABOVE = 16384
STREAM_MOST = PACK_ABOVE + 512
"""Bytes of a line that still goes through the stream: a snapshot does, a piece of a log would push it out of sight."""
PING_EVERY_S = 5.0
SILENCE_S = 45.0
"""An agent that hears nothing for this long ends itself."""
TAIL_MAX = 49152
DEADLINE_S = 15.0

ERROR_CODES = (
    "bad-frame",  # not a JSON object, too long, too deep, not finite
    "bad-request",  # unknown operation, or arguments of the wrong type
    "not-found",  # no such run, stage, attempt, file
    "refused",  # understood, and a rule of the host says no: message and remedy say why
    "deadline",  # not finished within deadline_s; the outcome is unknown, only idempotent operations may be repeated
    "internal",
)


class ProtocolError(Exception):
    """A line that breaks the rules above, or arguments an operation does not take. ``code`` is one of ERROR_CODES."""

    def __init__(self, message: str, code: str = "bad-frame") -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class StreamBroken(ProtocolError):
    """A piece of the stream is damaged or missing: what follows can't be understood either."""


@dataclass(frozen=True)
class Hello:
    protocol: int
    agent: str
    """Hash of the code folder the agent runs from ("" when it runs from a checkout)."""
    python: str
    pid: int
    incarnation: dict[str, Any]
    wall: float
    mono: float
    hostname: str
    uid: int
    root: str


@dataclass(frozen=True)
class Request:
    id: int
    op: str
    args: dict[str, Any] = field(default_factory=dict)
    deadline_s: float = DEADLINE_S


@dataclass(frozen=True)
class Reply:
    id: int
    result: Any


@dataclass(frozen=True)
class Failure:
    id: int
    code: str
    message: str
    remedy: str = ""


@dataclass(frozen=True)
class Push:
    name: str
    seq: int
    data: dict[str, Any]


Message = Union[Hello, Request, Reply, Failure, Push]

_STR, _INT, _NUM, _OBJ, _LIST = "text", "integer", "number", "object", "list"
OPS: dict[str, dict[str, str]] = {
    # operation: {argument: type}; a "?" after the type means that it may be left out (or null)
    "ping": {},
    "runs": {},
    "create": {"name": _STR, "plan": _OBJ},
    "plan": {"run": _STR},
    "set": {"run": _STR, "changes": _OBJ, "note": _STR + "?"},
    "start": {"run": _STR, "from": _STR + "?", "through": _STR + "?", "stale": _STR + "?"},
    "resume": {"run": _STR, "stage": _STR + "?", "stale": _STR + "?"},
    "stop": {"run": _STR, "stage": _STR + "?"},
    "kill": {"run": _STR, "stage": _STR + "?"},
    "restart": {"run": _STR, "stage": _STR, "stale": _STR + "?"},
    "adopt": {"run": _STR, "stage": _STR},
    "watch": {"run": _STR, "every_s": _NUM + "?"},
    "unwatch": {},
    "metrics": {
        "run": _STR,
        "stage": _STR,
        "output": _INT + "?",
        "names": _LIST + "?",
        "points": _INT + "?",
        "since_step": _NUM + "?",
        "until_step": _NUM + "?",
    },
    "events": {"run": _STR, "since": _OBJ + "?", "max": _INT + "?"},
    "tail": {
        "run": _STR + "?",
        "stage": _STR + "?",
        "service": _STR + "?",
        "attempt": _INT + "?",
        "generation": _STR + "?",
        "offset": _INT + "?",
        "max": _INT + "?",
    },
    "telemetry": {"since": _NUM + "?", "points": _INT + "?"},
    "budget": {"run": _STR, "plan": _OBJ + "?"},
    "services": {"run": _STR},
    "service_start": {"run": _STR, "service": _STR},
    "service_stop": {"run": _STR, "service": _STR, "despite": _LIST + "?"},
    "doctor": {"run": _STR + "?"},
    "stat": {"path": _STR},
}


def check_args(op: str, args: dict[str, Any]) -> None:
    """Raises ProtocolError("bad-request") when ``op`` is unknown or ``args`` are not exactly what it takes."""
    spec = OPS.get(op)
    if spec is None:
        raise ProtocolError(f"unknown operation {op!r:.60}", "bad-request")
    for name in args:
        if name not in spec:
            raise ProtocolError(f"{op}: unknown argument {name!r:.60}", "bad-request")
    for name, kind in spec.items():
        value = args.get(name)
        if value is None:
            if not kind.endswith("?"):
                raise ProtocolError(f"{op}: argument {name!r} is missing", "bad-request")
        elif not _is(value, kind.rstrip("?")):
            raise ProtocolError(f"{op}: argument {name!r} must be {kind.rstrip('?')}", "bad-request")


def _is(value: object, kind: str) -> bool:
    if kind == _STR:
        return isinstance(value, str)
    if kind == _INT:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == _NUM:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, dict if kind == _OBJ else list)


# ---------------------------------------------------------------- lines


class Splitter:
    """Cuts a byte stream into lines. A line longer than MAX_LINE is dropped to its end and reported as None."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._dropping = False

    def feed(self, data: bytes) -> list[bytes | None]:
        """The lines completed by ``data``, without their newline. An unterminated rest is held, never returned."""
        lines: list[bytes | None] = []
        start = 0
        while True:
            end = data.find(b"\n", start)
            if end < 0:
                break
            if self._dropping:
                self._dropping = False
                lines.append(None)
            else:
                self._held += data[start:end]
                lines.append(bytes(self._held) if len(self._held) < MAX_LINE else None)
            self._held.clear()
            start = end + 1
        if not self._dropping:
            self._held += data[start:]
            if len(self._held) >= MAX_LINE:
                self._held.clear()
                self._dropping = True
        return lines


def parse_json(data: bytes) -> Any:
    """Strict JSON: finite numbers, integers up to 64 bits, at most MAX_DEPTH levels. Raises ProtocolError."""
    try:
        value = json.loads(
            data.decode("utf-8"), parse_constant=_no_constant, parse_float=_finite_float, parse_int=_bounded_int
        )
    except ProtocolError:
        raise
    except RecursionError:
        raise ProtocolError("nested too deeply") from None
    except ValueError as error:
        raise ProtocolError(f"not JSON: {str(error)[:120]}") from None
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            item
            for box in level
            if isinstance(box, (dict, list))
            for item in (box.values() if isinstance(box, dict) else box)
            if isinstance(item, (dict, list))
        ]
        if not level:
            return value
    raise ProtocolError("nested too deeply")


def _no_constant(text: str) -> Any:
    raise ProtocolError(f"{text} is not a JSON number")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ProtocolError("a number is out of range")
    return value


def _bounded_int(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= int(text) < 2**64:
        raise ProtocolError("an integer is out of range")
    return int(text)


def dump_json(value: Any) -> bytes:
    """Compact JSON in UTF-8; NaN and infinities become null, lone surrogates become "?"."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


# ---------------------------------------------------------------- messages


def encode(message: Message) -> list[bytes]:
    """The lines of a message, each with its newline and within MAX_LINE. Raises ProtocolError when it can't be sent."""
    if isinstance(message, Hello):
        return [_line({"hello": vars(message)})]
    if isinstance(message, Request):
        return [_line({"id": message.id, "op": message.op, "args": message.args, "deadline_s": message.deadline_s})]
    if isinstance(message, Failure):
        error = {"code": message.code, "message": message.message[:4000], "remedy": message.remedy[:4000]}
        return [_line({"id": message.id, "ok": False, "error": error})]
    if isinstance(message, Reply):
        return _packed({"id": message.id, "ok": True}, "result", message.result)
    return _packed({"push": message.name, "seq": message.seq}, "data", message.data)


def _line(value: dict[str, Any]) -> bytes:
    line = dump_json(value) + b"\n"
    if len(line) > MAX_LINE:
        raise ProtocolError(f"a message of {len(line)} bytes is longer than a line may be ({MAX_LINE})", "bad-request")
    return line


def _packed(head: dict[str, Any], key: str, body: Any) -> list[bytes]:
    plain = dump_json(body)
    if len(plain) <= PACK_ABOVE:
        return [dump_json(head)[:-1] + b',"' + key.encode() + b'":' + plain + b"}\n"]
    if len(plain) > MAX_RESULT:
        raise ProtocolError(f"a result of {len(plain)} bytes is larger than {MAX_RESULT}", "internal")
    text = base64.b64encode(zlib.compress(plain, 6)).decode()
    step = MAX_LINE - 512
    parts = [text[at : at + step] for at in range(0, len(text), step)]
    lines = [_line({**head, "zip": part, "more": True}) for part in parts[:-1]]
    return [*lines, _line({**head, "zip": parts[-1]})]


_FLUSHED = b"\x00\x00\xff\xff"
"""How every piece of the stream ends (RFC 7692, 7.2.1): left out on the way."""


class Streamer:
    """Puts lines through the stream, in the order in which they are sent. One per direction of a connection."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._number = 0

    def pack(self, line: bytes) -> bytes:
        """The line (with its newline) to send for ``line``: what was packed must be sent, and nothing out of turn."""
        if len(line) > STREAM_MOST:
            return line
        piece = self._deflate.compress(line) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        number = bytes((self._number,))
        self._number = (self._number + 1) % 256
        return b'{"z":"' + base64.b64encode(number + piece[: -len(_FLUSHED)]) + b'"}\n'


class Decoder:
    """Turns lines into messages and joins packed parts. One per direction of a connection; bounded in memory."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], list[str]] = {}
        self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        self._number = 0

    def decode(self, line: bytes) -> Message | None:
        """The message that ``line`` completes, or None when parts are still to come.

        Raises ProtocolError; StreamBroken, a kind of it, when nothing that follows can be understood.
        """
        box = parse_json(line)
        if isinstance(box, dict) and "z" in box:
            box = parse_json(self._unpack(_take(box, "z", str)))
        if not isinstance(box, dict):
            raise ProtocolError("not a JSON object")
        if "hello" in box:
            return _hello(box["hello"])
        if "push" in box:
            name, seq = _take(box, "push", str), _take(box, "seq", int)
            data = self._body(box, "data", (name, seq))
            if data is None:
                return None
            if not isinstance(data[0], dict):
                raise ProtocolError("push data is not an object")
            return Push(name, seq, data[0])
        number = _take(box, "id", int)
        if "op" in box:
            return _request(box, number)
        if box.get("ok") is True:
            body = self._body(box, "result", ("", number))
            return None if body is None else Reply(number, body[0])
        error = box.get("error")
        if box.get("ok") is not False or not isinstance(error, dict):
            raise ProtocolError("neither a request, a reply nor a push")
        return Failure(
            number, _take(error, "code", str), _take(error, "message", str), str(error.get("remedy") or "")[:4000]
        )

    def _unpack(self, text: str) -> bytes:
        try:
            piece = base64.b64decode(text, validate=True)
            if piece[:1] != bytes((self._number,)):
                raise StreamBroken("a piece of the stream is missing")
            self._number = (self._number + 1) % 256
            line = self._inflate.decompress(piece[1:] + _FLUSHED, STREAM_MOST + 1)
        except (zlib.error, binascii.Error, ValueError):
            raise StreamBroken("the stream is damaged") from None
        if self._inflate.unconsumed_tail or self._inflate.eof or not line.endswith(b"\n"):
            raise StreamBroken("a piece of the stream is too long or cut short")
        return line

    def _body(self, box: dict[str, Any], key: str, of: tuple[str, int]) -> tuple[Any] | None:
        if "zip" not in box:
            if key not in box:
                raise ProtocolError(f"{key!r} is missing")
            return (box[key],)
        parts = self._open.setdefault(of, [])
        parts.append(_take(box, "zip", str))
        if sum(map(len, parts)) > MAX_RESULT * 2 or len(self._open) > MAX_OPEN_PARTS:
            self._open.clear()
            raise ProtocolError("too many parts")
        if box.get("more") is True:
            return None
        del self._open[of]
        try:
            unpack = zlib.decompressobj()
            plain = unpack.decompress(base64.b64decode("".join(parts), validate=True), MAX_RESULT)
        except (zlib.error, binascii.Error, ValueError):
            raise ProtocolError("a packed message is damaged") from None
        if not unpack.eof:
            raise ProtocolError("a packed message is too large or cut short")
        return (parse_json(plain),)


def _take(box: dict[str, Any], key: str, kind: type) -> Any:
    value = box.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ProtocolError(f"{key!r} must be {kind.__name__}")
    return value


def _request(box: dict[str, Any], number: int) -> Request:
    args = box.get("args", {})
    deadline = box.get("deadline_s", DEADLINE_S)
    if not isinstance(args, dict):
        raise ProtocolError("'args' must be an object")
    if not _is(deadline, _NUM) or not 0 < deadline <= 3600:
        raise ProtocolError("'deadline_s' must be a number of seconds up to 3600")
    return Request(number, _take(box, "op", str), args, float(deadline))


def _hello(box: Any) -> Hello:
    if not isinstance(box, dict):
        raise ProtocolError("hello is not an object")
    kinds: dict[str, Any] = {"protocol": int, "agent": str, "python": str, "pid": int, "incarnation": dict}
    kinds.update({"wall": float, "mono": float, "hostname": str, "uid": int, "root": str})
    taken = {}
    for name, kind in kinds.items():
        value = box.get(name)
        if kind is float and _is(value, _NUM):
            value = float(box[name])
        taken[name] = _take({name: value}, name, kind)
    return Hello(**taken)
