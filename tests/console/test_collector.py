"""The collector and its parts where timing and order matter: a scripted link stands in for the host."""

from __future__ import annotations

import asyncio
import base64
import math
import random
from array import array
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from console.collector import Collector
from console.curves import FIRST_POINTS, LEAST_POINTS, MOST_ROWS, POINTS, Ask, CurveStore
from console.log_tail import LogTail
from console.run_data import RunData
from console.snapshot import ConductorView
from console.views import disk_view, event_view, gpu_views, stage_view, stage_views
from remote.agent.columns import decimate
from remote.errors import ConnectionLost, HostKeyChanged, RemoteError
from remote.link import Kind, LinkState
from remote.resolve import HostSpec

# ------------------------------------------------------------ curves


def reply(
    rows: list[tuple[float, dict[str, float]]], generation: str = "1.1.0", last: float | None = None
) -> dict[str, Any]:
    names = sorted({name for _, row in rows for name in row})
    columns: dict[str, list[Any]] = {"step": [step for step, _ in rows], "epoch": [None] * len(rows)}
    columns |= {name: [row.get(name) for _, row in rows] for name in names}
    return {
        "columns": columns,
        "output": 1,
        "generation": generation,
        "last_step": last or (rows[-1][0] if rows else None),
    }


def values(store: CurveStore, name: str) -> dict[float, float | None]:
    curve = next(curve for curve in store.curves() if curve.name == name)
    return dict(zip(curve.steps, curve.values))


def test_a_curve_in_pieces_is_the_curve_in_one() -> None:
    numbers = random.Random(5)
    for _ in range(50):
        rows = [(float(step), {"train/loss": step / 7}) for step in range(1, numbers.randint(2, 80))]
        store = CurveStore()
        end = 0
        while end < len(rows):
            end = min(len(rows), end + numbers.randint(1, 20))
            ask = store.newest(POINTS)
            answered = [row for row in rows[:end] if ask.since is None or row[0] > ask.since]
            assert store.add(reply(answered), ask)
        assert values(store, "train/loss") == {step: row["train/loss"] for step, row in rows}


def test_a_validation_row_at_the_last_step_is_not_missed() -> None:
    store = CurveStore()
    store.add(reply([(9, {"train/loss": 2.0}), (10, {"train/loss": 1.0})]), store.newest(POINTS))
    ask = store.newest(POINTS)
    assert ask.since is not None
    assert ask.since < 10
    store.add(reply([(10, {"train/loss": 1.0}), (10, {"val/loss": 3.0})]), ask)
    steps = [curve.steps for curve in store.curves()]
    assert steps == [(9.0, 10.0, 10.0)] * 2
    assert values(store, "val/loss")[10] == 3.0


def test_a_resume_starts_the_curve_anew_instead_of_drawing_lost_steps() -> None:
    store = CurveStore()
    store.add(reply([(step, {"train/loss": 1.0}) for step in range(1, 101)]), store.newest(POINTS))
    after = [(step, {"train/loss": 5.0}) for step in range(81, 83)]
    assert not store.add(reply([], generation="1.2.0"), store.newest(POINTS))
    assert store.newest(POINTS) == Ask(POINTS)
    assert len(values(store, "train/loss")) == 100, "nothing goes before something is there in its place"
    whole = [(float(step), {"train/loss": 1.0}) for step in range(1, 81)] + after
    assert store.add(reply(whole, generation="1.2.0"), Ask(POINTS))
    assert values(store, "train/loss") == {step: row["train/loss"] for step, row in whole}


def test_a_long_curve_is_asked_for_again_thinned() -> None:
    store = CurveStore()
    store.add(reply([(step, {"train/loss": 1.0}) for step in range(MOST_ROWS + 1)]), store.newest(POINTS))
    assert store.finer(POINTS) == Ask(POINTS, -1, MOST_ROWS)
    store.add(reply([(step, {"train/loss": 1.0}) for step in range(0, MOST_ROWS + 1, 4)]), Ask(POINTS, -1, MOST_ROWS))
    assert len(values(store, "train/loss")) == MOST_ROWS // 4 + 1
    assert store.finer(POINTS) is None
    assert store.newest(POINTS) == Ask(POINTS, MOST_ROWS - 1)


class Metrics:
    """Answers as a host does that has so many steps, and notes how many points it gave."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.given: list[tuple[float, int]] = []

    def __call__(self, ask: Ask) -> dict[str, Any]:
        low, high = ask.since or 0, ask.until or self.steps
        steps = [step for step in range(1, self.steps + 1) if low < step <= high]
        loss = array("d", [99.0 if step == 777 else 1 / step for step in steps])
        columns = decimate({"step": array("d", steps), "train/loss": loss}, ("step",), ask.points)
        self.given.append((high, len(columns["step"])))
        return {"columns": columns, "rows": len(steps), "output": 1, "generation": "1.1.0",
                "last_step": steps[-1] if steps else None}  # fmt: skip


def test_a_long_curve_comes_whole_and_rough_then_finer_from_its_end() -> None:
    for points in (LEAST_POINTS, FIRST_POINTS, 100, 250):
        host, store = Metrics(100_000), CurveStore()
        assert store.add(host(store.newest(points)), store.newest(points))
        rough = values(store, "train/loss")
        assert (min(rough), max(rough)) == (1, 100_000) and len(rough) <= points
        host.steps += 500  # it goes on meanwhile
        store.add(host(store.newest(points)), store.newest(points))
        while ask := store.finer(points):
            assert store.add(host(ask), ask)
        fine = values(store, "train/loss")
        assert list(fine) == sorted(fine) and max(fine) == 100_500 and max(fine.values()) == 99.0
        assert max(b - a for a, b in pairwise(fine)) <= 2 * 100_000 / POINTS * 2
        assert all(given <= points for _, given in host.given) and len(fine) <= 2 * POINTS + points
        ends = [end for end, _ in host.given[2:]]
        assert ends == sorted(ends, reverse=True), "the newest first"
        assert store.newest(points).since == 100_499


def test_a_curve_that_changed_while_it_became_finer_is_begun_anew() -> None:
    host, store = Metrics(10_000), CurveStore()
    store.add(host(Ask(32)), Ask(32))
    ask = store.finer(32)
    assert ask is not None
    assert not store.add({**host(ask), "generation": "1.2.0"}, ask)
    assert store.finer(32) is None and store.newest(32) == Ask(32)


def test_a_value_that_is_no_number_is_a_gap() -> None:
    store = CurveStore()
    raw = reply([(1, {"train/loss": 1.0}), (2, {}), (3, {"train/loss": 2.0})])
    raw["columns"]["train/loss"][1] = "NaN"
    store.add(raw, store.newest(POINTS))
    assert values(store, "train/loss") == {1: 1.0, 2: None, 3: 2.0}


# ------------------------------------------------------------ logs


def piece(data: bytes, offset: int, attempt: int = 1, generation: str = "a", size: int | None = None) -> dict[str, Any]:
    encoded = base64.b64encode(data).decode()
    end = offset + len(data)
    return {"attempt": attempt, "generation": generation, "offset": offset, "data": encoded, "size": size or end}


def test_a_log_in_pieces_gives_each_line_once_however_it_is_cut() -> None:
    text = "".join(f"line {number} \u00e9\u4e2d\n" for number in range(200)).encode()
    numbers = random.Random(1)
    for _ in range(20):
        tail, got = LogTail(limit=1000, first_bytes=len(text)), []
        position = 0
        while position < len(text):
            size = numbers.randint(1, 300)
            got += tail.add(piece(text[position : position + size], position))
            position += size
        assert got == text.decode().splitlines()
        assert list(tail.lines) == got


def test_a_tail_that_starts_inside_a_line_drops_its_rest() -> None:
    tail = LogTail()
    assert tail.add(piece(b"half a line\nwhole\n", offset=500)) == ["whole"]


def test_a_new_attempt_clears_the_log_and_a_hole_breaks_no_line() -> None:
    tail = LogTail()
    tail.add(piece(b"one\ntw", 0))
    assert tail.shown() == ("one", "tw")
    assert tail.add(piece(b"cut\nfour\n", 4096)) == ["four"]
    tail.add(piece(b"anew\n", 0, attempt=2, generation="b"))
    assert tail.shown() == ("anew",)
    assert tail.request() == {"offset": 5, "generation": "b"}


def test_lines_are_bounded_and_safe() -> None:
    tail = LogTail(limit=3)
    tail.add(piece(b"1\n2\n3\n\x1b]52;c;aGk=\x07four\n 50%|#\r100%|##\n", 0))
    assert tail.shown() == ("3", "four", "100%|##")
    tail.add(piece(b"x" * 1_000_000, tail.offset))
    assert len(tail.shown()[-1]) <= 4096


# ------------------------------------------------------------ views


def test_unknown_stays_unknown_and_junk_becomes_unknown() -> None:
    stage = stage_view("train", {"state": "RUNNING", "progress": {"done": "7", "rate": math.inf, "total": True}})
    assert (stage.done, stage.rate, stage.total, stage.eta_s, stage.elapsed_s) == (None,) * 5
    assert stage_views({}) == ()
    assert [stage.state for stage in stage_views({"stages": {}})] == ["PENDING"] * 5
    gpu = gpu_views({"gpus": [{"index": 3, "power_w": None, "mem_used": 0}, "junk"]})
    assert (gpu[0].index, gpu[0].power_w, gpu[0].mem_used) == (3, None, 0.0)
    disk = disk_view({"disk": {"path": "/data", "total": 10, "capacity": None, "free": 4}})
    assert disk is not None
    assert (disk.capacity, disk.used, disk.free) == (10, None, 4)


# ------------------------------------------------------------ the collector


class ScriptedLink:
    """A link whose state and answers the test sets."""

    def __init__(self) -> None:
        self.spec = HostSpec("box", "box", "/data")
        self.state = LinkState(Kind.LIVE, age_s=0.1)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.answers: dict[str, Any] = {
            "watch": {},
            "unwatch": {},
            "runs": [],
            "events": {"events": [], "cursor": {}},
            "plan": {"revision": 1},
        }
        self.pushers: list[Callable[[str, dict[str, Any]], None]] = []
        self.observers: list[Callable[[LinkState], None]] = []
        self.confirmed: list[tuple[str, ...]] = []

    async def request(self, op: str, **args: Any) -> Any:
        self.asked.append((op, args))
        answer = self.answers.get(op, RemoteError(f"no {op}"))
        if isinstance(answer, Exception):
            raise answer
        return answer(args) if callable(answer) else answer

    async def watch(self, run: str) -> None:
        await self.request("watch", run=run)

    async def unwatch(self) -> None:
        await self.request("unwatch")

    def subscribe(self, callback: Callable[[str, dict[str, Any]], None]) -> Callable[[], None]:
        self.pushers.append(callback)
        return lambda: self.pushers.remove(callback)

    def on_state(self, callback: Callable[[LinkState], None]) -> Callable[[], None]:
        self.observers.append(callback)
        return lambda: self.observers.remove(callback)

    def confirm_host_key(self, fingerprint: str) -> None:
        self.confirmed.append(("confirm", fingerprint))

    def replace_host_key(self, fingerprint: str, typed: str) -> None:
        self.confirmed.append(("replace", fingerprint, typed))

    def push(self, name: str, data: dict[str, Any]) -> None:
        for callback in list(self.pushers):
            callback(name, data)

    def become(self, kind: Kind, **fields: Any) -> None:
        self.state = LinkState(kind, **fields)
        for callback in list(self.observers):
            callback(self.state)


def run_push(state: str = "RUNNING", run: str = "r1", **fields: Any) -> dict[str, Any]:
    stages = {"train": {"state": state, "attempt": 1, "output": 1, **fields}}
    return {
        "run": run,
        "plan_revision": 1,
        "through": "deploy",
        "stages": stages,
        "counts": {"samples": 5, "tokens": 50},
    }


@pytest.fixture
def link() -> ScriptedLink:
    return ScriptedLink()


def collector_of(link: ScriptedLink) -> Collector:
    return Collector(link, "r1")  # type: ignore[arg-type]


async def test_a_storm_of_pushes_is_told_at_most_four_times_a_second(link: ScriptedLink) -> None:
    told = 0

    def count() -> None:
        nonlocal told
        told += 1

    async with collector_of(link) as collector:
        collector.subscribe(count)
        loop = asyncio.get_running_loop()
        began = loop.time()
        while loop.time() - began < 1.0:
            link.push("host", {"wall": loop.time()})
            await asyncio.sleep(0)
    assert 2 <= told <= 5


async def test_a_lost_link_keeps_every_number_and_only_ages(link: ScriptedLink) -> None:
    async with collector_of(link) as collector:
        link.push("run", run_push(progress={"done": 7, "total": 9, "unit": "steps"}))
        link.push("host", {"gpus": [{"index": 0, "power_w": 300.0}], "disk": {"path": "/data", "free": 4}})
        await collector.filled()
        before = collector.snapshot
        for op in link.answers:
            link.answers[op] = ConnectionLost("lost")
        link.become(Kind.BACKOFF, message="The connection was lost", age_s=12.5, retry_in_s=3.0)
        await asyncio.sleep(0.6)
        after = collector.snapshot
    assert (after.link.state, after.link.age_s, after.link.retry_in_s) == ("BACKOFF", 12.5, 3.0)
    assert after.stages == before.stages
    assert after.stages[3].done == 7
    assert (after.gpus, after.disk, after.samples, after.plan) == (before.gpus, before.disk, 5, {"revision": 1})


async def test_nothing_is_asked_while_the_link_is_down_and_everything_once_it_is_back(link: ScriptedLink) -> None:
    async with collector_of(link) as collector:
        link.become(Kind.CONNECTING)
        link.push("run", run_push())
        await asyncio.sleep(0.6)
        assert [op for op, _ in link.asked if op != "watch"] == []
        link.become(Kind.LIVE)
        await asyncio.wait_for(collector.filled(), 5)
        assert {"plan", "events", "metrics", "tail"} <= {op for op, _ in link.asked}


async def test_a_link_that_is_live_again_is_asked_for_little_at_first(link: ScriptedLink) -> None:
    """It may be another network by now: what it carried before says nothing."""
    host = Metrics(20_000)
    link.answers["metrics"] = lambda args: host(Ask(args["points"], args.get("since_step"), args.get("until_step")))

    def points() -> list[int]:
        return [args["points"] for op, args in link.asked if op == "metrics"]

    async with collector_of(link) as collector:
        link.push("run", run_push())
        await asyncio.wait_for(collector.filled(), 5)
        before = points()
        assert before[0] == FIRST_POINTS and before[-1] > FIRST_POINTS
        link.become(Kind.BACKOFF)
        host.steps += 5000
        link.become(Kind.LIVE)
        await asyncio.wait_for(collector.filled(), 5)
        assert points()[len(before)] == FIRST_POINTS
        (curve,) = collector.snapshot.curves
    assert curve.steps[-1] == 25_000
    assert max(b - a for a, b in pairwise(curve.steps)) < 200, "finer, once it was all asked for"


def test_a_supervisors_details_are_no_events_for_people() -> None:
    quiet = [("started", "pid 9737: python -m pipeline.train"), ("main ended", "status 0")]
    assert [event_view({"t": 1.0, "kind": kind, "message": message}) for kind, message in quiet] == [None, None]
    told = event_view({"t": 1.0, "kind": "main ended", "message": "signal SIGKILL"})
    assert told is not None
    assert told.message == "signal SIGKILL"


async def test_events_come_once_and_go_on_from_the_cursor(link: ScriptedLink) -> None:
    async with collector_of(link) as collector:
        first = {"t": 2.0, "stage": "train", "kind": "checkpoint", "message": "b"}
        link.answers["events"] = {"events": [first], "cursor": {"x": 1}}
        link.push("run", run_push())
        await collector.filled()
        link.answers["events"] = {"events": [{**first, "t": 1.0, "message": "a"}], "cursor": {"x": 2}}
        link.push("run", run_push(progress={"done": 1}))
        await asyncio.sleep(0.6)
        assert [event.message for event in collector.snapshot.events] == ["a", "b"]
    cursors = [args.get("since") for op, args in link.asked if op == "events"]
    assert cursors[:2] == [None, {"x": 1}]


async def test_a_run_that_is_not_there_is_told_and_asked_for_again(link: ScriptedLink) -> None:
    link.answers["watch"] = RemoteError("there is no run r1", "make it")
    async with collector_of(link) as collector:
        await asyncio.wait_for(collector.filled(), 5)
        assert collector.snapshot.conductor == ConductorView("failed", message="there is no run r1. Make it.")
        assert collector.snapshot.stages == ()
        link.answers["watch"] = {}
        link.push("run", run_push())
        assert collector.snapshot.conductor == ConductorView()


async def test_a_run_that_becomes_unreadable_keeps_what_it_said(link: ScriptedLink) -> None:
    async with collector_of(link) as collector:
        link.push("run", run_push())
        link.push("run", {"run": "r1", "error": {"message": "the plan is torn", "remedy": "repair it"}})
        assert collector.snapshot.conductor == ConductorView("failed", message="the plan is torn. Repair it.")
        assert collector.snapshot.stages[3].state == "RUNNING"


async def test_another_run_starts_from_nothing(link: ScriptedLink) -> None:
    async with collector_of(link) as collector:
        link.push("run", run_push())
        await collector.filled()
        await collector.select("r2")
        assert (collector.run, collector.snapshot.stages, collector.snapshot.plan) == ("r2", (), None)
        link.push("run", run_push())
        assert collector.snapshot.stages == ()
        link.push("run", run_push("DONE", run="r2"))
        assert collector.snapshot.stages[3].state == "DONE"
        await asyncio.sleep(0.1)
    assert ("unwatch", {}) in link.asked
    assert ("watch", {"run": "r2"}) in link.asked


async def test_actions_reach_the_host_and_refusals_come_back(link: ScriptedLink) -> None:
    link.answers |= {op: {} for op in ("start", "stop", "resume", "restart", "kill")}
    link.answers["set"] = {"revision": 2}
    async with collector_of(link) as collector:
        await collector.start(first="extract", stale="keep")
        await collector.stop("train")
        await collector.resume()
        await collector.restart("train", stale="keep")
        await collector.kill()
        await collector.set({"generate.max_samples": "10"})
        link.answers["stop"] = RemoteError("nothing runs", "see its state")
        with pytest.raises(RemoteError, match="nothing runs"):
            await collector.stop()
        assert collector.snapshot.plan == {"revision": 2}
    acted = [(op, args) for op, args in link.asked if op in ("start", "stop", "resume", "restart", "kill", "set")]
    assert acted[:6] == [
        ("start", {"run": "r1", "stale": "keep", "from": "extract"}),
        ("stop", {"run": "r1", "stage": "train"}),
        ("resume", {"run": "r1", "stale": "refuse"}),
        ("restart", {"run": "r1", "stage": "train", "stale": "keep"}),
        ("kill", {"run": "r1"}),
        ("set", {"run": "r1", "changes": {"generate.max_samples": "10"}, "note": ""}),
    ]


async def test_a_changed_host_key_is_replaced_and_an_unknown_one_confirmed(link: ScriptedLink) -> None:
    async with collector_of(link) as collector:
        await collector.confirm_host_key("SHA256:a")
        link.become(Kind.BLOCKED, error=HostKeyChanged("box", "SHA256:a", "ssh-ed25519", "SHA256:b", "k"))
        await collector.confirm_host_key("SHA256:b")
    assert link.confirmed == [("confirm", "SHA256:a"), ("replace", "SHA256:b", "box")]


async def test_a_log_that_outruns_the_wire_is_joined_at_its_end(link: ScriptedLink) -> None:
    link.answers["tail"] = piece(b"x\n" * 100, 0, size=10**9)
    async with collector_of(link) as collector:
        link.push("run", run_push())
        await collector.filled()
    offsets = [args["offset"] for op, args in link.asked if op == "tail"]
    assert len(offsets) >= 2 and any(offset < 0 for offset in offsets[1:])
    assert collector.snapshot.log[-1] == "x"


async def test_the_end_of_a_log_that_ran_away_is_shown_though_nothing_is_asked_again() -> None:
    """The stage has ended, so no poll follows; the log is far longer than what is read of it at once."""
    data, size = RunData("r1"), 10_000_000
    text = b"".join(b"line %06d\n" % number for number in range(size // 12))

    async def request(op: str, **args: Any) -> Any:
        if op != "tail":
            return {}
        start = max(0, len(text) + args["offset"]) if args["offset"] < 0 else args["offset"]
        piece = base64.b64encode(text[start : start + 8192]).decode()
        return {"attempt": 1, "generation": "g", "offset": start, "data": piece, "size": len(text), "done": False}

    data.take({"run": "r1", "stages": {"generate": {"state": "DONE", "attempt": 1}}})
    data.log.add({"attempt": 1, "generation": "g", "offset": 0, "data": "", "size": 1})
    data.log_stage = "generate"
    await data.fill(request)
    assert data.log.shown()[-1] == f"line {size // 12 - 1:06d}"
