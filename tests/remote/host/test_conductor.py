"""Real conductors over stages that count: the way through, halts, resumes, staleness, budgets, deaths."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace

import pytest

from pipeline.config import STAGES
from pipeline.rundir import (
    RunDir,
    RunError,
    StageState,
    StageStatus,
    held,
    on_disk,
    process_start,
    run_status,
    status,
)
from remote.agent.conducted import conductor_view, drop_old_requests, mark_start, request_stop
from remote.agent.errand import Errand
from remote.agent.operations import Operations, Refused
from remote.agent.route import next_step
from remote.agent.run_view import RunView, stage_view
from remote.agent.starting import locked, start_conductor

S = StageState


def over(run):
    return not held(run.path / "conductor" / "lock")


def states(run):
    return [seen.state.value for seen in run_status(run).values()]


def counting(stage):
    """Whether an attempt has got to counting."""
    latest = stage.latest()
    return status(stage).state is S.RUNNING and latest is not None and latest.progress()


def lines(run, stage):
    return (run.stage(stage).current().path / "counts.txt").read_text().split()


def conduct(run, wait_for, **options):
    start_conductor(run.path, {"from" if key == "first" else key: value for key, value in options.items()})
    wait_for(lambda: over(run), 60)
    return conductor_view(run)


# ---------------------------------------------------------------- the decision, pure


def seen(**changes):
    base = dict.fromkeys(STAGES, StageStatus(S.PENDING))
    return {**base, **changes}


DONE, LOST = StageStatus(S.DONE), StageStatus(S.LOST)
BORROWED = StageStatus(S.PENDING, borrowed="other/extract")
STALE = StageStatus(S.DONE, stale=True, stale_reason="generate was continued")
UNFINISHED = StageStatus(S.STOPPED, stale=True, stale_reason="another temperature")
BORROWED_STALE = StageStatus(S.DONE, borrowed="lend/generate", stale=True, stale_reason="another temperature")


@pytest.mark.parametrize(
    ("states", "errand", "more", "want"),
    [
        (seen(), Errand(), {}, ("start", "generate")),
        (seen(generate=DONE), Errand(), {}, ("start", "extract")),
        (seen(generate=StageStatus(S.RUNNING)), Errand(), {}, ("watch", "generate")),
        (seen(generate=StageStatus(S.STOPPING)), Errand(), {}, ("watch", "generate")),
        (seen(generate=StageStatus(S.STOPPED, resumable=True)), Errand(), {}, ("resume", "generate")),
        (seen(generate=StageStatus(S.FAILED, resumable=True)), Errand(), {}, ("resume", "generate")),
        (seen(generate=StageStatus(S.INTERRUPTED, resumable=True)), Errand(), {}, ("resume", "generate")),
        (seen(generate=StageStatus(S.FAILED, resumable=True)), Errand(), {"begun": {"generate"}}, ("halt", "generate")),
        (seen(generate=StageStatus(S.FAILED)), Errand(), {}, ("halt", "generate")),
        (seen(generate=LOST), Errand(), {"living": ["generate"]}, ("adopt", "generate")),
        (seen(generate=LOST), Errand(), {"living": ["generate"], "begun": {"generate"}}, ("adopt", "generate")),
        (seen(generate=DONE, extract=STALE), Errand(), {}, ("halt", "extract")),
        (seen(generate=DONE, extract=STALE), Errand(stale="keep"), {}, ("start", "vocab")),
        (seen(generate=DONE, extract=STALE), Errand(stale="rerun"), {}, ("restart", "extract")),
        (seen(generate=STALE), Errand(stale="rerun"), {"continuable": ["generate"]}, ("resume", "generate")),
        (seen(generate=replace(STALE, kept=True)), Errand(), {}, ("start", "extract")),
        (seen(generate=UNFINISHED), Errand(), {}, ("halt", "generate")),
        (seen(generate=UNFINISHED), Errand(stale="keep"), {}, ("halt", "generate")),
        (seen(generate=UNFINISHED), Errand(stale="rerun"), {}, ("restart", "generate")),
        (seen(generate=DONE, extract=UNFINISHED), Errand(resume="generate"), {}, ("restart", "extract")),
        (seen(generate=DONE, extract=UNFINISHED), Errand(resume="vocab"), {}, ("halt", "extract")),
        (seen(generate=DONE), Errand(restart="generate"), {}, ("restart", "generate")),
        (seen(generate=DONE), Errand(restart="generate"), {"begun": {"generate"}}, ("start", "extract")),
        (seen(generate=DONE), Errand(through="generate"), {}, ("finish", "")),
        (seen(), Errand(first="train"), {}, ("start", "train")),
        (seen(extract=BORROWED, generate=DONE), Errand(), {}, ("halt", "extract")),
        (dict.fromkeys(STAGES, DONE), Errand(), {}, ("finish", "")),
        (seen(generate=DONE, extract=STALE), Errand(stale="rerun"), {"redone": {"extract"}}, ("halt", "extract")),
        (seen(generate=BORROWED_STALE), Errand(stale="rerun"), {}, ("halt", "generate")),
        (seen(generate=BORROWED_STALE), Errand(stale="keep"), {}, ("start", "extract")),
        (seen(generate=BORROWED_STALE), Errand(stale="keep", restart="generate"), {}, ("halt", "generate")),
    ],
)
def test_next_step(states, errand, more, want):
    step = next_step(states, errand, **more)
    assert (step.kind, step.stage) == want


# ---------------------------------------------------------------- the real thing


def test_a_stage_is_not_rerun_twice(host, wait_for):
    run = host.run(changes={"through": "extract"})
    conduct(run, wait_for)
    run.change_plan({"generate.max_samples": 20}, "")
    with pytest.raises(RunError, match=r"generate is stale.*beginning with extract, would stay stale") as refusal:
        start_conductor(run.path, {"from": "extract", "stale": "rerun"})
    assert "`eagledeck start r1 --from generate --rerun-stale`" in refusal.value.remedy
    assert run.stage("extract").outputs() == [1]
    assert conduct(run, wait_for, stale="rerun")["state"] == "done"
    assert run.stage("generate").attempts() == [1, 2]


def test_what_becomes_stale_again_while_it_is_rerun_halts(host, wait_for):
    run = host.run(changes={"through": "extract"}, extract={"steps": 3})
    conduct(run, wait_for)
    plan = run.change_plan({"extract.length": 1024, "train.length": 1024}, "")
    env = {"DOUBLE": json.dumps({"steps": 100, "pause": 0.02})}
    run.change_plan({"extract.env": env}, "")
    start_conductor(run.path, {"stale": "rerun"})
    wait_for(lambda: counting(run.stage("extract")))
    run.change_plan({"extract.length": plan.params("extract").length // 2, "train.length": 512}, "")
    wait_for(lambda: over(run))
    assert conductor_view(run)["message"].startswith("extract was made anew and is stale all the same: extract.length")
    assert run.stage("extract").outputs() == [1, 2]


def test_what_a_restart_left_stale_is_brought_up_to_date_by_a_start():
    states = dict(dict.fromkeys(STAGES, DONE), deploy=STALE)
    step = next_step(states, Errand(restart="train", run="kimi"), begun={"train"})
    assert (step.kind, step.stage) == ("halt", "deploy")
    assert "`eagledeck start kimi --rerun-stale`" in step.remedy


def test_a_borrowed_stale_stage_is_never_started(host, wait_for):
    lender = host.run("lender")
    conduct(lender, wait_for, through="generate")
    run = RunDir.create(host.root, "r2", host.plan({"generate.from_run": "lender/generate", "through": "extract"}))
    lender.change_plan({"generate.max_samples": 20}, "")
    for stale in ("rerun", "refuse"):
        with pytest.raises(RunError, match=r"generate is borrowed from lender/generate and stale") as refusal:
            start_conductor(run.path, {"stale": stale})
        assert "`eagledeck start lender --rerun-stale`" in refusal.value.remedy
        assert "`eagledeck start r2 --keep-stale`" in refusal.value.remedy
    with pytest.raises(RunError, match="doesn't run here") as refusal:
        start_conductor(run.path, {"restart": "generate"})
    assert "`eagledeck restart lender generate`" in refusal.value.remedy
    assert conduct(run, wait_for, stale="keep")["state"] == "done"
    assert run.stage("generate").attempts() == []


def test_all_five_stages(host, wait_for):
    run = host.run()
    view = conduct(run, wait_for)
    assert states(run) == ["DONE"] * 5
    assert (view["state"], view["message"]) == ("done", "finished through deploy")
    for stage in STAGES:
        assert lines(run, stage) == ["1", "2", "3"]
        assert run.stage(stage).attempts() == [1]
    again = conduct(run, wait_for)
    assert again["state"] == "done"
    assert run.stage("train").attempts() == [1]


def test_through_and_from(host, wait_for):
    run = host.run()
    assert conduct(run, wait_for, through="generate")["message"] == "finished through generate"
    assert states(run) == ["DONE"] + ["PENDING"] * 4
    run.change_plan({"through": "vocab"}, "")
    conduct(run, wait_for, first="vocab")
    assert states(run) == ["DONE", "PENDING", "DONE", "PENDING", "PENDING"]
    with pytest.raises(RunError, match="deploy comes after train"):
        start_conductor(run.path, {"from": "deploy", "through": "train"})


def test_halts_on_failure_and_resumes(host, wait_for):
    run = host.run(changes={"through": "extract"}, extract={"fail_at": 2})
    view = conduct(run, wait_for)
    assert states(run) == ["DONE", "FAILED", "PENDING", "PENDING", "PENDING"]
    assert (view["state"], view["message"], view["remedy"]) == (
        "halted",
        "extract failed: the double fails",
        "resume it",
    )
    assert conduct(run, wait_for)["state"] == "done"
    assert lines(run, "extract") == ["1", "2", "3"]
    assert run.stage("extract").attempts() == [1, 2]
    assert run.stage("generate").attempts() == [1]


def test_stop_while_a_stage_runs_then_resume(host, wait_for):
    run = host.run(changes={"through": "extract"}, extract={"steps": 400, "pause": 0.02})
    start_conductor(run.path, {})
    wait_for(lambda: counting(run.stage("extract")))
    assert request_stop(run)
    wait_for(lambda: over(run))
    assert status(run.stage("extract")).state is S.STOPPED
    assert conductor_view(run)["state"] == "stopped"
    counted = len(lines(run, "extract"))
    assert 0 < counted < 400
    run.change_plan({"extract.env": {"DOUBLE": json.dumps({"steps": counted + 3})}}, "")
    assert conduct(run, wait_for)["state"] == "done"
    assert lines(run, "extract") == [str(n) for n in range(1, counted + 4)]
    folder = run.stage("extract")
    took = [
        folder.attempt(number).exit()["ended"] - folder.attempt(number).state()["started"]
        for number in folder.attempts()
    ]
    assert len(took) == 2
    assert stage_view(run, "extract", run.plan())["elapsed_s"] == pytest.approx(sum(took), abs=0.1)


UNREADABLE = {"torn": "{", "newer": json.dumps({"schema": 99})}


@pytest.mark.parametrize("verb", ["stop", "kill"])
@pytest.mark.parametrize("conducted", [True, False])
def test_what_runs_can_be_ended_whatever_its_plan_says(host, wait_for, verb, conducted):
    run = host.run(changes={"through": "extract"}, extract={"steps": 4000, "pause": 0.02})
    word = start_conductor(run.path, {})
    wait_for(lambda: counting(run.stage("extract")))
    for path in (run.path / "plan").iterdir():
        path.write_text(UNREADABLE["newer"])
    if not conducted:
        os.kill(word["pid"], signal.SIGKILL)
        wait_for(lambda: over(run))
    told = Operations(host.root).call(verb, {"run": run.name})
    assert told["stages"] == ["extract"] and told["conductor"] is conducted
    wait_for(lambda: over(run) and not held(run.stage("extract").lock_path))
    assert on_disk(run.stage("extract")).state is (S.STOPPED if verb == "stop" else S.KILLED)
    with pytest.raises(Refused, match="nothing of r1 runs") as caught:
        Operations(host.root).call(verb, {"run": run.name})
    assert "newer Eagledeck" in caught.value.remedy


@pytest.mark.parametrize("verb", ["stop", "kill"])
def test_an_errand_that_is_ended_between_two_stages_starts_no_other(host, wait_for, verb):
    run = host.run(changes={"through": "train"}, all={"steps": 3})
    taken = run.stage("extract").make()
    with locked(taken, "the test"):  # the conductor comes to extract and can't begin it
        start_conductor(run.path, {})
        wait_for(lambda: status(run.stage("generate")).state is S.DONE)
        Operations(host.root).call(verb, {"run": run.name})
    wait_for(lambda: over(run))
    assert states(run)[0] == "DONE"
    assert run.stage("vocab").attempts() == run.stage("train").attempts() == []


def test_a_request_that_comes_as_the_conductor_begins_is_not_lost(tmp_path):
    (tmp_path / "stop").touch()
    (tmp_path / "kill").touch()
    os.utime(tmp_path / "stop", (1, 1))
    os.utime(tmp_path / "kill", (1, 1))
    mark_start(tmp_path)
    (tmp_path / "stop").touch()
    drop_old_requests(tmp_path)
    assert [(tmp_path / name).exists() for name in ("stop", "kill")] == [True, False]


def test_a_recorder_that_was_killed_is_started_again(host, wait_for):
    run = host.run(changes={"through": "generate"}, generate={"steps": 4000, "pause": 0.02})
    start_conductor(run.path, {})
    lock = host.root / "telemetry" / "lock"
    wait_for(lambda: held(lock))
    pid = json.loads(lock.with_name("lock.holder").read_text())["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: held(lock) and json.loads(lock.with_name("lock.holder").read_text())["pid"] != pid)
    request_stop(run)
    wait_for(lambda: over(run))


def test_conductor_killed_stage_goes_on_new_conductor_takes_up(host, wait_for):
    run = host.run(changes={"through": "generate"}, generate={"steps": 60, "pause": 0.03})
    word = start_conductor(run.path, {})
    stage = run.stage("generate")
    wait_for(lambda: counting(stage))
    os.kill(word["pid"], signal.SIGKILL)
    wait_for(lambda: over(run))
    assert conductor_view(run)["state"] == "lost"
    assert status(stage).state is S.RUNNING
    assert conduct(run, wait_for)["state"] == "done"
    assert stage.attempts() == [1]
    assert lines(run, "generate") == [str(n) for n in range(1, 61)]


def test_supervisor_killed_is_adopted(host, wait_for):
    run = host.run(changes={"through": "generate"}, generate={"steps": 80, "pause": 0.03})
    start_conductor(run.path, {})
    stage = run.stage("generate")
    wait_for(lambda: counting(stage))
    first = stage.latest().state()["supervisor"]["pid"]
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: stage.latest().state()["supervisor"]["pid"] != first)
    wait_for(lambda: over(run), 60)
    assert status(stage).state is S.DONE
    assert stage.attempts() == [1]
    assert lines(run, "generate") == [str(n) for n in range(1, 81)]


def test_one_conductor_a_run(host, wait_for):
    run = host.run(generate={"steps": 400, "pause": 0.05})
    start_conductor(run.path, {})
    with pytest.raises(RunError, match="being conducted already"):
        start_conductor(run.path, {})


def test_stale_is_refused_then_rerun_or_kept(host, wait_for):
    run = host.run(changes={"through": "vocab"})
    conduct(run, wait_for)
    run.change_plan({"generate.temperature": 0.5}, "")
    with pytest.raises(
        RunError, match=r"generate is stale: generate.temperature is 0.5 now.*, and so are extract and vocab"
    ) as refusal:
        start_conductor(run.path, {})
    assert "rerun" in refusal.value.remedy and "keep" in refusal.value.remedy
    assert conduct(run, wait_for, stale="keep")["state"] == "done"
    assert run.stage("vocab").attempts() == [1]
    assert conduct(run, wait_for)["state"] == "done", "what was said once is not asked again"
    assert [seen.kept for seen in run_status(run).values()] == [True, False, False, False, False]
    assert conduct(run, wait_for, stale="rerun")["state"] == "done"
    assert [run.stage(stage).outputs() for stage in STAGES] == [[1, 2], [1, 2], [1, 2], [], []]


def test_what_is_kept_stays_kept_through_a_stop_and_a_resume(host, wait_for):
    run = host.run(changes={"through": "vocab"}, vocab={"steps": 200, "pause": 0.03})
    conduct(run, wait_for, through="extract")
    run.change_plan({"generate.temperature": 0.5}, "")
    start_conductor(run.path, {"stale": "keep"})
    wait_for(lambda: counting(run.stage("vocab")))
    assert conductor_view(run)["settles"] == ["generate", "extract", "vocab"]
    Operations(host.root).call("stop", {"run": run.name})
    wait_for(lambda: over(run))
    assert states(run)[:3] == ["DONE", "DONE", "STOPPED"]
    run.change_plan({"vocab.env": {"DOUBLE": json.dumps({"steps": 200})}}, "")
    Operations(host.root).call("resume", {"run": run.name, "stage": "vocab"})
    wait_for(lambda: over(run), 60)
    assert states(run)[:3] == ["DONE"] * 3
    assert run.stage("vocab").outputs() == [1]
    assert [name for name, seen in run_status(run).items() if seen.undecided] == []


def test_a_stage_that_was_stopped_and_made_stale_begins_anew(host, wait_for):
    run = host.run(changes={"through": "extract"}, extract={"steps": 200, "pause": 0.03})
    start_conductor(run.path, {})
    wait_for(lambda: counting(run.stage("extract")))
    Operations(host.root).call("stop", {"run": run.name})
    wait_for(lambda: over(run))
    run.change_plan({"extract.length": 4096, "extract.env": {"DOUBLE": "{}"}}, "")
    for options in ({}, {"stale": "keep"}):
        with pytest.raises(RunError, match=r"extract isn't finished and can't go on: extract.length is 4096 now"):
            start_conductor(run.path, options)
    assert conduct(run, wait_for, stale="rerun")["state"] == "done"
    assert run.stage("extract").outputs() == [1, 2]
    assert states(run)[:2] == ["DONE", "DONE"]


def test_a_finished_run_is_not_resumed_and_runs_in_trouble_show_in_the_list(host, wait_for):
    run = host.run(changes={"through": "generate"}, generate={"steps": 30, "fail_at": 2})
    operations = Operations(host.root)
    conduct(run, wait_for)
    (row,) = operations.call("runs", {})
    assert (row["state"], row["stale"]) == ("FAILED", []) and "the double fails" in row["message"]
    run.change_plan({"generate.env": {"DOUBLE": "{}"}, "through": "deploy"}, "go on")
    assert conduct(run, wait_for)["state"] == "done"
    with pytest.raises(Refused, match=r"every stage of .* is DONE"):
        operations.call("resume", {"run": run.name})
    run.change_plan({"train.lr": "0.5"}, "another rate")
    (row,) = operations.call("runs", {})
    assert row["stale"] == ["train", "deploy"]
    told = operations.call("events", {"run": run.name})
    assert [event["message"] for event in told["events"] if event["kind"] == "plan"][-2:] == [
        "plan 2: go on",
        "plan 3: another rate",
    ]
    again = operations.call("events", {"run": run.name, "since": told["cursor"]})
    assert again["events"] == []


def test_a_halt_for_what_was_stale_is_known_as_one(host, wait_for):
    run = host.run(changes={"through": "vocab"}, extract={"steps": 100, "pause": 0.02})
    start_conductor(run.path, {})
    wait_for(lambda: counting(run.stage("extract")))
    run.change_plan({"generate.temperature": 0.5}, "")
    wait_for(lambda: over(run), 60)
    view = conductor_view(run)
    assert (view["state"], view["stage"], view["cause"]) == ("halted", "generate", "stale")


def test_a_resumed_stage_is_followed_by_what_was_made_from_less_of_it(host, wait_for):
    run = host.run(changes={"through": "vocab"}, generate={"steps": 3})
    conduct(run, wait_for)
    longer = {"generate.max_samples": 20_000, "generate.env": {"DOUBLE": json.dumps({"steps": 200, "pause": 0.03})}}
    run.change_plan(longer, "")
    start_conductor(run.path, {"stale": "rerun"})
    wait_for(lambda: counting(run.stage("generate")))
    Operations(host.root).call("stop", {"run": run.name})
    wait_for(lambda: over(run))
    assert states(run)[:3] == ["STOPPED", "DONE", "DONE"]
    run.change_plan({"generate.env": {"DOUBLE": json.dumps({"steps": 200})}}, "")
    Operations(host.root).call("resume", {"run": run.name})
    wait_for(lambda: over(run), 60)
    assert conductor_view(run)["state"] == "done"
    assert [(seen.state.value, seen.stale) for seen in list(run_status(run).values())[:3]] == [("DONE", False)] * 3


def test_a_run_that_cannot_fit_is_refused_with_the_arithmetic(host):
    run = host.run(changes={"volume.reserve_bytes": "1GB", "generate.max_samples": 10_000_000})
    with pytest.raises(RunError, match="can't fit") as refusal:
        start_conductor(run.path, {})
    assert "10,000,000 samples" in refusal.value.message
    assert "generate.max_samples" in refusal.value.remedy
    assert not (run.path / "generate").exists()


@pytest.fixture
def full(host, wait_for):
    """A run whose generate and extract are done, and whose volume has no room for another extract."""
    run = host.run(changes={"through": "extract"})
    conduct(run, wait_for)
    run.change_plan({"volume.capacity_bytes": 2_000_000, "volume.reserve_bytes": 1_999_999}, "")
    return run


def test_a_finished_extract_that_is_made_again_has_to_fit(full, wait_for):
    with pytest.raises(RunError, match="can't fit"):
        start_conductor(full.path, {"restart": "extract"})
    assert conduct(full, wait_for)["state"] == "done"
    full.change_plan({"extract.length": 4096}, "")
    with pytest.raises(RunError, match="can't fit"):
        start_conductor(full.path, {"stale": "rerun"})
    assert conduct(full, wait_for, stale="keep")["state"] == "done"
    assert full.stage("extract").outputs() == [1]


def test_a_restart_that_makes_extract_stale_is_refused_before_it_begins(full):
    with pytest.raises(RunError, match="can't fit"):
        start_conductor(full.path, {"restart": "generate", "stale": "rerun"})
    assert full.stage("generate").outputs() == [1]


def test_counts_stay_known_while_a_resumed_stage_loads(host, wait_for):
    run = host.run(changes={"through": "generate"}, generate={"fail_at": 3})
    conduct(run, wait_for)
    stage = run.stage("generate")
    with locked(stage, "r1/generate"):
        attempt = stage.new_attempt()
        attempt.write_state(phase="running")
        attempt.write_progress({"done": 0, "total": None, "unit": "samples", "counts": {}, "phase": "loading"})
        attempt.write_exit(reason="failed", code=1, message="the server is away")
    section = RunView(run).read()
    assert section["stages"]["generate"]["attempt"] == 2
    assert section["stages"]["generate"]["counts"] == {"samples": 2, "tokens": 20}
    assert (section["counts"]["samples"], section["counts"]["tokens"]) == (2, 20)


def test_a_missing_stage_python_halts_with_what_to_set(host, wait_for):
    run = host.run(changes={"generate.python": "/no/such/python"})
    view = conduct(run, wait_for)
    assert view["state"] == "halted"
    assert "can't start /no/such/python" in view["message"]
    assert status(run.stage("generate")).state is S.FAILED


def test_container_restart_is_interrupted_and_resumed(host, wait_for):
    run = host.run(changes={"through": "generate"}, generate={"steps": 400, "pause": 0.05})
    word = start_conductor(run.path, {})
    stage = run.stage("generate")
    wait_for(lambda: counting(stage))
    state = stage.latest().state()
    os.kill(word["pid"], signal.SIGKILL)
    for name in ("supervisor", "main"):
        os.kill(state[name]["pid"], signal.SIGKILL)
    wait_for(lambda: process_start(state["main"]["pid"]) is None)
    stage.latest().write_state(incarnation={**state["incarnation"], "pid1_start": -1})
    assert status(stage).state is S.INTERRUPTED
    counted = len(lines(run, "generate"))
    run.change_plan({"generate.env": {"DOUBLE": json.dumps({"steps": counted + 2})}}, "")
    assert conduct(run, wait_for)["state"] == "done"
    assert lines(run, "generate") == [str(n) for n in range(1, counted + 3)]


def test_borrowed_extract_is_not_run(host, wait_for):
    lender = host.run("lender")
    conduct(lender, wait_for, through="extract")
    plan = host.plan({"extract.from_run": "lender/extract", "through": "train"})
    run = RunDir.create(host.root, "r2", plan)
    assert conduct(run, wait_for)["state"] == "done"
    assert run.stage("extract").attempts() == []
    assert states(run) == ["DONE"] * 4 + ["PENDING"]
