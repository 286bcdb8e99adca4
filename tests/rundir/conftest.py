"""Runs, real child processes and faults for the tests of the run directory."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import Plan, set_values
from pipeline.rundir import Attempt, Lock, Output, RunDir, StageDir

ROOT = Path(__file__).resolve().parents[2]
MEMORY = Path("/dev/shm")


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A fresh folder, in memory where there is such a place: thousands of fsyncs are no pleasure on a disk."""
    room = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 32 << 20
    with tempfile.TemporaryDirectory(prefix="eagledeck-", dir=MEMORY if room else None) as folder:
        yield Path(folder).resolve()


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with temporary_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def fresh() -> Iterator[Callable[[], Path]]:
    """fresh(): a new folder, for the examples of a property."""
    numbers = itertools.count()
    with temporary_folder() as folder:

        def make() -> Path:
            path = folder / str(next(numbers))
            path.mkdir()
            return path

        yield make


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A fresh run `one` with a default plan."""
    return RunDir.create(tmp_path / "root", "one", Plan())


def begin(stage: StageDir, **options: Any) -> Attempt:
    """Open and start an attempt that nobody runs: its lock is free again afterwards."""
    lock = Lock.acquire(stage.make().lock_path)
    assert lock is not None
    with lock:
        attempt = stage.new_attempt(**options)
        attempt.write_state(phase="running")
    return attempt


def complete(stage: StageDir, fingerprint: str = "", **options: Any) -> Output:
    """Run the stage to its end: an attempt that is DONE and a complete output."""
    attempt = begin(stage, **options)
    output = attempt.output()
    (output.path / "data").write_text(f"attempt {attempt.number}")
    data = fingerprint or f"{stage.run.name}-{stage.stage}-{output.number}"
    output.write_report({"schema": 1, "stage": stage.stage, "fingerprint": data, "counts": {}})
    attempt.write_exit(reason="done", code=0, resumable=False)
    return output


def change(run: RunDir, **values: Any) -> Plan:
    """A new plan revision; `generate__max_samples=5` sets generate.max_samples."""
    return run.write_plan(set_values(run.plan(), {k.replace("__", "."): v for k, v in values.items()}), "test")


class Child:
    """A Python program in its own process that says lines and waits for lines."""

    def __init__(self, program: str, *arguments: object, **options: Any) -> None:
        argv = [sys.executable, "-u", "-c", program, *map(str, arguments)]
        self.process = subprocess.Popen(
            argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options
        )

    def hears(self) -> str:
        assert self.process.stdout is not None
        return str(self.process.stdout.readline()).strip()

    def tell(self, line: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        """Close its input and wait for its end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait()


@pytest.fixture
def child() -> Iterator[Callable[..., Child]]:
    """child(program, *arguments): a Child that is gone after the test."""
    made: list[Child] = []

    def start(program: str, *arguments: object, **options: Any) -> Child:
        made.append(Child(program, *arguments, **options))
        return made[-1]

    yield start
    for one in made:
        if one.process.poll() is None:
            one.kill()
        for pipe in (one.process.stdin, one.process.stdout):
            if pipe is not None:
                pipe.close()


HOLD = """
import sys
from pathlib import Path
from pipeline.rundir import Lock
locks = [Lock.acquire(Path(path)) for path in sys.argv[1:]]
print("held" if all(locks) else "refused")
sys.stdin.readline()
"""


@pytest.fixture
def hold(child: Callable[..., Child]) -> Callable[..., Child]:
    """hold(path, …): another process that holds these locks until it is told to end."""

    def start(*paths: Path) -> Child:
        holder = child(HOLD, *paths)
        assert holder.hears() == "held"
        return holder

    return start


_STEPS = ("open", "write", "fsync", "rename", "replace", "link", "symlink", "mkdir", "unlink", "rmdir", "ftruncate")


def killed_at(step: int, operation: Callable[[], object]) -> bool:
    """Run an operation in a forked process that kills itself at its `step`-th call into the filesystem.

    A write is half done then. False when it came to its end before that.
    """
    pid = os.fork()
    if pid == 0:
        seen = 0

        def wrap(name: str) -> Callable[..., Any]:
            real = getattr(os, name)

            def wrapped(*arguments: Any, **options: Any) -> Any:
                nonlocal seen
                seen += 1
                if seen == step:
                    if name == "write":
                        real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments, **options)

            return wrapped

        for name in _STEPS:
            setattr(os, name, wrap(name))
        try:
            operation()
        except BaseException:
            os._exit(3)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert status in (0, signal.SIGKILL), f"the operation failed (status {status})"
    return status != 0


def every_crash(prepare: Callable[[], object], operation: Callable[[], object]) -> Iterator[int]:
    """Prepare, crash the operation at its first step, yield; again at its second step; … until it gets through."""
    step = 0
    while True:
        step += 1
        prepare()
        crashed = killed_at(step, operation)
        yield step
        if not crashed:
            assert step > 3, "nothing was interrupted"
            return


@pytest.fixture
def full_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """full_after(n): from now on the volume takes n more bytes, then writes are short, then ENOSPC."""

    def fill(room: int) -> None:
        real = os.write

        def write(fd: int, data: bytes) -> int:
            nonlocal room
            if room <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written = real(fd, bytes(data)[:room])
            room -= written
            return written

        monkeypatch.setattr(os, "write", write)

    return fill


def _small_volume(path: Path, size: str) -> None:
    """Mount a tmpfs of that size in a namespace of this process alone. Raises OSError where that isn't allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_mounts, new_users = 0x00020000, 0x10000000

    def call(result: int) -> None:
        if result:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    uid, gid = os.getuid(), os.getgid()
    try:
        call(libc.unshare(new_mounts))
    except PermissionError:
        call(libc.unshare(new_mounts | new_users))
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    private, recursive = 1 << 18, 1 << 14
    call(libc.mount(b"none", b"/", None, private | recursive, None))
    call(libc.mount(b"tmpfs", str(path).encode(), b"tmpfs", 0, f"size={size}".encode()))


def on_small_volume(path: Path, size: str, operation: Callable[[], object]) -> None:
    """Run an operation in a forked process that sees a small tmpfs at `path`; skips where mounting isn't allowed."""
    path.mkdir(exist_ok=True)
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(out)
        try:
            _small_volume(path, size)
        except OSError:
            os._exit(77)
        try:
            operation()
        except BaseException as error:
            os.write(into, f"{type(error).__name__}: {error}".encode()[:4000])
            os._exit(1)
        os._exit(0)
    os.close(into)
    with os.fdopen(out) as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == 77:
        pytest.skip("mount namespaces aren't allowed here; the injected fault covers the same path")
    assert code == 0, said


@pytest.fixture(name="begin")
def _begin() -> Callable[..., Attempt]:
    return begin


@pytest.fixture(name="complete")
def _complete() -> Callable[..., Output]:
    return complete


@pytest.fixture(name="change")
def _change() -> Callable[..., Plan]:
    return change


@pytest.fixture(name="every_crash")
def _every_crash() -> Callable[..., Iterator[int]]:
    return every_crash


@pytest.fixture(name="on_small_volume")
def _on_small_volume() -> Callable[..., None]:
    return on_small_volume


STAGE_PROGRAM = """
import os, sys, time
from pathlib import Path
from pipeline.stage import StageError, Stopped, run_stage

def body(stage):
{body}

sys.exit(run_stage({name!r}, body))
"""


def stage_script(path: Path, body: str, stage: str = "generate") -> Path:
    """A program that runs a stage with that body (indented by four)."""
    path.write_text(STAGE_PROGRAM.format(body=body, name=stage))
    return path


@pytest.fixture(name="stage_script")
def _stage_script() -> Callable[..., Path]:
    return stage_script


class StageProcess:
    """A stage process whose output can be waited for."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def hears(self, words: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if words in line:
                return line.strip()
        raise AssertionError(f"it ended without saying {words!r}")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate()
        return self.process.returncode, out, err


@pytest.fixture
def start(run: RunDir, tmp_path: Path) -> Iterator[Callable[..., StageProcess]]:
    """start(body, *words, stage="generate", env={}, fds=()): a stage process with that body."""
    made: list[subprocess.Popen[str]] = []

    def begin(
        body: str, *words: str, stage: str = "generate", env: dict[str, str] | None = None, fds: tuple[int, ...] = ()
    ) -> StageProcess:
        script = stage_script(tmp_path / f"stage{len(made)}.py", body, stage)
        process = subprocess.Popen(
            [sys.executable, "-u", str(script), "--run", str(run.path), *words],
            env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        made.append(process)
        return StageProcess(process)

    yield begin
    for process in made:
        if process.poll() is None:
            process.kill()
        process.communicate()
