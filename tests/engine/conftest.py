"""The real engine in a process of its own: one plain, one with a drafter and without a reasoning parser."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

# torch reads this when it is imported; several processes with a thread for every core slow each other down
os.environ.setdefault("OMP_NUM_THREADS", "1")

from pipeline.verifier import bundled_path


@dataclass
class Engine:
    """A running server. first_health: what /health said before the model was loaded."""

    process: subprocess.Popen[str]
    port: int
    first_health: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def ask(self, method: str, path: str, body: Any = None, raw: bytes | None = None) -> tuple[int, Any]:
        """Status and decoded body (the text where it is no JSON) of one request over a fresh connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        connection.request(method, path, data)
        reply = connection.getresponse()
        text = reply.read().decode()
        connection.close()
        return reply.status, json.loads(text) if "json" in (reply.getheader("Content-Type") or "") else text

    def chat(self, prompt: str, **more: Any) -> Any:
        """A whole completion; greedy unless told otherwise."""
        body = {"messages": [{"role": "user", "content": prompt}], "temperature": 0, **more}
        status, reply = self.ask("POST", "/v1/chat/completions", body)
        assert status == 200, reply
        return reply

    def metric(self, name: str) -> float:
        """Value of one series, named with its own labels: `vllm:x_total` or `vllm:x_total{finished_reason="stop"}`."""
        bare, _, label = name.partition("{")
        found = [
            float(line.rpartition(" ")[2])
            for line in self.ask("GET", "/metrics")[1].splitlines()
            if line.startswith(bare + "{") and label.rstrip("}") in line
        ]
        assert len(found) == 1, name
        return found[0]


def start(*options: str) -> Engine:
    """Starts the engine on a free port and waits until it is ready."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "pipeline.engine", "--model", str(bundled_path()), "--port", "0", "--threads", "1"]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    found = re.search(r" on http://127\.0\.0\.1:(\d+)/v1$", process.stdout.readline().strip())
    assert found is not None
    engine = Engine(process, int(found[1]), 0)
    engine.first_health = engine.ask("GET", "/health")[0]
    end = time.monotonic() + 90
    while engine.ask("GET", "/health")[0] != 200:
        assert process.poll() is None, "the engine ended while loading"
        assert time.monotonic() < end, "the engine did not get ready"
        time.sleep(0.1)
    return engine


def stop(engine: Engine) -> int:
    if engine.process.poll() is None:
        engine.process.send_signal(signal.SIGTERM)
    code = engine.process.wait(30)
    assert engine.process.stdout is not None
    engine.process.stdout.close()
    return code


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """The bundled verifier, with the reasoning parser that it asks for."""
    running = start("--served-model-name", "bundled", "--max-batch", "16")
    yield running
    stop(running)


@pytest.fixture(scope="session")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """The same with a drafter made of the verifier's last layer, and without a reasoning parser."""
    folder = drafter_folder(tmp_path_factory.mktemp("drafter"))
    running = start("--reasoning-parser", "none", "--drafter", str(folder), "--k", "2")
    yield running
    stop(running)


def drafter_folder(folder: Path) -> Path:
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaForCausalLM

    from pipeline.drafter.config import DrafterConfig
    from pipeline.drafter.initial import drafter_from_verifier
    from pipeline.drafter.vocabulary import DraftVocabulary

    model = bundled_path()
    config = DrafterConfig.for_verifier(json.loads((model / "config.json").read_text()), 2048)
    vocabulary = DraftVocabulary(torch.arange(2048), 2048)
    state = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32).state_dict()
    frozen = {name.replace("model.layers.7.", "layer."): tensor for name, tensor in state.items()}
    frozen |= {"norm": state["model.norm.weight"], "lm_head": state["lm_head.weight"]}
    drafter, _ = drafter_from_verifier(config, frozen, vocabulary, 0)
    weights = {name: value.detach().clone() for name, value in drafter.named_parameters()}
    save_file({**weights, "d2t": vocabulary.d2t, "t2d": vocabulary.t2d}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(drafter.config.to_json()))
    return folder


@pytest.fixture
def starter() -> Iterator[Callable[..., Engine]]:
    """Starts an engine for one test."""
    started: list[Engine] = []

    def begin(*options: str) -> Engine:
        started.append(start(*options))
        return started[-1]

    yield begin
    for one in started:
        stop(one)
