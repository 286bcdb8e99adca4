"""The fixtures of the fault matrix. All of it is marked `real`: root, namespaces and Debian's sshd are needed."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import STAGES, Plan, VerifierPlan, set_values
from pipeline.rundir import RunDir
from tests.real.network import truth
from tests.real.network.counting import write_counting
from tests.real.network.laptop import Laptop, laptop
from tests.real.network.topology import Gpu, missing

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("soak") is None:
            item.add_marker("real")


@pytest.fixture(scope="session", autouse=True)
def possible() -> None:
    if missing():
        pytest.skip(missing())


class Host(Gpu):
    """A Gpu with runs of counting stages on it, read directly."""

    def __init__(self, folder: Path, **how: Any) -> None:
        super().__init__(folder, **how)
        self.program = write_counting(folder / "counting")
        self.verifier = folder / "verifier"
        self.verifier.mkdir()
        config = {"hidden_size": 64, "num_hidden_layers": 4, "vocab_size": 512, "num_attention_heads": 4}
        config.update({"intermediate_size": 128, "num_key_value_heads": 2, "model_type": "llama"})
        (self.verifier / "config.json").write_text(json.dumps(config))

    @property
    def flag(self) -> Path:
        """The file that ends a stage which counts until it is there."""
        return self.folder / "finish"

    def plan(self, changes: dict[str, object] | None = None, **how: dict[str, Any]) -> Plan:
        """Stages that count: until ``flag`` is there, or as keyword arguments say by stage."""
        plan = Plan(verifier=VerifierPlan(str(self.verifier), "tiny"), through="generate")
        stages = {
            name: dataclasses.replace(
                plan.stages[name],
                python=str(self.program),
                env={"COUNTING": json.dumps({"until": str(self.flag), **how.get(name, {})})},
                grace_s=10.0,
            )
            for name in STAGES
        }
        return set_values(dataclasses.replace(plan, stages=stages), changes or {})

    def run(self, name: str = "r1", changes: dict[str, object] | None = None, **how: dict[str, Any]) -> RunDir:
        return RunDir.create(self.root, name, self.plan(changes, **how))


@pytest.fixture
def shared_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For tests that aren't about the upload: the code is on every host after the first of them."""
    shared = tmp_path_factory.getbasetemp() / "network-code"
    shared.mkdir(exist_ok=True)
    return shared


@pytest.fixture
def make_host(tmp_path: Path, shared_code: Path) -> Iterator[Callable[..., Host]]:
    made: list[Host] = []

    def make(name: str = "gpu", code: bool = True, **how: Any) -> Host:
        host = Host(tmp_path / name, **how)
        made.append(host)
        if code:
            (host.root / "code").symlink_to(shared_code)
        return host

    try:
        yield make
    finally:
        for host in made:
            host.close()


@pytest.fixture
def gpu(make_host: Callable[..., Host], request: pytest.FixtureRequest) -> Host:
    """The host; settings of sshd come by indirect parametrisation."""
    return make_host(settings=getattr(request, "param", ""))


@pytest.fixture
def watched(gpu: Host) -> Callable[..., Any]:
    """`async with watched() as here`: a laptop that looks at a stage which counts; every invariant holds at the end."""
    return lambda **more: watching(gpu, **more)


@contextlib.asynccontextmanager
async def watching(
    host: Host, *, how: dict[str, Any] | None = None, jumps: int = 0, settle: float = 60.0, **more: Any
) -> AsyncIterator[Laptop]:
    before, tasks = truth.open_files(), asyncio.all_tasks()
    run = host.run(generate=how or {})
    async with laptop(more.pop("spec", None) or host.spec(), host.hostkeys(), "r1", **more) as here:
        await here.live()
        await here.collector.filled()
        await here.collector.start()
        await here.until(lambda: here.count() > 5 and here.link.log)  # the log is read from its first byte
        untouched = truth.Untouched.of(run)
        yield here
        await here.live(settle)
        await here.counting(seconds=settle)
        untouched.check()
        truth.assert_counts(run.stage("generate"))
        await truth.check_nothing_leaks(host, agents=2)
        host.flag.touch()
        await truth.check_end(here, run)
        log = run.stage("generate").attempt(1).path / "stage.log"
        await here.until(lambda: truth.check_log(here, run, jumps=jumps) == log.stat().st_size)
        await truth.check_events(here, run)
        assert run.stage("generate").attempts() == [1]
        truth.check_no_traceback(host, here)
    await truth.check_nothing_leaks(host)
    truth.check_no_traceback(host, here)
    await truth.check_nothing_stays_here(before, tasks)
