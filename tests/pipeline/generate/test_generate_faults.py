"""Generate against servers that fail: what is asked again, what is rejected, when it gives up and what it says."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest

from pipeline.config import Plan

CUTS = ["cut", "early-end", "error-frame", "garbage", "no-usage", "reset", "html", "500", "503", "429", "408", "abort"]
ODD = [
    *("message-text", "delta-list", "delta-text", "choices-null", "choice-null", "usage-infinity", "usage-list"),
    *("content-parts", "finish-object", "deep", "text"),
]


@pytest.mark.parametrize("fault", CUTS)
def test_what_may_succeed_is_asked_again_and_stored_once(work: Any, fault: str) -> None:
    work.engine.faults.extend([fault, "", fault])
    work.plan(5, concurrency=2)
    assert work.go() == 0
    work.check(5)
    asked = {text: count for text, count in work.engine.asked.items() if text != "Hello"}
    assert sum(asked.values()) == 7
    assert not work.rows("rejects.jsonl")


def test_stream_without_done_is_whole_all_the_same(work: Any) -> None:
    work.engine.always = "no-done"
    work.plan(3)
    assert work.go() == 0
    work.check(3)
    assert sum(work.engine.asked.values()) == 4


def test_silent_server_is_asked_again_although_it_sends_comments(work: Any) -> None:
    work.engine.faults.append("stall")
    work.plan(2, timeout_s=2.0)
    assert work.go() == 0
    work.check(2)
    assert sum(work.engine.asked.values()) == 4


def test_slow_answer_is_waited_for(work: Any) -> None:
    work.engine.faults.append("slow")
    work.plan(1, timeout_s=30.0)
    assert work.go() == 0
    work.check(1)
    assert work.engine.asked["q0"] == 1


def test_prompt_that_fails_every_time_gets_a_second_chance_at_the_end(work: Any) -> None:
    work.engine.faults.extend(["500"] * 3)
    work.plan(3, retries=2, concurrency=1)
    assert work.go() == 0
    work.check(3)
    assert [row["id"] for row in work.rows()] == ["p1", "p2", "p0"]
    assert any("1 prompts failed and are asked once more" in event["message"] for event in work.events())
    assert work.run.stage("generate").current().report()["counts"]["rejected"] == 0


def test_a_few_prompts_that_fail_again_do_not_hold_the_run_up(work: Any) -> None:
    work.engine.broken = {"q0", "q3"}
    work.plan(6, retries=1, max_samples=0, concurrency=2)
    assert work.go() == 0
    assert {row["id"] for row in work.rows()} == {"p1", "p2", "p4", "p5"}
    assert work.engine.asked["q0"] == work.engine.asked["q3"] == 4
    last = work.events()[-1]
    assert "2 of the 6 prompts gave no sample: 2 failed" in last["message"]
    assert (last["kind"], last["prompts"], last["failed"]) == ("warning", 6, 2)
    reject = work.rows("rejects.jsonl")[0]
    assert reject["cause"] == "failed" and "injected 500" in reject["detail"]
    work.engine.broken = set()
    work.run.change_plan({"generate.max_samples": 6}, "asked again")
    assert work.go() == 0
    work.check(6)
    assert work.run.stage("generate").current().report()["counts"]["rejected"] == 0


def test_many_prompts_that_fail_again_end_it_resumable(work: Any) -> None:
    work.engine.broken = {f"q{number}" for number in range(0, 40, 8)}
    work.plan(40, retries=0, concurrency=4)
    assert work.go() == 1
    said = work.outcome()
    assert "5 of the 40 prompts failed although they were asked twice (5 for failed: 500 injected" in said["message"]
    assert "server's log" in said["remedy"] and "generate.max_samples to 35" in said["remedy"] and said["resumable"]
    assert len(work.rows()) == 35
    # either way out of the remedy works
    work.engine.broken = {"q0"}
    assert work.go() == 0
    assert len(work.rows()) == 39


def test_doing_with_the_samples_there_are(work: Any) -> None:
    work.engine.broken = {f"q{number}" for number in range(0, 40, 8)}
    work.plan(40, retries=0, concurrency=4)
    assert work.go() == 1
    work.run.change_plan({"generate.max_samples": 35}, "enough")
    work.engine.stop()
    assert work.go() == 0
    assert len(work.rows()) == 35


def test_refused_prompt_costs_itself_only_and_is_asked_again_by_a_resume(work: Any) -> None:
    work.engine.faults.append("422")
    work.plan(4, concurrency=1)
    assert work.go() == 0
    assert [row["id"] for row in work.rows()] == ["p1", "p2", "p3"]
    assert [row["cause"] for row in work.rows("rejects.jsonl")] == ["refused"]
    assert work.engine.asked["q0"] == 1
    work.run.change_plan({"generate.max_samples": 9}, "the server is mended")
    assert work.go() == 0
    work.check(4)
    assert work.engine.asked["q0"] == 2 and work.engine.asked["q1"] == 1


def test_malformed_replies_are_broken_answers(work: Any) -> None:
    work.engine.faults.extend(ODD)
    work.plan(6, concurrency=6, retries=20)
    assert work.go() == 0
    work.check(6)
    assert not work.engine.faults and not work.rows("rejects.jsonl")


@pytest.mark.parametrize("fault", ["message-text", "usage-infinity", "abort"])
def test_server_that_gives_no_whole_answer_is_told_in_a_sentence(work: Any, fault: str) -> None:
    work.engine.always = fault
    work.plan(2, retries=1)
    assert work.go() == 1
    assert "does not give a whole answer" in work.outcome()["message"]


def test_absurd_reject_rate_stops_early_and_names_the_cause(work: Any) -> None:
    work.engine.extra_ids = 1
    work.plan(200, concurrency=4)
    assert work.go() == 1
    assert "token_count" in work.outcome()["message"]
    assert len(work.rows("rejects.jsonl")) == 20
    assert sum(work.engine.asked.values()) < 40


@pytest.mark.parametrize("setting", ["yes", "plan", "template", "unknown"])
def test_reasoning_that_is_missing_stops_within_twenty_samples(work: Any, tmp_path: Any, setting: str) -> None:
    work.engine.parser = False  # the content is `because …</think>answer …`
    verifier: dict[str, Any] = {"reasoning": True} if setting == "plan" else {}
    if setting == "template":
        (tmp_path / "v").mkdir()
        (tmp_path / "v/chat_template.jinja").write_text(
            "{{ messages[0].content }}{% if add_generation_prompt %}<think>\n{% endif %}"
        )
        verifier = {"path": str(tmp_path / "v")}
    params = {"expect_reasoning": "yes"} if setting == "yes" else {}
    work.plan(60, verifier=verifier, concurrency=8, **params)
    assert work.go() == 1
    said = work.outcome()
    assert "reasoning parser" in said["message"] and "</think>" in said["message"]
    assert "--reasoning-parser" in said["remedy"] and "kimi" in said["remedy"]
    assert said["resumable"]
    assert len(work.rows("rejects.jsonl")) <= 20 and not work.rows()
    work.engine.parser = True
    work.run.change_plan({"generate.max_samples": 60}, "go on")
    assert work.go() == 0
    work.check(60)


@pytest.mark.parametrize("params", [{"expect_reasoning": "no"}, {}])
def test_verifier_that_does_not_reason_is_left_alone(work: Any, params: dict[str, Any]) -> None:
    work.engine.reasons = False
    work.plan(30, **params)
    assert work.go() == 0
    assert {row["reasoning"] for row in work.rows()} == {None}


def test_answers_that_stay_without_reasoning_are_asked_twice(work: Any) -> None:
    work.engine.unreasoned = {"q3", "q20", "q33"}
    work.plan(40, concurrency=1, expect_reasoning="yes")
    assert work.go() == 0
    counts = work.run.stage("generate").current().report()["counts"]
    assert (counts["samples"], counts["rejected/no_reasoning"]) == (37, 3)
    assert work.engine.asked["q3"] == 2


def test_wrong_key_and_right_key(work: Any, tmp_path: Any) -> None:
    work.engine.key = "secret"
    run = work.plan(2)
    assert work.go() == 1
    said = work.outcome()
    assert "refuses the key" in said["message"] and "api_key_file" in said["remedy"]
    key = tmp_path / "key"
    key.write_text("secret\n")
    key.chmod(0o644)
    run.change_plan({"generate.api_key_file": str(key)}, "key")
    assert work.go() == 1
    assert "read by others" in work.outcome()["message"]
    key.chmod(0o600)
    assert work.go() == 0
    work.check(2)
    assert not any("secret" in path.read_text() for path in run.path.rglob("*.json*") if path.is_file())


@pytest.mark.parametrize(
    ("models", "params", "words"),
    [
        (["a", "b"], {}, "lists a, b"),
        (["a"], {"model": "b"}, "does not serve b"),
        ([], {}, "lists no model"),
    ],
)
def test_models_that_do_not_fit(work: Any, models: list[str], params: dict[str, Any], words: str) -> None:
    work.engine.models = models
    work.plan(2, **params)
    assert work.go() == 1
    assert words in work.outcome()["message"] and "generate.model" in work.outcome()["remedy"]


def test_model_named_like_the_verifier_is_taken_of_several(work: Any) -> None:
    work.engine.models = ["other", "mine"]
    work.plan(2, verifier={"name": "mine"})
    assert work.go() == 0
    assert {row["model"] for row in work.rows()} == {"mine"}


@pytest.mark.parametrize(
    ("always", "words"), [("html", "/v1/models answers with"), ("nonsense", "without choices"), ("500", "injected 500")]
)
def test_server_that_only_answers_nonsense(work: Any, always: str, words: str) -> None:
    work.engine.always = always
    work.plan(2, retries=1)
    assert work.go() == 1
    assert words in work.outcome()["message"] and "generate.endpoint" in work.outcome()["remedy"]


@pytest.mark.parametrize("always", ["garbage", "no-usage", "early-end"])
def test_server_whose_streams_are_no_good_is_asked_without_them(work: Any, always: str) -> None:
    work.engine.always = always
    work.plan(2, retries=1)
    assert work.go() == 0
    work.check(2)
    assert not work.engine.bodies[-1]["stream"]


def test_server_that_never_came_up(work: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    work.plan(2, endpoint=f"http://127.0.0.1:{port}", timeout_s=1.0)
    assert work.go() == 1
    said = work.outcome()
    assert (
        "never answered within 1 s" in said["message"] and "generate.endpoint" in said["remedy"] and said["resumable"]
    )
    assert "waiting for it" in " ".join(event["message"] for event in work.events())


def test_server_that_comes_late_is_waited_for(work: Any) -> None:
    work.engine.stop()
    work.plan(3)
    threading.Timer(0.6, work.engine.start).start()
    assert work.go() == 0
    work.check(3)
    said = [event["message"] for event in work.events()]
    assert any("waiting for it" in one for one in said) and any("answers after" in one for one in said)


def test_server_that_restarts_in_the_middle_loses_and_doubles_nothing(work: Any, until: Any) -> None:
    work.engine.delay_s = 0.05
    work.plan(60, concurrency=4, retries=0)
    thread = threading.Thread(target=lambda: codes.append(work.go()))
    codes: list[int] = []
    thread.start()
    for number in (8, 30):
        until(lambda number=number: len(work.engine.asked) > number)
        work.engine.always = "reset"
        work.engine.stop()
        time.sleep(0.3)
        work.engine.always = ""
        work.engine.start()
    thread.join(30)
    assert codes == [0]
    work.check(60)
    assert sum("waiting for it" in event["message"] for event in work.events()) == 2


def test_server_that_hangs_is_waited_for(work: Any, until: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.generate.endpoint.SMALL_CALL_S", 0.5)
    work.engine.delay_s = 0.05
    work.plan(40, concurrency=4, timeout_s=1.0, retries=0)
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(work.go()))
    thread.start()
    until(lambda: len(work.engine.asked) > 8)
    work.engine.always = "hung"
    until(lambda: any("waiting for it" in event["message"] for event in work.events()))
    work.engine.always = ""
    work.engine.gate.set()
    thread.join(50)
    assert codes == [0]
    work.check(40)


def test_server_that_goes_away_for_good(work: Any, until: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.generate.patience.RETURN_S", 1.0)
    work.engine.delay_s = 0.05
    work.plan(60, concurrency=4, timeout_s=1.0)
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(work.go()))
    thread.start()
    until(lambda: len(work.engine.asked) > 8)
    work.engine.always = "reset"
    work.engine.stop()
    thread.join(30)
    assert codes == [1]
    said = work.outcome()
    assert "has not come back within 1 s" in said["message"] and said["resumable"]
    assert 0 < len(work.rows()) < 60
    work.engine.always = ""
    work.engine.start()
    assert work.go() == 0
    work.check(60)


def test_engine_that_died_behind_a_living_port_is_waited_for(work: Any, until: Any) -> None:
    work.plan(60, concurrency=2, retries=0)
    work.engine.delay_s = 0.03
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(work.go()))
    thread.start()
    until(lambda: len(work.engine.asked) > 4)
    work.engine.always = "dead"
    until(lambda: any("waiting" in event["message"] for event in work.events()))
    work.engine.always = ""
    thread.join(30)
    assert codes == [0]
    work.check(60)


def test_gateway_that_answers_503_while_its_server_reloads_is_waited_for(
    work: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.generate.patience.RETURN_S", 60.0)
    work.plan(40, concurrency=3, retries=0, timeout_s=1.0)
    work.engine.delay_s = 0.03
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(work.go()))
    thread.start()
    until(lambda: len(work.engine.asked) > 6)
    work.engine.always = "gateway"
    progress = work.run.stage("generate").latest().path / "progress.json"
    until(lambda: '"waiting"' in progress.read_text())
    time.sleep(1.5)  # longer than timeout_s: a server that is only full would have been given up by now
    work.engine.always = ""
    thread.join(50)
    assert codes == [0]
    work.check(40)
    assert not work.rows("rejects.jsonl")
    assert sum("waiting for it" in event["message"] for event in work.events()) == 1


def test_gateway_that_is_up_before_its_server_is_waited_for(work: Any) -> None:
    work.engine.always = "gateway"
    work.plan(3)
    threading.Timer(0.6, lambda: setattr(work.engine, "always", "")).start()
    assert work.go() == 0
    work.check(3)


def test_full_server_is_busy_and_not_away(work: Any) -> None:
    work.engine.faults.extend(["503"] * 4)
    work.plan(3, concurrency=1, retries=0)
    assert work.go() == 0
    work.check(3)
    assert not any("waiting" in event["message"] for event in work.events())


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"endpoint": ""}, "Neither generate.endpoint nor"),
        ({"prompts": ""}, "generate.prompts is empty"),
        ({"prompts": "nowhere.jsonl"}, "no prompt file"),
        ({"api_key_file": "/nowhere/key"}, "can't be read"),
    ],
)
def test_plan_that_cannot_work(work: Any, params: dict[str, Any], words: str) -> None:
    work.plan(2, **params)
    assert work.go() == 1
    assert words in work.outcome()["message"] and work.outcome()["remedy"]


def test_address_of_a_service_comes_from_who_started_it(work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = work.plan(2, endpoint="")
    monkeypatch.setenv("EAGLEDECK_SERVICE_URL", work.engine.url.removesuffix("/v1"))
    assert work.go() == 0
    work.check(2)
    monkeypatch.setenv("EAGLEDECK_SERVICE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("EAGLEDECK_SERVICE_URL_MY_VLLM", work.engine.url)
    values = run.plan().to_json()
    values["services"] = {"my-vllm": {"command": ["x"], "port": 9}}
    values["stages"]["generate"]["params"]["service"] = "my-vllm"
    values["stages"]["generate"]["services"] = ["my-vllm"]
    run.write_plan(Plan.from_json(values), "two services")
    assert work.go("--restart") == 0
    assert work.engine.asked["q0"] == 2
