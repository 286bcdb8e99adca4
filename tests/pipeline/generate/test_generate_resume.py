"""Generate is stopped, killed and changed while it runs: every prompt has its sample exactly once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest


def in_thread(work: Any) -> tuple[threading.Thread, list[int]]:
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(work.go()))
    thread.start()
    return thread, codes


def command(work: Any) -> list[str]:
    return [sys.executable, "-m", "pipeline.generate", "--run", str(work.run.path)]


def lines(work: Any) -> int:
    path = work.out / "samples.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_killed_again_and_again_every_id_is_there_once(work: Any, until: Any) -> None:
    work.engine.delay_s = 0.02
    work.plan(90, concurrency=6)
    for kill in range(3):
        before = lines(work)
        process = subprocess.Popen(command(work), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(lambda before=before, process=process: lines(work) > before + 5 or process.poll() is not None)
        time.sleep(0.017 * kill)
        process.send_signal(signal.SIGKILL)
        assert process.wait(20) == -signal.SIGKILL
        with (work.out / "samples.jsonl").open("ab") as file:
            # what a kill in the middle of a write leaves
            file.write(json.dumps({"id": "torn", "messages": []}).encode()[: 9 * kill])
    subprocess.run(command(work), check=True, stdout=subprocess.DEVNULL)
    work.check(90)
    asked = sum(work.engine.asked.values()) - work.engine.asked["Hello"]
    assert 90 <= asked <= 90 + 3 * 6
    assert {row["id"] for row in work.rows("tokenized.jsonl")} == {f"p{number}" for number in range(90)}
    names = {path.name for path in work.out.iterdir()}
    assert names == {"samples.jsonl", "rejects.jsonl", "tokenized.jsonl", "report.json", "source.json"}


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, "control"])
def test_stop_saves_what_still_comes_and_resume_does_the_rest(work: Any, until: Any, how: Any) -> None:
    work.engine.delay_s = 0.1
    work.plan(40, concurrency=4)
    process = subprocess.Popen(command(work), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    until(lambda: lines(work) >= 6)
    if how == "control":
        work.run.stage("generate").latest().request("stop", by="test")
    else:
        process.send_signal(how)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "Traceback" not in out
    assert work.outcome()["result"] == "stopped"
    # the answers in flight came within the grace: none was asked for in vain
    stored = lines(work)
    assert stored == sum(work.engine.asked.values()) - 1 < 40
    assert work.go() == 0
    work.check(40)
    assert max(count for text, count in work.engine.asked.items() if text != "Hello") == 1


def test_stop_does_not_wait_for_answers_that_take_long(work: Any, until: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.generate.loop.STOP_GRACE_S", 0.3)
    work.plan(6, concurrency=6)
    work.engine.faults.extend(["", "", "hang", "hang", "hang", "hang"])
    thread, codes = in_thread(work)
    until(lambda: lines(work) == 2)
    work.run.stage("generate").latest().request("stop", by="test")
    thread.join(50)
    assert codes == [0] and work.outcome()["result"] == "stopped"
    assert lines(work) == 2
    work.engine.gate.set()
    assert work.go() == 0
    work.check(6)


def test_stop_while_the_server_is_away(work: Any, until: Any) -> None:
    work.engine.stop()
    work.plan(3, timeout_s=600.0)
    thread, codes = in_thread(work)
    until(
        lambda: (
            work.run.stage("generate").latest() is not None
            and (work.run.stage("generate").latest().path / "events.jsonl").exists()
        )
    )
    until(lambda: any("waiting" in event["message"] for event in work.events()))
    work.run.stage("generate").latest().request("stop", by="test")
    thread.join(50)
    assert codes == [0] and work.outcome()["result"] == "stopped"


def test_target_is_exact_and_followed_while_it_runs(work: Any, until: Any) -> None:
    work.engine.delay_s = 0.1
    run = work.plan(60, concurrency=8, max_samples=50)
    thread, codes = in_thread(work)
    until(lambda: lines(work) >= 8)
    run.change_plan({"generate.max_samples": 21}, "fewer")
    thread.join(30)
    assert codes == [0]
    assert 21 <= lines(work) < 50
    kept = lines(work)
    work.check(kept)
    run.change_plan({"generate.max_samples": kept + 5}, "more")
    assert work.go() == 0
    work.check(kept + 5)


def test_no_more_is_asked_than_the_target_needs(work: Any) -> None:
    work.plan(60, concurrency=8, max_samples=10)
    assert work.go() == 0
    work.check(10)
    assert sum(work.engine.asked.values()) == 11


def test_raised_target_is_taken_up(work: Any, until: Any) -> None:
    work.engine.delay_s = 0.15
    run = work.plan(60, concurrency=2, max_samples=30)
    thread, codes = in_thread(work)
    until(lambda: lines(work) >= 4)
    run.change_plan({"generate.max_samples": 34}, "more")
    thread.join(30)
    assert codes == [0]
    work.check(34)
    assert any("34" in event["message"] for event in work.events())


def test_killed_after_the_last_sample_needs_no_server(work: Any) -> None:
    work.plan(5)
    assert work.go() == 0
    before = work.run.stage("generate").current().fingerprint
    (work.out / "report.json").unlink()
    (work.out / "tokenized.jsonl").unlink()
    work.engine.stop()
    assert work.go() == 0
    work.check(5)
    assert work.run.stage("generate").current().fingerprint == before


def test_full_volume_stops_before_the_reserve(work: Any) -> None:
    work.plan(5)
    work.run.change_plan({"volume.reserve_bytes": 2**29, "volume.capacity_bytes": 2**29 + 4096}, "small")
    assert work.go() == 1
    assert "reserve" in work.outcome()["message"] and work.outcome()["resumable"]
