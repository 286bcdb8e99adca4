"""A double of a serving engine for the tests of generate: real HTTP, both engines' field names, faults on demand.

A token is a byte of the text; <think>, </think> and the end token are 256, 257, 258. A prompt is rendered as
`user:TEXT<think>`, and the answer to TEXT is `because TEXT</think>answer TEXT` and the end token, so every id can be
checked. Faults are put into `faults` and used up one a chat request.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import Plan
from pipeline.generate.work import generate
from pipeline.rundir import RunDir
from pipeline.stage import run_stage

SPECIAL = {"<think>": 256, "</think>": 257, "<end>": 258}
NAMES = {token: text for text, token in SPECIAL.items()}
VOCAB = 259


ODD = {
    "message-text": '{"choices": [{"message": "hi", "finish_reason": "stop"}], "usage": {"prompt_tokens": 1}}',
    "delta-list": '{"choices": [{"delta": [1]}]}',
    "delta-text": '{"choices": [{"delta": "hi"}]}',
    "choices-null": '{"choices": null}',
    "choice-null": '{"choices": [null]}',
    "usage-infinity": '{"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}], '
    '"usage": {"prompt_tokens": Infinity, "completion_tokens": 1}}',
    "usage-list": '{"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": [1]}',
    "content-parts": '{"choices": [{"delta": {"content": [{"text": "x"}]}, "finish_reason": "stop"}]}',
    "finish-object": '{"choices": [{"delta": {}, "finish_reason": {"type": "stop"}}]}',
    "deep": "[" * 100_000,
    "text": '"hi"',
}
"""Replies that are JSON (or nearly) and no answers."""


def encode(text: str) -> list[int]:
    for name, token in SPECIAL.items():
        text = text.replace(name, chr(0xE000 + token))
    ids: list[int] = []
    for char in text:
        ids += [ord(char) - 0xE000] if ord(char) >= 0xE000 and ord(char) - 0xE000 in NAMES else list(char.encode())
    return ids


def decode(ids: list[int]) -> str:
    return b"".join(NAMES[one].encode() if one in NAMES else bytes([one]) for one in ids).decode("utf-8", "replace")


def render(messages: list[dict[str, str]], tools: list[dict[str, Any]] | None = None) -> str:
    names = "".join(f"tool:{one['function']['name']}\n" for one in tools or [])
    return names + "".join(f"{one['role']}:{one['content']}\n" for one in messages) + "<think>"


def answer_ids(text: str) -> list[int]:
    return encode(f"because {text}</think>answer {text}<end>")


class Engine:
    """Settings may be changed while it runs; `asked` counts chat requests by the text of their last message."""

    def __init__(self) -> None:
        self.dialect = "vllm"  # vllm, sglang, old-sglang, plain, strict
        self.parser = True
        self.reasons = True
        self.key = ""
        self.models = ["double"]
        self.context = 0
        self.delay_s = 0.0
        self.broken: set[str] = set()
        """Prompts that fail every time."""
        self.unreasoned: set[str] = set()
        """Prompts whose answers come without reasoning."""
        self.tokenize = True
        self.tokenize_chats = True
        self.refusal = "vllm"  # vllm (counts up to the first token too many), old-vllm, sglang, sglang-stream, mute
        self.listed_context = 0
        self.tokenize_faults: deque[bytes] = deque()
        self.says: dict[str, Any] = {}
        self.extra_ids = 0
        self.faults: deque[str] = deque()
        self.always = ""
        self.asked: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []
        self.busy = self.most_busy = 0
        self.lock = threading.Lock()
        self.gate = threading.Event()
        self.port = 0
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        engine = self

        class Handler(_Handler):
            double = engine

        self._server = _Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


class _Server(ThreadingHTTPServer):
    allow_reuse_address = True
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Clients that are killed reset their connections: that is what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    double: Engine
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def reply(self, code: int, body: Any, headers: dict[str, str] | None = None) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(code)
        kind = "text/html" if isinstance(body, bytes) else "application/json"
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def error(self, code: int, message: str, headers: dict[str, str] | None = None) -> None:
        error = {"message": message, "type": "Error", "param": None, "code": code}
        self.reply(code, {"error": error} if self.double.dialect != "sglang" else {"object": "error", **error}, headers)

    def listed(self, name: str) -> dict[str, Any]:
        return {"id": name} | ({"max_model_len": self.double.listed_context} if self.double.listed_context else {})

    def refuse(self, prompt: int, answer: int) -> None:
        """What the engines say of a prompt and an answer that don't fit together."""
        context = self.double.context
        kind = "sglang" if "sglang" in self.double.refusal else self.double.refusal
        text = {
            "vllm": f"This model's maximum context length is {context} tokens. However, you requested {answer} output "
            f"tokens and your prompt contains at least {max(0, context - answer) + 1} input tokens, for a total of at "
            f"least {max(context, answer) + 1} tokens.",
            "old-vllm": f"'max_tokens' or 'max_completion_tokens' is too large: {answer}. This model's maximum context "
            f"length is {context} tokens and your request has {prompt} input tokens ({answer} > {context} - {prompt}).",
            "sglang": f"Requested token count exceeds the model's maximum context length of {context} tokens. You "
            f"requested a total of {prompt + answer} tokens: {prompt} tokens from the input messages and {answer} "
            "tokens for the completion.",
            "mute": "The input is too long.",
        }[kind]
        if self.double.refusal != "sglang-stream":
            return self.error(400, text)
        frame = json.dumps({"error": {"object": "error", "message": text, "type": "BadRequestError", "code": 400}})
        return self.odd(frame, stream=True)

    def refuses_key(self) -> bool:
        if self.double.key and self.headers.get("Authorization") != f"Bearer {self.double.key}":
            self.error(401, "Unauthorized")
            return True
        return False

    def do_GET(self) -> None:
        if self.double.always == "hung":
            self.double.gate.wait(60)
        if self.path == "/health":
            self.reply(503 if self.double.always in ("dead", "gateway") else 200, b"")
        elif self.double.always == "gateway":
            self.error(503, "no backend is available")
        elif self.path == "/v1/models" and self.double.always == "html":
            self.reply(200, b"<html>It works!</html>")
        elif self.path == "/v1/models":
            if not self.refuses_key():
                self.reply(200, {"object": "list", "data": [self.listed(one) for one in self.double.models]})
        else:
            self.error(404, "Not Found")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        engine = self.double
        if self.path == "/tokenize" and engine.tokenize:
            self.tokenize(body)
        elif self.path == "/detokenize" and engine.tokenize:
            self.reply(200, {"prompt": decode(body["tokens"])})
        elif self.path != "/v1/chat/completions":
            self.error(404, "Not Found")
        elif not self.refuses_key():
            with engine.lock:
                engine.busy += 1
                engine.most_busy = max(engine.busy, engine.most_busy)
                engine.asked[body["messages"][-1]["content"]] += 1
                engine.bodies.append(body)
                probe = body["messages"][-1]["content"] == "Hello"
                fault = engine.always or (engine.faults.popleft() if engine.faults and not probe else "")
            try:
                self.chat(body, fault)
            except (BrokenPipeError, ConnectionResetError):
                pass
            finally:
                with engine.lock:
                    engine.busy -= 1

    def tokenize(self, body: dict[str, Any]) -> None:
        engine, messages = self.double, body.get("messages")
        if messages is None:
            ids = encode(body["prompt"])
        elif engine.tokenize_faults and messages[-1]["content"] != "Hello":
            return self.reply(200, engine.tokenize_faults.popleft(), {"Content-Type": "application/json"})
        elif not engine.tokenize_chats:
            return self.error(400, "prompt: Field required")
        else:
            ids = encode(render(messages, body.get("tools")))
        return self.reply(200, {"count": len(ids), "max_model_len": engine.context, "tokens": ids})

    def chat(self, body: dict[str, Any], fault: str) -> None:
        engine = self.double
        prompt = encode(render(body["messages"], body.get("tools")))
        if body["model"] not in engine.models:
            return self.error(404, f"The model `{body['model']}` does not exist.")
        if engine.dialect == "strict" and set(body) & {"return_token_ids", "return_output_ids_in_sglext"}:
            return self.error(400, "Unrecognized request argument supplied: return_token_ids")
        if engine.context and len(prompt) + body["max_tokens"] > engine.context - ("sglang" in engine.refusal):
            return self.refuse(len(prompt), body["max_tokens"])
        if body["messages"][-1]["content"] in engine.broken:
            return self.error(500, "injected 500")
        if fault == "dead":
            return self.error(500, "EngineCore died")
        if fault == "gateway":
            return self.error(503, "no backend is available")
        if fault.isdigit():
            return self.error(int(fault), f"injected {fault}", {"Retry-After": "0.01"} if fault == "503" else None)
        if fault == "html":
            return self.reply(200, b"<html>It works!</html>")
        if fault == "nonsense":
            return self.reply(200, {"hello": 1})
        if fault in ODD:
            return self.odd(ODD[fault], stream=body["stream"])
        if fault == "reset":
            self.close_connection = True
            return self.connection.close()
        if fault == "slow":
            time.sleep(1.5)
        if fault in ("hang", "hung"):
            engine.gate.wait(60)
        time.sleep(engine.delay_s)
        return self.answer(body, prompt, fault)

    def answer(self, body: dict[str, Any], prompt: list[int], fault: str) -> None:
        engine, text = self.double, body["messages"][-1]["content"]
        reasons = engine.reasons and text not in engine.unreasoned
        output = answer_ids(text) if reasons else encode(f"answer {text}<end>")
        finish = "stop"
        if len(output) > body["max_tokens"]:
            output, finish = output[: body["max_tokens"]], "length"
        finish = {"abort": "abort"}.get(fault, finish)
        says = engine.says if finish == "stop" else {}
        whole = decode([one for one in output if one != 258])
        reasoning, marker, content = whole.partition("</think>")
        if not reasons:
            reasoning, content = "", whole
        elif not engine.parser:
            reasoning, content = "", reasoning + marker + content
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(output)}
        output = output + [1] * engine.extra_ids
        name = "reasoning" if engine.dialect == "vllm" else "reasoning_content"
        parts = [{name: reasoning}] if reasoning else []
        parts += [{"content": content[:7]}, {"content": content[7:]}] if content else []
        asked = body.get("return_token_ids")
        if not body["stream"]:
            choice: dict[str, Any] = {"index": 0, "finish_reason": finish, **says}
            choice["message"] = {"role": "assistant", "content": content, name: reasoning or None}
            frame = {"id": "x", "model": body["model"], "choices": [choice], "usage": usage}
            if engine.dialect == "vllm" and asked:
                frame["prompt_token_ids"], choice["token_ids"] = prompt, output
            elif "sglang" in engine.dialect and asked:
                choice["prompt_token_ids"], choice["response_token_ids"] = prompt, output
            return self.reply(200, frame)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        frames: list[dict[str, Any]] = []
        for number, part in enumerate([{"role": "assistant", "content": ""}, *parts]):
            frames.append({"choices": [{"index": 0, "delta": part, "finish_reason": None}]})
            if engine.dialect == "vllm" and asked and number:
                size = -(-len(output) // len(parts))
                frames[-1]["choices"][0]["token_ids"] = output[(number - 1) * size : number * size]
        frames.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish, **says}]})
        if engine.dialect == "vllm" and asked:
            frames[0]["prompt_token_ids"] = prompt
        frames.append({"choices": [], "usage": usage})
        if engine.dialect == "sglang" and body.get("return_output_ids_in_sglext"):
            frames[-1]["sglext"] = {"input_ids": prompt, "output_ids": output}
        return self.stream(frames, body["model"], fault)

    def stream(self, frames: list[dict[str, Any]], model: str, fault: str) -> None:
        if fault == "no-usage":
            frames = [one for one in frames if "usage" not in one]
        for number, frame in enumerate(frames):
            if number == 2:
                if fault == "cut":  # in the middle of a chunk
                    self.wfile.write(b"ff\r\ndata: {")
                    self.close_connection = True
                    return None
                if fault == "early-end":
                    return self.chunk(b"")
                if fault == "error-frame":
                    self.chunk(b'data: {"error": {"message": "EngineCore died", "code": 500}}\n\ndata: [DONE]\n\n')
                    return self.chunk(b"")
                if fault == "garbage":
                    self.chunk(b"data: <oops>\n\n")
                if fault == "stall":
                    for _ in range(400):  # comments are no progress
                        self.chunk(b": keep-alive\n\n")
                        time.sleep(0.05)
            self.chunk(
                b"data: " + json.dumps({"id": "x", "model": model, **frame}, ensure_ascii=False).encode() + b"\n\n"
            )
        if fault != "no-done":
            self.chunk(b"data: [DONE]\n\n")
        return self.chunk(b"")

    def odd(self, text: str, *, stream: bool) -> None:
        data = f"data: {text}\n\ndata: [DONE]\n\n".encode() if stream else text.encode()
        self.reply(200, data, {"Content-Type": "text/event-stream" if stream else "application/json"})

    def chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


@pytest.fixture
def engine() -> Iterator[Engine]:
    double = Engine()
    double.start()
    yield double
    double.gate.set()
    double.stop()


class Work:
    """A run whose generate asks the double."""

    def __init__(self, root: Path, engine: Engine) -> None:
        self.root, self.engine = root, engine
        self.prompts = root / "prompts.jsonl"
        self.run: RunDir | None = None

    def plan(self, count: int = 6, *, verifier: dict[str, Any] | None = None, text: str = "q", **params: Any) -> RunDir:
        rows = [{"id": f"p{number}", "prompt": f"{text}{number}"} for number in range(count)]
        if count:
            self.prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
        values = {"prompts": str(self.prompts), "endpoint": self.engine.url, "max_tokens": 200, "timeout_s": 5.0}
        raw = {
            "verifier": verifier or {},
            "volume": {"reserve_bytes": 0},
            "stages": {"generate": {"grace_s": 20, "params": {**values, **params}}},
        }
        self.run = RunDir.create(self.root, "r1", Plan.from_json(raw))
        return self.run

    def go(self, *words: str) -> int:
        assert self.run is not None
        return run_stage("generate", generate, ["--run", str(self.run.path), *words])

    @property
    def out(self) -> Path:
        assert self.run is not None
        return self.run.stage("generate").path / "out/0001"

    def rows(self, name: str = "samples.jsonl") -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.out / name).read_text("utf-8").split("\n") if line]

    def outcome(self) -> dict[str, Any]:
        assert self.run is not None
        attempt = self.run.stage("generate").latest()
        assert attempt is not None
        return attempt.outcome() or {}

    def events(self) -> list[dict[str, Any]]:
        assert self.run is not None
        attempt = self.run.stage("generate").latest()
        assert attempt is not None
        return [json.loads(line) for line in (attempt.path / "events.jsonl").read_text("utf-8").splitlines()]

    @staticmethod
    def ids_of(messages: list[dict[str, str]], tools: list[dict[str, Any]] | None = None) -> list[int]:
        return encode(render(messages, tools))

    def check(self, count: int) -> None:
        """Exactly `count` samples, each id once, every field and token id the double's own."""
        rows = self.rows()
        assert len(rows) == len({row["id"] for row in rows}) == count
        for row in rows:
            text = row["messages"][-1]["content"]
            assert text.removeprefix("q") == row["id"].removeprefix("p")
            assert row["output_ids"] == answer_ids(text)
            assert row["prompt_ids"] == encode(render(row["messages"]))
            assert (row["reasoning"], row["content"]) == (f"because {text}", f"answer {text}")
            assert row["finish_reason"] == "stop"


@pytest.fixture
def work(tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Work:
    monkeypatch.setattr("pipeline.generate.patience.FIRST_DELAY_S", 0.02)
    monkeypatch.setattr("pipeline.generate.patience.LONGEST_PING_S", 0.1)
    monkeypatch.setattr("pipeline.stagerun._LIVE_EVERY_S", 0.05)
    return Work(tmp_path, engine)


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """until(condition): waits for it, a minute at the most."""

    def wait(condition: Callable[[], bool]) -> None:
        end = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < end, "it never came"
            time.sleep(0.01)

    return wait
