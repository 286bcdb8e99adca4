"""`eagledeck service` over a real connection, with a real server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *words): pass
print("it listens", flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def make(container: Any, more: str = "", **how: dict[str, Any]) -> None:
    container.configure(**how)
    program = container.folder / "server.py"
    program.write_text(SERVER)
    text = container.path.read_text().replace("[runs.r1.generate]", '[runs.r1.generate]\nservices = ["engine"]')
    command = json.dumps([sys.executable, str(program), "{port}"])
    container.path.write_text(f"{text}\n[services.engine]\ncommand = {command}\nport = 0\n{more}")
    container.eagledeck("init", "r1")


def state(container: Any) -> str:
    return str(container.json("service", "r1")["services"]["engine"]["state"])


def test_a_service_is_started_looked_at_and_stopped(container: Any, wait_for: Callable[..., Any]) -> None:
    make(container)
    assert container.eagledeck("service", "r1").stdout == "engine   IDLE\n"
    said = container.eagledeck("logs", "r1", "--service", "engine", status=1).stderr
    assert said == "eagledeck: engine has no log yet. `eagledeck service start r1 engine` starts it.\n"
    assert (
        "Started engine on box, at http://127.0.0.1:" in container.eagledeck("service", "start", "r1", "engine").stdout
    )
    wait_for(lambda: state(container) == "READY")
    assert "is up already" in container.eagledeck("service", "start", "r1", "engine").stdout
    assert "it listens" in container.eagledeck("logs", "r1", "--service", "engine").stdout
    assert "was asked to end" in container.eagledeck("service", "stop", "r1", "engine").stdout
    wait_for(lambda: state(container) == "STOPPED")
    assert "engine on box isn't up." in container.eagledeck("service", "stop", "r1", "engine", status=1).stderr
    said = container.eagledeck("service", "stop", "r1", "other", status=1).stderr
    assert said == "eagledeck: r1 has no service other. Its services: engine.\n"


def test_one_under_a_running_stage_is_asked_about(container: Any, wait_for: Callable[..., Any]) -> None:
    make(container, generate={"steps": 100_000})
    container.eagledeck("start", "r1", "--through", "generate")
    wait_for(lambda: container.state()["generate"] == "RUNNING")
    assert "used by r1/generate" in container.eagledeck("service", "list", "r1").stdout
    said = container.eagledeck("service", "stop", "r1", "engine", status=1).stderr
    assert "pulls it away under r1/generate, which fails then." in said
    assert "Repeat with --yes; `eagledeck stop r1` saves and ends the stage first." in said
    assert state(container) == "READY"
    container.eagledeck("service", "stop", "r1", "engine", "--yes")
    wait_for(lambda: state(container) == "STOPPED")
    assert container.state()["generate"] == "RUNNING"
    container.eagledeck("kill", "r1", "--yes")
    wait_for(lambda: container.state()["generate"] in ("KILLED", "STOPPED"))


def test_one_that_does_not_answer_is_told_of_with_the_time(container: Any, wait_for: Callable[..., Any]) -> None:
    make(container, "answer_timeout_s = 60\n")
    container.eagledeck("service", "start", "r1", "engine")
    wait_for(lambda: state(container) == "READY")
    row = container.json("service", "r1")["services"]["engine"]
    os.kill(row["pid"], signal.SIGSTOP)
    wait_for(lambda: state(container) == "SILENT")
    since = container.json("service", "r1")["services"]["engine"]["since"]
    clock = time.strftime("%a %H:%M:%S", time.localtime(since))
    said = f"engine   SILENT   {row['url']}   not answering since {clock}: no answer within 6 s\n"
    assert container.eagledeck("service", "r1").stdout == said
    assert f"service {said}" in container.eagledeck("status", "r1").stdout
    os.kill(row["pid"], signal.SIGCONT)
    wait_for(lambda: state(container) == "READY")
    container.eagledeck("service", "stop", "r1", "engine")
    wait_for(lambda: state(container) == "STOPPED")


@pytest.mark.parametrize(("typed", "status"), [("engine", 0), ("yes", 1)])
def test_a_person_types_its_name(container: Any, wait_for: Callable[..., Any], typed: str, status: int) -> None:
    make(container, generate={"steps": 100_000})
    container.eagledeck("start", "r1", "--through", "generate")
    wait_for(lambda: container.state()["generate"] == "RUNNING")
    primary, secondary = os.openpty()
    words = ("service", "stop", "r1", "engine")
    child = container.process(*words, stdin=secondary, stdout=subprocess.DEVNULL, stderr=secondary)
    os.close(secondary)
    asked = b""
    while b"Type engine" not in asked:
        asked += os.read(primary, 4096)
    os.write(primary, typed.encode() + b"\n")
    assert child.wait(30) == status
    os.close(primary)
    wait_for(lambda: state(container) == ("READY" if status else "STOPPED"))
    container.eagledeck("kill", "r1", "--yes")
    wait_for(lambda: container.state()["generate"] in ("KILLED", "STOPPED"))
