"""A container of its own for the console's tests: the embedded SSH server as a process, real agents, real supervisors.

Only the stages are doubles: small programs that use pipeline.stage as the real ones do.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from console.command import main
from console.config import Config, load_config
from pipeline.rundir import RunDir
from remote.hostkeys import HostKey, HostKeyStore
from remote.link import Link, Pace

ROOT = Path(__file__).resolve().parents[3]

DOUBLE = '''#!{python}
"""Stands in for a stage: `steps` steps of `pause` seconds, with metrics, a log and counts. Called like Python."""
import json, os, sys, time
sys.path.insert(0, os.getcwd())
from pipeline.stage import StageError, Stopped, run_stage
name = next(word for word in sys.argv if word.startswith("pipeline.")).split(".")[1]
how = json.loads(os.environ.get("DOUBLE", "{{}}"))
def body(run):
    path = run.output / "counts.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    run.resumed_at(len(lines))
    steps = how.get("steps", 3)
    with open(path, "a", buffering=1) as file:
        for step in range(len(lines) + 1, steps + 1):
            if run.stopping() and not how.get("deaf"):
                raise Stopped()
            if step == how.get("fail_at") and not run.resumed:
                raise StageError("The double fails", "Resume it")
            time.sleep(how.get("pause", 0.01))
            file.write(f"{{step}}\\n")
            print(f"\\x1b[31mstep\\x1b[0m {{step}}", flush=True)
            run.metric(step, epoch=step / 10, values={{"train/loss": 1 / step}})
            if step % 5 == 0:
                validation = {{"val/loss": 2 / step, "val/acceptance_length": 1 + step / 100}}
                run.metric(step, epoch=step / 10, values=validation)
            run.progress(step, steps, "steps", counts={{"samples": step, "tokens": step * 10}})
    run.event("saved", f"{{name}} counted to {{steps}}")
    run.finish({{"samples": steps, "tokens": steps * 10}}, f"{{name}}-{{steps}}", **how.get("report", {{}}))
sys.exit(run_stage(name, body, sys.argv[sys.argv.index("--run"):]))
'''


def wait_for(what: Callable[[], Any], seconds: float = 30.0) -> Any:
    """The first true answer of `what`. The wait is a bound, never a measurement."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if answer := what():
            return answer
        time.sleep(0.05)
    raise AssertionError(f"nothing within {seconds} s")


@dataclass(frozen=True)
class Done:
    stdout: str
    stderr: str


class Container:
    """One folder a test: eagledeck.toml, pins, the host's root; `run` names the only run of the file."""

    def __init__(self, folder: Path, address: dict[str, Any]) -> None:
        self.folder = folder
        self.address = address
        self.root = folder / "volume" / "eagledeck"
        self.root.mkdir(parents=True)
        self.run = "r1"
        self.processes: list[subprocess.Popen[str]] = []
        verifier = folder / "verifier"
        verifier.mkdir(parents=True)
        config = {"hidden_size": 64, "num_hidden_layers": 4, "vocab_size": 512, "num_attention_heads": 4}
        (verifier / "config.json").write_text(json.dumps(config))
        self.double = folder / "double"
        self.double.write_text(DOUBLE.format(python=sys.executable))
        self.double.chmod(0o755)
        self.path = folder / "eagledeck.toml"
        self.configure()
        self.trust()

    def configure(self, **how: dict[str, Any]) -> Config:
        """Writes the configuration; keyword arguments set the doubles' behaviour by stage."""
        lines = [
            'state = "."',
            "[hosts.box]",
            f'ssh = "{self.address["user"]}@127.0.0.1:{self.address["port"]}"',
            "ssh_config = false",
            f'identity = "{self.address["identity"]}"',
            f'volume = "{self.root.parent}"',
            'reserve = "1MB"',
            f'python = "{sys.executable}"',
            f"[runs.{self.run}]",
            f'verifier = "{self.folder / "verifier"}"',
        ]
        for stage in ("generate", "extract", "vocab", "train", "deploy"):
            double = json.dumps(json.dumps(how.get(stage, {})))
            lines += [f"[runs.{self.run}.{stage}]", f'python = "{self.double}"', f"env = {{ DOUBLE = {double} }}"]
            lines += ["grace_s = 10"]
            if stage in ("generate", "extract"):
                lines += ["max_samples = 100" if stage == "generate" else "length = 64"]
            if stage == "train":
                lines += ["length = 64"]
        self.path.write_text("\n".join(lines) + "\n")
        return load_config(self.path)

    def trust(self) -> None:
        HostKeyStore(self.folder).pin("box", HostKey.parse(self.address["pin"]))

    def link(self, pace: Pace | None = None) -> Link:
        config = load_config(self.path)
        spec = config.hosts["box"].to_spec()
        return Link(spec, HostKeyStore(config.state), pace=pace or Pace())

    def rundir(self) -> RunDir:
        return RunDir.open(self.root / self.run)

    def environment(self) -> dict[str, str]:
        return {**os.environ, "EAGLEDECK_CONFIG": str(self.path), "XDG_STATE_HOME": str(self.folder / "state")}

    def eagledeck(self, *words: str, status: int = 0) -> Done:
        """The command, in this process. Fails the test when it ends with another status than `status`."""
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.setattr(sys, "stdin", io.StringIO())
            for name in ("EAGLEDECK_CONFIG", "XDG_STATE_HOME"):
                patch.setenv(name, self.environment()[name])
            got = main(words)
        assert got == status, (got, out.getvalue(), err.getvalue())
        assert "Traceback" not in out.getvalue() + err.getvalue()
        return Done(out.getvalue(), err.getvalue())

    def process(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """The command as a process of its own."""
        program = "import sys; from console.command import main; sys.exit(main())"
        environment = {**self.environment(), **options.pop("env", {})}
        command = [sys.executable, "-c", program, *words]
        self.processes.append(subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **options))
        return self.processes[-1]

    def json(self, *words: str) -> Any:
        return json.loads(self.eagledeck(*words, "--json").stdout)

    def state(self) -> dict[str, str]:
        from pipeline.rundir import run_status

        return {name: seen.state.value for name, seen in run_status(self.rundir()).items()}

    def ours(self, word: str = "") -> list[int]:
        """Living processes that name this folder, and `word`, on their command line."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    line = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                if str(self.folder).encode() in line and word.encode() in line:
                    found.append(int(entry.name))
        return found

    def agents(self) -> list[int]:
        return self.ours("serve")

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait(10)
        end = time.monotonic() + 10
        while (left := self.ours()) and time.monotonic() < end:
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.05)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("server")
    child = subprocess.Popen(
        [sys.executable, "-m", "remote.loopback", "--state", str(folder)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdin is not None
    yield json.loads(child.stdout.readline())
    child.stdin.close()
    child.wait(10)


@pytest.fixture
def container_at(tmp_path: Path) -> Iterator[Callable[[dict[str, Any]], Container]]:
    """A container behind a server of the test's own."""
    made: list[Container] = []

    def make(address: dict[str, Any]) -> Container:
        made.append(Container(tmp_path / "box", address))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.fixture
def container(tmp_path: Path, server: dict[str, Any]) -> Iterator[Container]:
    made = Container(tmp_path, server)
    yield made
    made.end()


@pytest.fixture(name="wait_for")
def _wait_for() -> Callable[..., Any]:
    return wait_for
