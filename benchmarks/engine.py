"""How many tokens a second does the bundled engine generate? Real requests over HTTP to a real server.

    python -m benchmarks.engine [--concurrency 32] [--requests 400] [--threads 0] [--dtype float32] [--stream] [--json]

Held-out tasks of the bundled verifier, greedy; the first answers warm up and are not counted.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from pipeline.verifier import bundled_path
from pipeline.verifier.tasks import prompts

WARM_UP = 16


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description="Tokens a second of the engine.")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--threads", type=int, default=0, help="of the engine; 0: its default")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--stream", action="store_true", help="read the answers as streams")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


class Asker:
    """Asks one question after another, each thread over its own connection."""

    def __init__(self, port: int, stream: bool) -> None:
        self._port, self._stream = port, stream
        self._mine = threading.local()

    def __call__(self, prompt: str) -> int:
        """Completion tokens of one answer."""
        if not hasattr(self._mine, "connection"):
            self._mine.connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=300)
        body: dict[str, object] = {"messages": [{"role": "user", "content": prompt}], "temperature": 0}
        if self._stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        self._mine.connection.request("POST", "/v1/chat/completions", json.dumps(body))
        reply = self._mine.connection.getresponse()
        data = reply.read()
        if reply.status != 200:
            raise SystemExit(f"the engine answered {reply.status}: {data.decode()}")
        last = data.split(b"data: ")[-2] if self._stream else data
        return int(json.loads(last)["usage"]["completion_tokens"])


def measure(options: argparse.Namespace) -> dict[str, object]:
    command = [sys.executable, "-m", "pipeline.engine", "--model", str(bundled_path()), "--port", "0"]
    command += ["--dtype", options.dtype, *(["--threads", str(options.threads)] if options.threads else [])]
    engine = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert engine.stdout is not None
        port = int(engine.stdout.readline().rpartition(":")[2].removesuffix("/v1\n"))
        _wait(port, engine)
        asker = Asker(port, options.stream)
        asked = [row["prompt"] for row in prompts(31, WARM_UP + options.requests, "held-out")]
        with ThreadPoolExecutor(options.concurrency) as pool:
            list(pool.map(asker, asked[:WARM_UP]))
            began = time.monotonic()
            tokens = sum(pool.map(asker, asked[WARM_UP:]))
            seconds = time.monotonic() - began
    finally:
        engine.terminate()
        engine.wait(30)
    return {
        "tokens_per_s": round(tokens / seconds, 1),
        "tokens": tokens,
        "seconds": round(seconds, 2),
        "concurrency": options.concurrency,
        "cores": os.cpu_count(),
        "dtype": options.dtype,
        "stream": options.stream,
    }


def _wait(port: int, engine: subprocess.Popen[str]) -> None:
    while engine.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/health")
        if connection.getresponse().status == 200:
            return
        time.sleep(0.1)
    raise SystemExit("the engine ended while loading")


def main() -> int:
    options = arguments()
    result = measure(options)
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:14s} {value}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
