"""The HTTP side: routes, JSON, server-sent events, readers that go away. Standard library's http.server only.

The socket is bound before the model loads, so that /health can say 503 meanwhile.
"""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Empty
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any

from pipeline.engine import replies
from pipeline.engine.chat import ApiError, chat_ids, check_model, encode, read_chat
from pipeline.engine.loading import Verifier
from pipeline.engine.metrics import Metrics, prometheus
from pipeline.engine.row import Event, Job
from pipeline.engine.text import Answer

if TYPE_CHECKING:  # brings torch, which must not delay the first answer of /health
    from pipeline.engine.work import Work

_LARGEST_BODY = 32 * 1024 * 1024
_WATCH_S = 0.25
"""How often a waiting reply looks whether its reader is still there."""


@dataclass(frozen=True)
class Ready:
    """A loaded engine."""

    verifier: Verifier
    work: Work
    started: int


@dataclass
class State:
    """What the handlers share; `ready` is None while the model loads."""

    metrics: Metrics = field(default_factory=Metrics)
    ready: Ready | None = None
    busy: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class Server(ThreadingHTTPServer):
    """Binds at once; raises OSError where the address is taken."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, host: str, port: int) -> None:
        self.state = State()
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), Handler)

    def server_bind(self) -> None:
        """Without http.server's look-up of the host's name, which waits for a name server where there is none."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that went away is no error; a mistake of ours was answered with a 500 where that was possible."""

    def drain(self, seconds: float) -> None:
        """Waits until no reply is under way, but not longer."""
        end = time.monotonic() + seconds
        while self.state.busy and time.monotonic() < end:
            time.sleep(0.02)


class Handler(BaseHTTPRequestHandler):
    """One connection; several requests may come through it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 75  # of an idle connection, and of a reader that takes nothing
    wbufsize = -1  # headers and body leave together, at the flush
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        """No line a request: the stages that ask keep their own count."""

    def handle_expect_100(self) -> bool:
        """Lets a client that asked first send its body."""
        going_on = super().handle_expect_100()
        self.wfile.flush()
        return going_on

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What http.server itself refuses, in the shape of all other errors."""
        self.close_connection = True
        self._send(code, ApiError(code, f"{message or 'The request is broken'}.").body())

    def do_GET(self) -> None:
        self._route({"/health": self._health, "/v1/models": self._models, "/metrics": self._metrics})

    def do_POST(self) -> None:
        self._route({"/v1/chat/completions": self._chat, "/tokenize": self._tokenize, "/detokenize": self._detokenize})

    def _route(self, routes: Mapping[str, Callable[[], None]]) -> None:
        path = self.path.partition("?")[0]
        state = self.server.state
        with state.lock:
            state.busy += 1
        try:
            self._streaming = False
            self._body = b""
            if self.command == "POST":
                self._body = self._read()
            if path not in routes:
                raise ApiError(404, f"{self.command} {path} is none of this engine's pages.")
            routes[path]()
        except ApiError as error:
            self._send(error.status, error.body())
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except Exception as error:
            self.close_connection = True
            if not self._streaming:
                self._send(500, ApiError(500, f"The engine failed: {error!r}").body())
        finally:
            with state.lock:
                state.busy -= 1

    def _read(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit():
            self.close_connection = True
            raise ApiError(411, "The request needs a Content-Length.")
        if int(length) > _LARGEST_BODY:
            self.close_connection = True
            raise ApiError(413, f"The request's body has {length} bytes; at most {_LARGEST_BODY} are read.")
        data = self.rfile.read(int(length))
        if len(data) < int(length):
            raise ConnectionError
        return data

    def _json(self) -> dict[str, Any]:
        try:
            body = json.loads(self._body)
        except ValueError as error:
            raise ApiError(400, f"The body is no JSON: {error}") from error
        if not isinstance(body, dict):
            raise ApiError(400, "The body must be a JSON object.")
        return body

    def _ready(self) -> Ready:
        ready = self.server.state.ready
        if ready is None:
            raise ApiError(503, "The model is still loading; try again in a moment.")
        if ready.work.stopping:
            raise ApiError(503, "The engine is stopping.")
        return ready

    def _health(self) -> None:
        self._ready()
        self._write(200, b"", "text/plain; charset=utf-8")

    def _models(self) -> None:
        ready = self._ready()
        self._send(200, replies.models(ready.verifier, ready.started))

    def _metrics(self) -> None:
        ready = self._ready()
        text = prometheus(self.server.state.metrics, ready.verifier.name, ready.work.drafted)
        self._write(200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")

    def _tokenize(self) -> None:
        """Both of vLLM's forms: {"prompt"} and {"messages"}."""
        verifier, body = self._ready().verifier, self._json()
        check_model(body, verifier)
        if "messages" in body:
            ids = chat_ids(body, verifier, generation_prompt=body.get("add_generation_prompt", True) is not False)
        elif isinstance(body.get("prompt"), str):
            ids = encode(body["prompt"], verifier, special=body.get("add_special_tokens", True) is not False)
        else:
            raise ApiError(400, "Send a prompt (a text) or messages.", "prompt")
        names = verifier.tokenizer.convert_ids_to_tokens(ids) if body.get("return_token_strs") else None
        self._send(200, {"count": len(ids), "max_model_len": verifier.max_length, "tokens": ids, "token_strs": names})

    def _detokenize(self) -> None:
        verifier, body = self._ready().verifier, self._json()
        check_model(body, verifier)
        ids, size = body.get("tokens"), len(verifier.tokenizer)
        if not isinstance(ids, list) or not all(type(one) is int and 0 <= one < size for one in ids):
            raise ApiError(400, f"tokens must be a list of token ids below {size}.", "tokens")
        self._send(200, {"prompt": verifier.tokenizer.decode(ids, skip_special_tokens=False)})

    def _chat(self) -> None:
        ready = self._ready()
        request = read_chat(self._json(), ready.verifier, greedy_only=ready.work.drafted is not None)
        job = ready.work.submit(request)
        try:
            answer = Answer(
                ready.verifier.decode, request.think, max((len(text) for text in request.stop), default=1) - 1
            )
            if not request.stream:
                self._send(200, replies.completion(request, self._next(job), answer))
                return
            self._open_stream()
            self._frame(replies.opening_chunk(request))
            while True:
                try:
                    event = self._next(job)
                except ApiError as error:
                    self._frame(error.body())
                    break
                body = replies.chunk(request, event, answer)
                if body is not None:
                    self._frame(body)
                if event.finish_reason:
                    if request.include_usage:
                        self._frame(replies.usage_chunk(request, len(job.output_ids), answer))
                    break
            self._chunk(b"data: [DONE]\n\n", last=True)
        finally:
            job.cancelled = True

    def _next(self, job: Job) -> Event:
        """The job's next event. Raises ApiError for a failure, ConnectionError once the reader is gone."""
        while True:
            try:
                event = job.events.get(timeout=_WATCH_S)
            except Empty:
                if self._reader_gone():
                    raise ConnectionError from None
                continue
            if event.error:
                raise ApiError(event.status, event.error)
            return event

    def _reader_gone(self) -> bool:
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        if not poll.poll(0):
            return False
        try:
            return not self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def _send(self, status: int, body: Mapping[str, Any]) -> None:
        self._write(status, json.dumps(body, ensure_ascii=False).encode(), "application/json")

    def _write(self, status: int, data: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    def _open_stream(self) -> None:
        self._streaming = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _frame(self, body: Mapping[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n")

    def _chunk(self, data: bytes, last: bool = False) -> None:
        self.wfile.write(b"%x\r\n%b\r\n%b" % (len(data), data, b"0\r\n\r\n" if last else b""))
        self.wfile.flush()
