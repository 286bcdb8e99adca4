"""The demo without a console: starts the run, prints a line when a stage has ended and a table at the end."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from console import format as shown
from console.collector import Collector
from console.command.session import make_link
from console.demo.prepare import Demo, another, is_finished, make_run
from console.demo.report import ENDED, Outcome, outcome_json, stage_line, table_lines
from console.demo.returning import ways_back, what_is_kept
from console.demo.server import ssh_server
from console.demo.settings import HOST
from remote.errors import RemoteError

if TYPE_CHECKING:
    from remote.link import Link

POLL_S = 0.5
QUIET_S = 40.0
LOG_LINES = 20


async def run_headless(demo: Demo, began: float, throwaway: bool, json_file: Path | None) -> int:
    """Exit status 0 when every stage is DONE. `began` is when it began, on the monotonic clock.

    A `throwaway` demo's folder goes at the end, unless a stage failed: then it is named.
    """
    _end_on_signals()
    try:
        async with _link(demo) as link:
            demo = await _unfinished(link, demo)
            outcome = await _conduct(link, demo, began, throwaway)
    except asyncio.CancelledError:
        if throwaway:
            shutil.rmtree(demo.place.folder, ignore_errors=True)
        raise
    print("\n".join(["", *table_lines(outcome)]), flush=True)
    if json_file is not None:
        json_file.write_text(json.dumps(outcome_json(outcome), indent=2) + "\n", "utf-8")
    if not outcome.ok:
        _tell_failure(outcome, demo)
        return 1
    if throwaway:
        shutil.rmtree(demo.place.folder, ignore_errors=True)
    else:
        print("\n".join(["", *what_is_kept(demo)]))
    return 0


def _end_on_signals() -> None:
    """A job that is cancelled or whose terminal goes ends as with Ctrl-C: nothing of it stays at work."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)


async def _unfinished(link: Link, demo: Demo) -> Demo:
    """The demo's run, made if need be; a new one where it is finished: a headless demo measures."""
    if not await make_run(link, demo) and await is_finished(link, demo):
        demo = another(demo)
        await make_run(link, demo)
    return demo


async def _conduct(link: Link, demo: Demo, began: float, throwaway: bool) -> Outcome:
    async with Collector(link, demo.choice.run) as collector:
        try:
            await collector.filled()
            before = {(stage.name, stage.attempt) for stage in collector.snapshot.stages if stage.state in ENDED}
            await collector.start(stale="rerun")
            await _follow(link, collector, before)
            total = time.monotonic() - began
            if throwaway:
                await _quiet(link, collector)
        except asyncio.CancelledError:
            if throwaway:
                await _end(link, collector)
            raise
        return Outcome(demo.choice.run, demo.run.plan.verifier.name, collector.snapshot, total)


@asynccontextmanager
async def _link(demo: Demo) -> AsyncIterator[Link]:
    async with ssh_server(demo.place, demo.choice.ssh_port), make_link(demo.config, demo.config.hosts[HOST]) as link:
        yield link


async def _follow(link: Link, collector: Collector, told: set[tuple[str, int | None]]) -> None:
    """Until the conductor has ended and everything it left is known. `told` are attempts that had ended before."""
    while True:
        busy = await _busy(link, collector.run)
        await collector.refresh()
        for stage in collector.snapshot.stages:
            if stage.state in ENDED and (stage.name, stage.attempt) not in told:
                told.add((stage.name, stage.attempt))
                print(stage_line(stage), flush=True)
        if not busy:
            return
        await asyncio.sleep(POLL_S)


async def _busy(link: Link, run: str) -> bool:
    """Whether the run's conductor is at work. A lost link is waited out."""
    try:
        rows = await link.request("runs")
    except RemoteError:
        return True
    return any(row.get("name") == run and row.get("state") == "RUNNING" for row in rows)


async def _end(link: Link, collector: Collector) -> None:
    """After Ctrl-C: the run of a folder that goes away is killed."""
    try:
        await collector.kill()
    except RemoteError:
        return
    await _quiet(link, collector)


async def _quiet(link: Link, collector: Collector) -> None:
    """Until nothing of the run is at work, its services included: the folder they write to is about to go."""
    deadline = time.monotonic() + QUIET_S
    while time.monotonic() < deadline:
        try:
            await collector.refresh()
            resting = all(
                service.state not in {"STARTING", "READY", "SILENT", "STOPPING"}
                for service in collector.snapshot.services
            )
            if resting and not await _busy(link, collector.run):
                return
        except (RemoteError, TimeoutError):
            pass
        await asyncio.sleep(POLL_S)


def _tell_failure(outcome: Outcome, demo: Demo) -> None:
    failed = next((stage for stage in outcome.snapshot.stages if stage.state != "DONE"), None)
    what = f"{failed.name} is {failed.state}" if failed else "the run has no stages"
    said = (failed.message if failed else "") or outcome.snapshot.conductor.message
    why = shown.sentence(said, failed.remedy if failed else "")
    print(f"eagledeck: the demo failed: {what}. {why}".rstrip(), file=sys.stderr)
    if outcome.snapshot.log:
        print(f"The end of the log of {outcome.snapshot.log_source}:", file=sys.stderr)
        print("\n".join(f"  {line}" for line in outcome.snapshot.log[-LOG_LINES:]), file=sys.stderr)
    print("\n".join([f"The run is kept in {demo.place.root / outcome.run}.", *ways_back(demo)]), file=sys.stderr)
