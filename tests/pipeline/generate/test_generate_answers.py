"""Generate against a real HTTP server: what is kept of an answer, in every dialect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


def test_samples_hold_the_servers_text_and_token_ids(work: Any) -> None:
    work.plan(8, concurrency=4)
    assert work.go() == 0
    work.check(8)
    rows = work.rows()
    assert {row["ids_from"] for row in rows} == {"server"}
    assert {row["model"] for row in rows} == {"double"}
    for row in rows:
        assert row["usage"] == {"prompt_tokens": len(row["prompt_ids"]), "completion_tokens": len(row["output_ids"])}
    assert all(count == 1 for text, count in work.engine.asked.items() if text != "Hello")


def test_tokenized_view_marks_what_was_generated(work: Any) -> None:
    work.plan(3)
    assert work.go() == 0
    samples = {row["id"]: row for row in work.rows()}
    view = work.rows("tokenized.jsonl")
    assert [row["id"] for row in view] == list(samples)
    for row in view:
        sample = samples[row["id"]]
        assert row["input_ids"] == sample["prompt_ids"] + sample["output_ids"]
        assert row["loss_mask"] == [0] * len(sample["prompt_ids"]) + [1] * len(sample["output_ids"])
        assert row["truncated"] is False
    report = work.run.stage("generate").current().report()
    tokens = sum(len(row["input_ids"]) for row in view)
    assert (report["counts"]["samples"], report["counts"]["tokens"], report["counts"]["rejected"]) == (3, tokens, 0)
    assert report["counts"]["prompt_tokens"] + report["counts"]["output_tokens"] == tokens


def test_fingerprint_depends_on_the_samples_and_on_no_order(work: Any, tmp_path: Path, engine: Any) -> None:
    prints = []
    for name, concurrency, delay in (("a", 1, 0.0), ("b", 6, 0.02), ("c", 1, 0.0)):
        (tmp_path / name).mkdir()
        other = type(work)(tmp_path / name, engine)
        other.plan(6, concurrency=concurrency, text="other" if name == "c" else "q")
        engine.delay_s = delay
        assert other.go() == 0
        prints.append(other.run.stage("generate").current().fingerprint)
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize(("dialect", "stream"), [("vllm", True), ("sglang", True), ("old-sglang", False)])
def test_every_dialect_brings_the_exact_ids(work: Any, dialect: str, stream: bool) -> None:
    work.engine.dialect = dialect
    work.plan(5)
    assert work.go() == 0
    work.check(5)
    asked = [body for body in work.engine.bodies if body["messages"][-1]["content"] != "Hello"]
    assert {body["stream"] for body in asked} == {stream}
    assert all(("stream_options" in body) == stream for body in asked)


def verifier_of(folder: Path, *, eos: object = 258, end: str = "<end>") -> dict[str, Any]:
    """A verifier's folder that says how answers begin and end, and no more."""
    folder.mkdir()
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": end}}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    (folder / "chat_template.jinja").write_text("{% if add_generation_prompt %}<think>{% endif %}")
    return {"path": str(folder)}


@pytest.mark.parametrize("dialect", ["plain", "strict"])
def test_without_ids_they_are_made_from_the_text_and_proven(work: Any, tmp_path: Path, dialect: str) -> None:
    work.engine.dialect = dialect
    work.plan(4, verifier=verifier_of(tmp_path / "verifier"))
    assert work.go() == 0
    work.check(4)
    assert {row["ids_from"] for row in work.rows()} == {"retokenized"}
    assert any("no token ids" in event["message"] for event in work.events())


@pytest.mark.parametrize("says", [{"stop_reason": 258}, {"matched_stop": 258}, {"matched_stop": "<end>"}])
def test_end_token_is_the_one_the_server_tells(work: Any, tmp_path: Path, says: dict[str, Any]) -> None:
    work.engine.dialect, work.engine.says = "plain", says
    work.plan(4, verifier=verifier_of(tmp_path / "verifier", eos=[1, 2], end="x"))
    assert work.go() == 0
    work.check(4)


def test_one_of_several_end_tokens_is_not_guessed_at(work: Any, tmp_path: Path) -> None:
    work.engine.dialect = "plain"
    work.plan(40, verifier=verifier_of(tmp_path / "verifier", eos=[258, 257]))
    assert work.go() == 1
    assert "2 end tokens (257, 258)" in work.outcome()["message"]
    assert not work.rows()


def test_unprovable_ids_are_rejected_and_stop_the_stage(work: Any) -> None:
    work.engine.dialect = "plain"  # and the end token is known to nobody
    work.plan(40)
    assert work.go() == 1
    assert "round_trip" in work.outcome()["message"] and "return_token_ids" in work.outcome()["remedy"]
    assert not work.rows()
    assert {row["cause"] for row in work.rows("rejects.jsonl")} == {"round_trip"}


@pytest.mark.parametrize("reply", [b"[1]", b'{"tokens": "no"}', b"oops", b"[" * 100_000])
def test_tokenizer_page_that_breaks_costs_its_prompt_a_try(work: Any, tmp_path: Path, reply: bytes) -> None:
    work.engine.dialect = "plain"
    work.engine.tokenize_faults.append(reply)
    work.plan(4, verifier=verifier_of(tmp_path / "verifier"), concurrency=1)
    assert work.go() == 0
    work.check(4)
    assert [row["cause"] for row in work.rows("rejects.jsonl")] == ["failed"]


def test_no_ids_and_no_tokenizer_is_refused_at_once(work: Any) -> None:
    work.engine.dialect, work.engine.tokenize = "plain", False
    work.plan(40)
    assert work.go() == 1
    assert "no token ids" in work.outcome()["message"]
    assert set(work.engine.asked) == {"Hello"}


def test_answers_cut_by_length_are_kept_and_marked(work: Any) -> None:
    work.plan(3, max_tokens=12)
    assert work.go() == 0
    assert [row["finish_reason"] for row in work.rows()] == ["length"] * 3
    assert [len(row["output_ids"]) for row in work.rows()] == [12] * 3
    assert [row["truncated"] for row in work.rows("tokenized.jsonl")] == [True] * 3


def test_system_message_is_put_first_once(work: Any) -> None:
    work.prompts.write_text(
        json.dumps({"id": "a", "prompt": "x"})
        + "\n"
        + json.dumps({"id": "b", "messages": [{"role": "system", "content": "own"}, {"role": "user", "content": "y"}]})
    )
    work.plan(0, system="be brief")
    assert work.go() == 0
    rows = {row["id"]: [one["content"] for one in row["messages"]] for row in work.rows()}
    assert rows == {"a": ["be brief", "x"], "b": ["own", "y"]}


TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize("dialect", ["vllm", "plain"])
def test_tools_are_sent_tokenized_and_stored(work: Any, tmp_path: Path, dialect: str) -> None:
    rows = [{"id": "a", "prompt": "x", "tools": [TOOL]}, {"id": "b", "prompt": "y"}]
    work.prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    work.engine.dialect = dialect
    work.plan(0, verifier=verifier_of(tmp_path / "verifier"))
    assert work.go() == 0
    sent = {body["messages"][-1]["content"]: body.get("tools") for body in work.engine.bodies}
    assert sent == {"Hello": None, "x": [TOOL], "y": None}
    stored = {row["id"]: row for row in work.rows()}
    assert stored["a"]["tools"] == [TOOL] and "tools" not in stored["b"]
    assert stored["a"]["prompt_ids"] == work.ids_of([{"role": "user", "content": "x"}], [TOOL])


def test_function_calls_of_sharegpt_reach_the_server(work: Any) -> None:
    call = json.dumps({"name": "look", "arguments": {"at": 1}})
    turns = [("human", "Q"), ("function_call", call), ("observation", "seen")]
    bad = [("human", "Q"), ("function_call", "look!"), ("observation", "seen")]
    lines = [{"conversations": [{"from": kind, "value": value} for kind, value in one]} for one in (turns, bad)]
    work.prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    work.plan(0)
    assert work.go() == 0
    _, called, result = work.engine.bodies[-1]["messages"]
    assert called["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at": 1}'}
    assert result == {"role": "tool", "content": "seen", "tool_call_id": called["tool_calls"][0]["id"]}
    assert any("line 2: left out: turn 2: the function call" in event["message"] for event in work.events())


def test_line_separators_in_the_text_survive_the_stream(work: Any) -> None:
    text = "a\u2028b\u0085c\x0bd\r\ne"
    work.prompts.write_text(json.dumps({"id": "p", "prompt": text}))
    work.plan(0)
    assert work.go() == 0
    assert work.rows()[0]["content"] == f"answer {text}"


def test_sampling_is_sent_and_retries_are_ours(work: Any) -> None:
    work.plan(2, temperature=0.3, top_p=0.8, concurrency=1)
    assert work.go() == 0
    body = work.engine.bodies[-1]
    assert (body["temperature"], body["top_p"], body["max_tokens"], body["model"]) == (0.3, 0.8, 200, "double")
    assert body["stream_options"] == {"include_usage": True}


def test_concurrency_is_used_and_kept(work: Any) -> None:
    work.engine.delay_s = 0.05
    work.plan(20, concurrency=5)
    assert work.go() == 0
    assert work.engine.most_busy == 5


def test_broken_lines_and_duplicates_are_reported_and_the_others_run(work: Any) -> None:
    rows = [
        b'{"id": "p0", "prompt": "q0"}',
        b"{torn",
        b'{"id": "p0", "prompt": "again"}',
        b"\xff",
        b'{"id": "p1", "prompt": "q1"}',
    ]
    work.prompts.write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(rows))
    work.plan(0)
    assert work.go() == 0
    work.check(2)
    said = " | ".join(event["message"] for event in work.events())
    assert "line 2: left out: not JSON" in said and "line 4: left out: not UTF-8" in said
    assert "line 3: a duplicate" in said
    assert "2 prompts, 2 broken lines, 1 duplicates" in said


def test_tokens_and_bytes_end_it_too(work: Any, tmp_path: Path, engine: Any) -> None:
    for name, budget in (("t", {"token_budget": 200}), ("b", {"byte_budget": 2500})):
        (tmp_path / name).mkdir()
        other = type(work)(tmp_path / name, engine)
        other.plan(60, concurrency=3, **budget)
        assert other.go() == 0
        rows = other.rows()
        tokens = [len(row["prompt_ids"]) + len(row["output_ids"]) for row in rows]
        if "token_budget" in budget:
            assert sum(tokens) >= 200 > sum(tokens[:-1])
        else:
            assert (other.out / "samples.jsonl").stat().st_size >= 2500
            assert len(rows) < 12
        other.check(len(rows))
