"""The engine's other pages, its errors, readers that go away, its start and its end."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import openai
import pytest

from pipeline.engine.metrics import Metrics
from pipeline.engine.server import Ready, Server
from pipeline.engine.work import Work
from pipeline.verifier import bundled_path

USER = [{"role": "user", "content": "Add 347 and 586."}]
LONG = {"messages": USER, "temperature": 100.0, "seed": 3, "max_tokens": 900}


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_health_answers_503_while_loading_and_200_after(engine: Any) -> None:
    assert engine.first_health == 503
    assert engine.ask("GET", "/health") == (200, "")


def test_the_model_is_listed(engine: Any) -> None:
    listed = openai.OpenAI(base_url=engine.url, api_key="none").models.list().data
    assert [(one.id, (one.model_extra or {})["max_model_len"]) for one in listed] == [("bundled", 1024)]


def test_tokenize_and_detokenize(engine: Any) -> None:
    text = "Ünïcode 😀 and 123</think>"
    status, reply = engine.ask("POST", "/tokenize", {"prompt": text, "return_token_strs": True})
    assert (status, reply["max_model_len"], len(reply["token_strs"])) == (200, 1024, reply["count"])
    assert reply["token_strs"][-4:] == ["1", "2", "3", "</think>"]
    assert engine.ask("POST", "/detokenize", {"tokens": reply["tokens"]}) == (200, {"prompt": text})
    without = engine.ask("POST", "/tokenize", {"messages": USER, "add_generation_prompt": False})[1]["tokens"]
    whole = engine.ask("POST", "/tokenize", {"messages": USER})[1]["tokens"]
    assert whole[: len(without)] == without
    assert len(whole) > len(without)
    assert engine.ask("POST", "/tokenize", {})[0] == 400
    assert engine.ask("POST", "/detokenize", {"tokens": [99999]})[0] == 400


@pytest.mark.parametrize(
    ("change", "status", "kind", "param"),
    [
        ({"model": "other"}, 404, "NotFoundError", "model"),
        ({"messages": []}, 400, "BadRequestError", "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, 400, "BadRequestError", "messages"),
        ({"messages": [{"role": "user"}]}, 400, "BadRequestError", "messages"),
        ({"messages": USER, "tools": "look"}, 400, "BadRequestError", "tools"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400, "BadRequestError", "messages"),
        ({"n": 2}, 400, "BadRequestError", "n"),
        ({"max_tokens": 0}, 400, "BadRequestError", "max_tokens"),
        ({"max_completion_tokens": "9"}, 400, "BadRequestError", "max_completion_tokens"),
        ({"temperature": -1}, 400, "BadRequestError", "temperature"),
        ({"top_p": 0}, 400, "BadRequestError", "top_p"),
        ({"seed": 1.5}, 400, "BadRequestError", "seed"),
        ({"stop": [1]}, 400, "BadRequestError", "stop"),
        ({"stream": "yes"}, 400, "BadRequestError", "stream"),
        ({"stream_options": {"include_usage": True}}, 400, "BadRequestError", "stream_options"),
        ({"chat_template_kwargs": 3}, 400, "BadRequestError", "chat_template_kwargs"),
        ({"max_tokens": 1020}, 400, "BadRequestError", "input_tokens"),
        ({"messages": [{"role": "user", "content": "word " * 2000}]}, 400, "BadRequestError", "input_tokens"),
    ],
)
def test_a_bad_request_gets_an_error_of_vllms_shape(
    engine: Any, change: dict[str, Any], status: int, kind: str, param: str
) -> None:
    answered, body = engine.ask("POST", "/v1/chat/completions", {"model": "bundled", "messages": USER, **change})
    assert answered == status
    error = body["error"]
    assert (error["type"], error["param"], error["code"]) == (kind, param, status)
    assert len(error["message"]) > 10
    if param == "input_tokens":
        assert "maximum context length is 1024 tokens" in error["message"]


def test_what_is_no_request_is_refused_and_the_connection_goes_on(engine: Any) -> None:
    for raw, status in ((b"{oops", 400), (b"[1]", 400), (b"\xff\xfe{", 400)):
        assert engine.ask("POST", "/v1/chat/completions", raw=raw)[0] == status
    assert engine.ask("GET", "/nowhere")[0] == 404
    assert engine.ask("POST", "/nowhere", {})[1]["error"]["code"] == 404
    assert engine.ask("BREW", "/v1/models")[1]["error"]["code"] == 501
    connection = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=30)
    for _ in range(2):
        connection.request("POST", "/v1/chat/completions", b"{oops")
        reply = connection.getresponse()
        assert (reply.status, json.loads(reply.read())["error"]["type"]) == (400, "BadRequestError")
    connection.close()


def test_a_client_that_asks_before_it_sends_its_body_is_told_to_go_on(engine: Any) -> None:
    body = json.dumps({"prompt": "x"}).encode()
    with socket.create_connection(("127.0.0.1", engine.port), timeout=30) as connection:
        head = f"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(1024).startswith(b"HTTP/1.1 100 ")
        connection.sendall(body)
        assert connection.recv(1024).startswith(b"HTTP/1.1 200 ")


def test_the_openai_client_reads_the_errors(engine: Any) -> None:
    client = openai.OpenAI(base_url=engine.url, api_key="none", max_retries=0)
    messages: Any = USER
    with pytest.raises(openai.NotFoundError, match="does not exist here"):
        client.chat.completions.create(model="gpt", messages=messages)
    with pytest.raises(openai.BadRequestError, match="ask for at most"):
        client.chat.completions.create(model="bundled", messages=messages, max_tokens=5000)


@pytest.mark.parametrize("stream", [True, False])
def test_a_reader_that_goes_away_frees_its_row(engine: Any, stream: bool) -> None:
    aborted = engine.metric('vllm:request_success_total{finished_reason="abort"}')
    body = json.dumps({**LONG, "stream": stream}).encode()
    connection = socket.create_connection(("127.0.0.1", engine.port))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    if stream:
        assert connection.recv(64).startswith(b"HTTP/1.1 200")
    else:
        until(lambda: engine.metric("vllm:num_requests_running") == 1)
    connection.close()
    until(lambda: engine.metric('vllm:request_success_total{finished_reason="abort"}') == aborted + 1)
    until(lambda: engine.metric("vllm:num_requests_running") == 0)


def test_tokens_are_counted(engine: Any) -> None:
    names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
    before = [engine.metric(name) for name in names]
    usage = engine.chat("What is 17 + 5?")["usage"]
    after = [engine.metric(name) for name in names]
    assert [b - a for a, b in zip(before, after)] == [usage["prompt_tokens"], usage["completion_tokens"]]


def run_engine(*options: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "pipeline.engine", "--host", "127.0.0.1", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, env=environment)


def test_a_port_in_use_is_said_in_a_sentence(engine: Any) -> None:
    done = run_engine("--model", str(bundled_path()), "--port", str(engine.port))
    assert done.returncode == 1
    assert f"can't listen on 127.0.0.1:{engine.port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_without_a_model_is_said_in_a_sentence(tmp_path: Path) -> None:
    done = run_engine("--model", str(tmp_path), "--port", "0")
    assert done.returncode == 1
    assert "has no config.json" in done.stderr
    assert "Traceback" not in done.stderr
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    done = run_engine("--model", str(tmp_path), "--port", "0")
    assert done.returncode == 1
    assert "does not load" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_stopping_engine_is_not_healthy() -> None:
    server = Server("127.0.0.1", 0)
    work = Work(cast(Any, None), 1, Metrics())
    server.state.ready = Ready(cast(Any, None), work, 0)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)

    def health() -> int:
        connection.request("GET", "/health")
        with connection.getresponse() as reply:
            reply.read()
            return reply.status

    try:
        assert health() == 200
        work.stop()
        assert health() == 503
    finally:
        connection.close()
        server.shutdown()
        server.server_close()


def test_sigterm_ends_it_cleanly_and_tells_who_waits(starter: Callable[..., Any]) -> None:
    engine = starter()
    connection = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=60)
    connection.request("POST", "/v1/chat/completions", json.dumps({**LONG, "stream": True}))
    reply = connection.getresponse()
    assert reply.readline() != b""
    engine.process.send_signal(signal.SIGTERM)
    rest = reply.read().decode()
    frames = [line.removeprefix("data: ") for line in rest.splitlines() if line.startswith("data: ")]
    assert frames[-1] == "[DONE]"
    assert json.loads(frames[-2])["error"]["code"] == 503
    assert engine.process.wait(30) == 0
