"""Counters, client, agreement, engine processes: the parts of deploy, against a small engine that can be told to
fail.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pipeline.config import ConfigError, Plan, ServicePlan
from pipeline.deploy.acceptance import acceptance_of
from pipeline.deploy.agreement import compare, first_difference
from pipeline.deploy.client import Answer, EngineClient, Measurement, Question
from pipeline.deploy.counters import GAUGE, VERIFY_CALLS, Metrics, SpecCounters, parse_metrics
from pipeline.deploy.engine import Engine, EngineCommand, free_port, last_line, service_command
from pipeline.deploy.questions import from_file, from_samples
from pipeline.deploy.service import check_service, takes_k
from pipeline.failure import StageError

METRICS = """# HELP vllm:spec_decode_num_drafts_total Number of drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 100.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 20.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7960410e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 360.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 150.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 50.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 90.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="2"} 10.0
vllm:spec_decode_num_accepted_tokens_per_pos_created{engine="0",model_name="m",position="0"} 1.7960410e+09
vllm:num_requests_running{engine="0"} 0.0
"""


def test_counters_match_exact_names_and_sum_over_engines() -> None:
    found = parse_metrics(METRICS).counters
    assert found == SpecCounters(120.0, 360.0, 150.0, (90.0, 50.0, 10.0))
    assert found.acceptance_length == 2.25
    assert found.rate_by_position == [0.75, 50 / 120, 10 / 120]
    assert parse_metrics("vllm:num_requests_running 0\n") == Metrics(None, None)
    before = SpecCounters(20.0, 60.0, 30.0, (20.0, 10.0))
    assert found.since(before) == SpecCounters(100.0, 300.0, 120.0, (70.0, 40.0, 10.0))
    assert before.since(found) is None  # the engine was started anew
    assert SpecCounters().acceptance_length is None


SGLANG = """# HELP sglang:spec_verify_calls_total Number of speculative decoding verification calls.
# TYPE sglang:spec_verify_calls_total counter
sglang:spec_verify_calls_total{engine_type="unified",model_name="m",rank="0"} 100.0
sglang:spec_verify_calls_total{engine_type="unified",model_name="m",rank="1"} 20.0
sglang:generation_tokens_total{engine_type="unified",is_streaming="false",model_name="m"} 310.0
sglang:num_requests_total{engine_type="unified",is_streaming="false",model_name="m"} 10.0
sglang:spec_accept_length{dp_rank="0",model_name="m"} 2.0
sglang:spec_accept_length{dp_rank="1",model_name="m"} 4.0
sglang:spec_accept_length{dp_rank="2",model_name="m"} 0.0
sglang:spec_accept_rate{dp_rank="0",model_name="m"} 0.33
"""


def test_sglangs_verifications_are_counted_against_the_tokens_after_each_answers_first() -> None:
    found = parse_metrics(SGLANG)
    assert found.counters == SpecCounters(120.0, 0.0, 180.0, (), VERIFY_CALLS)
    assert found.counters.acceptance_length == (310 - 10) / 120
    assert found.gauge == 3.0  # of the ranks that drafted
    older = "\n".join(line for line in SGLANG.splitlines() if "verify_calls" not in line)
    assert parse_metrics(older) == Metrics(None, 3.0)
    assert parse_metrics(f"{GAUGE} 0.0\n") == Metrics(None, 0.0)  # exposed, and nothing drafted yet


def measured(counters: SpecCounters | None, gauge: float | None = None) -> Measurement:
    return Measurement((), 1.0, counters, gauge)


def test_acceptance_is_from_the_best_source_there_is() -> None:
    vllm = acceptance_of(measured(SpecCounters(100.0, 500.0, 150.0, (90.0, 60.0))))
    assert (vllm.length, vllm.rates, vllm.k) == (2.5, [0.9, 0.6], 5)
    sglang = acceptance_of(measured(SpecCounters(100.0, accepted=150.0, name=VERIFY_CALLS)))
    assert (sglang.length, sglang.rates, sglang.k) == (2.5, [], None) and VERIFY_CALLS in sglang.source
    gauge = acceptance_of(measured(None, 2.25))
    assert (gauge.length, gauge.verifications) == (2.25, None) and GAUGE in gauge.source
    nothing = acceptance_of(measured(None))
    assert nothing.length is None and "--enable-metrics" in nothing.source
    with pytest.raises(StageError, match="drafts_total did not move"):
        acceptance_of(measured(SpecCounters(0.0)))


class FakeEngine(BaseHTTPRequestHandler):
    """Answers in vLLM's or SGLang's shape; counts like an engine with a drafter."""

    dialect: ClassVar[str] = "vllm"
    failing: ClassVar[int] = 0
    drafts: ClassVar[int] = 0
    delay: ClassVar[float] = 0.0
    seen: ClassVar[list[dict[str, Any]]] = []
    page: ClassVar[Callable[[], tuple[str, int]] | None] = None

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self.reply({"data": [{"id": "m"}]})
        elif self.path == "/metrics" and FakeEngine.page is not None:
            self.reply(*FakeEngine.page())
        elif self.path == "/metrics":
            text = f'vllm:spec_decode_num_drafts_total{{engine="0"}} {FakeEngine.drafts}\n'
            self.reply(text + f'vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {2 * FakeEngine.drafts}\n')
        else:
            self.reply({"ok": True})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        FakeEngine.seen.append(body)
        time.sleep(FakeEngine.delay)
        if FakeEngine.failing:
            self.reply({"error": {"message": "out of\nluck", "code": 503}}, 503)
            return
        FakeEngine.drafts += 3
        number = int(body["messages"][0]["content"])
        choice: dict[str, Any] = {"finish_reason": "stop", "message": {"content": "x"}}
        answer: dict[str, Any] = {"choices": [choice]}
        if FakeEngine.dialect == "vllm":
            answer["prompt_token_ids"], choice["token_ids"] = [7, number], [number, 1]
        elif FakeEngine.dialect == "sglang":
            choice["prompt_token_ids"], choice["response_token_ids"] = [7, number], [number, 1]
        self.reply(answer)

    def reply(self, body: Any, status: int = 200) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineClient]:
    for name, value in (
        ("dialect", "vllm"),
        ("failing", 0),
        ("drafts", 10),
        ("delay", 0.0),
        ("seen", []),
        ("page", None),
    ):
        monkeypatch.setattr(FakeEngine, name, value)
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeEngine)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield EngineClient(f"http://127.0.0.1:{server.server_address[1]}/v1")
    server.shutdown()
    server.server_close()


def questions(count: int) -> list[Question]:
    return [Question(f"q{number}", ({"role": "user", "content": str(number)},)) for number in range(count)]


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_answers_come_in_order_with_the_counters_difference(
    dialect: str, engine: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeEngine, "dialect", dialect)
    told: list[int] = []
    found = engine.measure(questions(9), 50, 4, told.append, lambda: False)
    assert found is not None
    assert [answer.output_ids for answer in found.answers] == [(number, 1) for number in range(9)]
    assert [answer.prompt_ids for answer in found.answers] == [(7, number) for number in range(9)]
    assert found.counters == SpecCounters(27.0, 0.0, 54.0, ())
    assert told[-1] == 9
    body = FakeEngine.seen[0]
    assert (body["model"], body["temperature"], body["max_tokens"], body["return_token_ids"]) == ("m", 0.0, 50, True)
    assert Measurement.from_json(json.loads(json.dumps(found.to_json()))) == found


TOOL = {"type": "function", "function": {"name": "look"}}


def test_tools_of_prompts_and_samples_are_sent(tmp_path: Path, engine: EngineClient) -> None:
    rows = [{"id": "a", "prompt": "1", "tools": [TOOL]}, {"id": "b", "prompt": "2"}]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = from_file(tmp_path / "prompts.jsonl", 9)
    assert [one.tools for one in asked] == [(TOOL,), ()]
    stored = [{"id": f"s{n}", "messages": [{"role": "user", "content": "1"}], "tools": [TOOL]} for n in range(20)]
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in stored))
    assert all(one.tools == (TOOL,) for one in from_samples(tmp_path / "samples.jsonl", 0.5, 5))
    engine.measure(asked, 50, 1, lambda done: None, lambda: False)
    assert [body.get("tools") for body in FakeEngine.seen] == [[TOOL], None]


def test_an_engine_that_fails_or_leaves_ids_out_is_said_so(
    engine: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeEngine, "failing", 1)
    with pytest.raises(StageError, match="answered 503: out of luck"):
        engine.measure(questions(2), 5, 2, lambda done: None, lambda: False)
    monkeypatch.setattr(FakeEngine, "failing", 0)
    monkeypatch.setattr(FakeEngine, "dialect", "neither")
    with pytest.raises(StageError, match="left out the token ids"):
        engine.measure(questions(1), 5, 2, lambda done: None, lambda: False)
    with pytest.raises(StageError, match="can't be reached"):
        EngineClient(f"http://127.0.0.1:{free_port()}").model()


def test_an_engine_without_a_metrics_page_is_measured_all_the_same(
    engine: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeEngine, "page", staticmethod(lambda: ("Not Found", 404)))
    found = engine.measure(questions(4), 5, 2, lambda done: None, lambda: False)
    assert found is not None and len(found.answers) == 4
    assert found.counters is None and found.gauge is None
    assert Measurement.from_json({"answers": [], "seconds": 1.0, "counters": None}).gauge is None  # an older file


def test_a_counter_that_appears_while_it_answers_began_at_zero(
    engine: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def page() -> tuple[str, int]:
        verified = FakeEngine.drafts - 10
        shown = {"generation_tokens": 3 * verified + len(FakeEngine.seen), "num_requests": len(FakeEngine.seen)}
        if verified:
            shown["spec_verify_calls"] = verified
        return "".join(f"sglang:{name}_total {value}.0\n" for name, value in shown.items()), 200

    monkeypatch.setattr(FakeEngine, "page", staticmethod(page))
    found = engine.measure(questions(4), 5, 2, lambda done: None, lambda: False)
    assert found is not None and found.counters == SpecCounters(12.0, 0.0, 24.0, (), VERIFY_CALLS)
    assert found.gauge is None


def test_a_gauge_is_read_while_it_answers_where_there_are_no_counters(
    engine: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = iter([0.0, 0.0, *range(2, 1000)])
    monkeypatch.setattr(FakeEngine, "page", staticmethod(lambda: (f'{GAUGE}{{dp_rank="0"}} {next(values)}\n', 200)))
    monkeypatch.setattr(FakeEngine, "delay", 0.3)
    monkeypatch.setattr("pipeline.deploy.client.GAUGE_EVERY_S", 0.0)
    found = engine.measure(questions(3), 5, 1, lambda done: None, lambda: False)
    assert found is not None and found.counters is None
    last = next(values) - 1
    assert last >= 3 and found.gauge == (2 + last) / 2  # the mean of 2 … last: readings of 0 say nothing


def test_a_stop_ends_the_measurement(engine: EngineClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeEngine, "delay", 0.5)
    assert engine.measure(questions(40), 5, 1, lambda done: None, lambda: True) is None


def answer(name: str, *ids: int, prompt: Sequence[int] = (9,)) -> Answer:
    return Answer(name, tuple(prompt), ids, "stop")


def test_differences_are_near_ties_only_when_proven() -> None:
    asked: list[list[int]] = []

    def judge(ids: Sequence[int]) -> list[tuple[int, float]]:
        asked.append(list(ids))
        return {5: [(1, 8.0), (2, 7.995)], 6: [(1, 8.0), (2, 7.9)], 7: [(1, 8.0), (3, 7.999)]}[ids[-1]]

    plain = [answer("same", 5, 1), answer("tie", 5, 1), answer("gap", 6, 1), answer("third", 7, 1), answer("short", 5)]
    drafted = [
        answer("same", 5, 1),
        answer("tie", 5, 2),
        answer("gap", 6, 2),
        answer("third", 7, 2),
        answer("short", 5, 1),
    ]
    plain.append(answer("prompt", 5, prompt=(1,)))
    drafted.append(answer("prompt", 5, prompt=(2,)))
    found = compare(plain, drafted, 0.01, judge)
    assert asked == [[9, 5], [9, 6], [9, 7]]
    assert [(one.id, one.position, one.near_tie) for one in found.differences] == [
        ("tie", 1, True), ("gap", 1, False), ("third", 1, False), ("short", 1, False), ("prompt", 0, False),
    ]  # fmt: skip
    assert found.differences[0].gap == pytest.approx(0.005)
    numbers = found.to_json()
    assert [numbers[key] for key in ("prompts", "identical", "near_ties", "different")] == [6, 1, 1, 4]


def test_first_difference() -> None:
    assert first_difference([1, 2], [1, 2]) is None
    assert first_difference([1, 2], [1, 3]) == 1
    assert first_difference([1, 2], [1]) == 1
    assert first_difference([], []) is None


def test_a_services_command_with_and_without_the_drafter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "1")
    service = ServicePlan(
        command=(
            "{python}", "serve", "{verifier}", "--speculative-config", '{"model":"{drafter}","method":"eagle3"}',
            "--port", "{port}", "--draft={drafter}", "--host", "{host}",
        ),
        env_allow=("KEPT", "MISSING"),
        env={"A": "b"},
        python="/opt/python",
    )  # fmt: skip
    plain = service_command(service, "/models/v")
    port = str(plain.port)
    assert plain.argv == ("/opt/python", "serve", "/models/v", "--port", port, "--host", "127.0.0.1")
    assert plain.env == {"KEPT": "1", "A": "b"}
    drafted = service_command(service, "/models/v", Path("/out/drafter-eagle3"))
    assert '{"model":"/out/drafter-eagle3","method":"eagle3"}' in drafted.argv
    assert "--draft=/out/drafter-eagle3" in drafted.argv


SGLANG_COMMAND = (
    "{python}", "-m", "sglang.launch_server", "--model-path", "{verifier}", "{drafted}",
    "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "{drafter}",
    "--speculative-num-steps", "{k}", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "{k+1}",
    "{/drafted}", "--port", "{port}", "--enable-metrics",
)  # fmt: skip


def test_a_group_of_words_is_for_the_engine_with_the_drafter_only() -> None:
    service = ServicePlan(command=SGLANG_COMMAND, python="p")
    check_service("sglang", service)
    plain = service_command(service, "/v")
    assert plain.argv == (
        "p", "-m", "sglang.launch_server", "--model-path", "/v", "--port", str(plain.port), "--enable-metrics",
    )  # fmt: skip
    drafted = service_command(service, "/v", Path("/d"), 4)
    assert drafted.argv[5:15] == (
        "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "/d", "--speculative-num-steps", "4",
        "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "5",
    )  # fmt: skip
    assert takes_k(service)


def test_k_alone_is_a_word_for_drafting_too() -> None:
    service = ServicePlan(command=("x", "--draft={drafter}", "--steps", "{k}", "--wide={k+1}", "y"))
    assert service.words(drafted=False) == ["x", "y"]
    assert service_command(service, "/v", Path("/d"), 2).argv == ("x", "--draft=/d", "--steps", "2", "--wide=3", "y")
    config = ServicePlan(command=("x", "--speculative-config", '{"model":"{drafter}","num_speculative_tokens":{k}}'))
    assert service_command(config, "/v", Path("/d"), 2).argv[2] == '{"model":"/d","num_speculative_tokens":2}'
    assert service_command(config, "/v").argv == ("x",)


def test_a_command_that_would_draft_without_the_drafter_is_refused() -> None:
    loose = tuple(word for word in SGLANG_COMMAND if word not in ("{drafted}", "{/drafted}"))
    with pytest.raises(StageError, match="still be given --speculative-algorithm --speculative-eagle-topk") as caught:
        check_service("sglang", ServicePlan(command=loose))
    assert "between {drafted} and {/drafted}" in caught.value.remedy
    with pytest.raises(StageError, match="no place for the drafter"):
        check_service("sglang", ServicePlan(command=("x",)))


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["x", "{drafted}"], "{drafted} has no {/drafted}"),
        (["x", "{/drafted}"], "{/drafted} stands where a group is not open"),
        (["{drafted}", "x", "{drafted}", "{/drafted}"], "{drafted} stands where a group is open already"),
    ],
)
def test_a_group_that_is_not_closed_is_refused_with_the_plan(command: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(why)):
        Plan.from_json({"services": {"s": {"command": command}}})
    Plan.from_json({"services": {"s": {"command": ["x", "{drafted}", "a", "{/drafted}", "{drafted}", "{/drafted}"]}}})


SERVER = """
import http.server, subprocess, sys
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", deaf])
print("child", child.pid, flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler).serve_forever()
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_engine_ends_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.deploy.engine.END_GRACE_S", 2.0)
    port = free_port()
    command = EngineCommand((sys.executable, "-c", SERVER, str(port)), port, health="/", ready_timeout_s=30.0)
    with Engine(command, tmp_path / "log") as engine:
        assert engine.wait_ready(lambda: False)
        child = int((tmp_path / "log").read_text().split()[1])
        assert alive(child) and os.getpgid(child) == engine.process.pid != os.getpgid(0)
        assert not Engine.wait_ready(engine, lambda: True)
    assert not alive(engine.process.pid) and not alive(child)


def test_an_engine_that_ends_or_never_answers_is_said_so(tmp_path: Path) -> None:
    broken = EngineCommand((sys.executable, "-c", "print('no such model'); raise SystemExit(3)"), free_port())
    with Engine(broken, tmp_path / "log") as engine, pytest.raises(StageError, match=r"status 3 .*: no such model"):
        engine.wait_ready(lambda: False)
    mute = EngineCommand((sys.executable, "-c", "import time; time.sleep(60)"), free_port(), ready_timeout_s=0.3)
    with Engine(mute, tmp_path / "mute") as engine, pytest.raises(StageError, match="did not answer within"):
        engine.wait_ready(lambda: False)
    assert engine.process.returncode == -signal.SIGTERM
    with pytest.raises(StageError, match="can't be started"):
        Engine(EngineCommand(("/no/such/program",), 1), tmp_path / "none")
    assert last_line(tmp_path / "absent") == ""
