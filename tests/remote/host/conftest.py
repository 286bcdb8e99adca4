"""A host in a folder of its own: runs whose stages are small scripts, real supervisors, conductors and agents."""

from __future__ import annotations

import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import STAGES, Plan, VerifierPlan, set_values
from pipeline.rundir import Attempt, RunDir, StageDir, process_start, status
from remote.agent import starting
from remote.agent.members import process_table, send
from remote.protocol import Decoder, Failure, Hello, Push, Reply, Request, Splitter, Streamer, encode

CODE = Path(__file__).resolve().parents[3]

DOUBLE = '''#!{python}
"""Stands in for a stage: counts in its output, one line a step, resumable, stoppable. Called like a Python."""
import json, os, sys, time
sys.path.insert(0, os.getcwd())
from pipeline.stage import StageError, Stopped, run_stage
name = next(word for word in sys.argv if word.startswith("pipeline.")).split(".")[1]
how = json.loads(os.environ.get("DOUBLE", "{{}}"))
def body(run):
    path = run.output / "counts.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    run.resumed_at(len(lines))
    print("service", os.environ.get("EAGLEDECK_SERVICE_URL", "none"), flush=True)
    steps = how.get("steps", 3)
    with open(path, "a", buffering=1) as file:
        for step in range(len(lines) + 1, steps + 1):
            if run.stopping():
                raise Stopped()
            if step == how.get("fail_at") and not run.resumed:
                raise StageError("the double fails", "resume it")
            time.sleep(how.get("pause", 0.002))
            file.write(f"{{step}}\\n")
            run.metric(step, values={{"train/loss": 1 / step}})
            run.progress(step, steps, "steps", counts={{"samples": step, "tokens": step * 10}})
    run.event("info", f"{{name}} counted to {{steps}}")
    run.finish({{"samples": steps, "tokens": steps * 10}}, f"{{name}}-{{steps}}")
sys.exit(run_stage(name, body, sys.argv[sys.argv.index("--run"):]))
'''


def wait_for(what: Callable[[], Any], seconds: float = 60.0) -> Any:
    """The first true answer of ``what``; fails the test when none comes. The wait is a bound, never a measurement."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        answer = what()
        if answer:
            return answer
        time.sleep(0.02)
    raise AssertionError(f"nothing within {seconds} s: {what}")


class AgentProcess:
    """A real agent as a child, spoken to through its pipes."""

    def __init__(self, root: Path, silence_s: float | None = None) -> None:
        argv = [*starting.command("serve", "--root", str(root), "--nonce", "@@n@@")]
        if silence_s is not None:
            code = "import sys; from pathlib import Path; from remote.agent.agent import serve; "
            code += "serve(Path(sys.argv[1]), '@@n@@', silence_s=float(sys.argv[2]))"
            argv = [sys.executable, "-B", "-c", code, str(root), str(silence_s)]
        self.process = subprocess.Popen(argv, cwd=CODE, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._splitter, self._decoder, self._streamer = Splitter(), Decoder(), Streamer()
        self._ready: list[Any] = []
        self.pushes: list[Push] = []
        self.number = 0
        assert self._line() == b"@@n@@"
        hello = self._decoder.decode(self._line())
        assert isinstance(hello, Hello)
        self.hello = hello

    def _line(self, seconds: float = 30.0) -> bytes:
        end = time.monotonic() + seconds
        assert self.process.stdout is not None
        while not self._ready:
            left = end - time.monotonic()
            assert left > 0, "the agent said nothing"
            if select.select([self.process.stdout], [], [], left)[0]:
                data = os.read(self.process.stdout.fileno(), 65536)
                assert data, "the agent ended"
                self._ready += self._splitter.feed(data)
        line = self._ready.pop(0)
        assert isinstance(line, bytes)
        return line

    def message(self, seconds: float = 30.0) -> Any:
        while True:
            found = self._decoder.decode(self._line(seconds))
            if found is not None:
                if isinstance(found, Push):
                    self.pushes.append(found)
                return found

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def post(self, op: str, deadline_s: float = 30.0, **args: Any) -> int:
        self.number += 1
        args = {("from" if name == "from_" else name): value for name, value in args.items()}
        self.write(b"".join(map(self._streamer.pack, encode(Request(self.number, op, args, deadline_s)))))
        return self.number

    def answer(self, number: int) -> Any:
        while True:
            found = self.message()
            if isinstance(found, (Reply, Failure)) and found.id == number:
                return found

    def ask(self, op: str, **args: Any) -> Any:
        """The result; fails the test on a refusal."""
        found = self.answer(self.post(op, **args))
        assert isinstance(found, Reply), found
        return found.result

    def refused(self, op: str, **args: Any) -> Failure:
        found = self.answer(self.post(op, **args))
        assert isinstance(found, Failure), found
        return found

    def push(self, name: str, want: Callable[[dict[str, Any]], bool] = lambda data: True, seconds: float = 30.0) -> Any:
        end = time.monotonic() + seconds
        while True:
            found = self.message(max(0.01, end - time.monotonic()))
            if isinstance(found, Push) and found.name == name and want(found.data):
                return found.data

    def close(self) -> None:
        if self.process.poll() is None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            self.process.wait(15)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class Host:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.agents: list[AgentProcess] = []
        self.double = root.parent / "double"
        self.double.write_text(DOUBLE.format(python=sys.executable))
        self.double.chmod(0o755)
        verifier = root.parent / "verifier"
        verifier.mkdir()
        config = {"hidden_size": 64, "num_hidden_layers": 4, "vocab_size": 512, "num_attention_heads": 4}
        config.update({"intermediate_size": 128, "num_key_value_heads": 2, "model_type": "llama"})
        (verifier / "config.json").write_text(json.dumps(config))
        self.verifier = verifier

    def plan(self, changes: dict[str, object] | None = None, **how: dict[str, Any]) -> Plan:
        """A plan whose stages are the double; keyword arguments configure it by stage (or ``all``)."""
        plan = Plan(verifier=VerifierPlan(str(self.verifier), "tiny"))
        stages = {
            name: dataclasses.replace(
                plan.stages[name],
                python=str(self.double),
                env={"DOUBLE": json.dumps({**how.get("all", {}), **how.get(name, {})})},
                grace_s=10.0,
            )
            for name in STAGES
        }
        return set_values(dataclasses.replace(plan, stages=stages), changes or {})

    def run(self, name: str = "r1", changes: dict[str, object] | None = None, **how: dict[str, Any]) -> RunDir:
        return RunDir.create(self.root, name, self.plan(changes, **how))

    def agent(self, silence_s: float | None = None) -> AgentProcess:
        self.agents.append(AgentProcess(self.root, silence_s))
        return self.agents[-1]

    def ours(self) -> list[int]:
        """Everything alive that names this root on its command line, or stems from something that does."""
        found, table = set(), process_table()
        for pid in table:
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if str(self.root).encode() in line and pid != os.getpid():
                found.add(pid)
        while True:
            more = {pid for pid, process in table.items() if process.parent in found} - found
            if not more:
                return [pid for pid in found if process_start(pid) is not None]
            found |= more

    def end(self) -> None:
        for agent in self.agents:
            agent.close()
        end = time.monotonic() + 10
        while (left := self.ours()) and time.monotonic() < end:
            for pid in left:
                send((pid, process_start(pid) or 0), signal.SIGKILL)
            time.sleep(0.05)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    root = tmp_path / "root"
    root.mkdir()
    made = Host(root)
    yield made
    made.end()


class Supervised:
    """A stage whose process is a piece of Python, under a real supervisor."""

    def __init__(self, stage: StageDir, attempt: Attempt) -> None:
        self.stage, self.attempt = stage, attempt

    @property
    def supervisor(self) -> int:
        return int(self.attempt.state()["supervisor"]["pid"])

    @property
    def main(self) -> int:
        return int(self.attempt.state()["main"]["pid"])

    def ended(self, seconds: float = 60.0) -> dict[str, Any]:
        found: dict[str, Any] = wait_for(self.attempt.exit, seconds)
        return found

    def log(self) -> str:
        return self.attempt.file("stage.log").read_text("utf-8", "replace")

    def notes(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.attempt.file("supervision.jsonl").read_text().splitlines()]

    def state(self) -> str:
        return status(self.stage).state.value


@pytest.fixture
def supervise(host: Host) -> Callable[..., Supervised]:
    """Runs ``code`` as a stage of a fresh run; keyword arguments change the plan of generate."""

    def begin(code: str, name: str = "r1", **changes: object) -> Supervised:
        changes = {"grace_s": "1", **changes}
        plan = set_values(Plan(), {f"generate.{key}": value for key, value in changes.items()})
        stage = RunDir.create(host.root, name, plan).stage("generate")
        with starting.locked(stage, name) as lock:
            attempt = stage.new_attempt(argv=[sys.executable, "-u", "-c", code, "{run}"], cwd=str(CODE))
            starting.launch(attempt, lock, name)
        return Supervised(stage, attempt)

    return begin


@pytest.fixture(name="wait_for")
def _wait_for() -> Callable[..., Any]:
    return wait_for
