"""Generate and the server's context: refusals are read, answers are shortened to what is left, a resume asks again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline.generate.answer import error_text
from pipeline.generate.context import Told, read_refusal

# the engines' own words
SGLANG_TOTAL = (
    "Requested token count exceeds the model's maximum context length of 64000 tokens. You requested a total of 71897 "
    "tokens: 7897 tokens from the input messages and 64000 tokens for the completion. Please reduce the number of "
    "tokens in the input messages or the completion to fit within the limit."
)
VLLM_TEXTS = {
    "This model's maximum context length is 16384 tokens. However, you requested 122946 tokens (112946 in the "
    "messages, 10000 in the completion). Please reduce the length of the messages or completion.": Told(16384, 112946),
    "'max_tokens' or 'max_completion_tokens' is too large: 8000. This model's maximum context length is 4096 tokens "
    "and your request has 2778 input tokens (8000 > 4096 - 2778).": Told(4096, 2778),
    "This model's maximum context length is 1536 tokens. However, your request has 4176 input tokens. Please reduce "
    "the length of the input messages.": Told(1536, 4176),
    # counted only up to the first token too many
    "This model's maximum context length is 4096 tokens. However, you requested 1704 output tokens and your prompt "
    "contains at least 2393 input tokens, for a total of at least 4097 tokens.": Told(4096, None),
    "You passed 2393 input tokens and requested 1704 output tokens. However, the model's context length is only 4096 "
    "tokens, resulting in a maximum input length of 2392 tokens.": Told(4096, None),
    "This model's maximum context length is 4096 tokens. However, you requested 4096 output tokens and your prompt "
    "contains 581 characters (more than 0 characters, which is the upper bound for 0 input tokens).": Told(4096, None),
}
OTHER_TEXTS = {
    SGLANG_TOTAL: Told(64000, 7897, 1),
    "The input (9000 tokens) is longer than the model's context length (4096 tokens).": Told(4096, 9000),
    "the request exceeds the available context size (4096 tokens), try increasing it": Told(4096, None),
    "This model's maximum context length is 512 tokens. The prompt has 40 and max_tokens asks for 600 more. Shorten "
    "the prompt or ask for at most 472.": Told(512, 40),
    "It does not fit.": Told(None, None),
}


@pytest.mark.parametrize(("text", "told"), [*VLLM_TEXTS.items(), *OTHER_TEXTS.items()])
def test_refusals_are_read(text: str, told: Told) -> None:
    assert read_refusal(f"400 {error_text(text)}") == told


def fill(work: Any) -> None:
    """Three prompts that leave room for their answers, and one that fills the context alone."""
    rows = [{"id": f"p{number}", "prompt": f"q{number}"} for number in range(3)] + [{"id": "long", "prompt": "x" * 70}]
    work.prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    work.plan(0, max_tokens=200)


def context_of(work: Any) -> int:
    return len(work.ids_of([{"role": "user", "content": "q0"}])) + 30


@pytest.mark.parametrize("refusal", ["vllm", "old-vllm", "sglang", "sglang-stream"])
@pytest.mark.parametrize("chats", [True, False])
def test_answer_is_fitted_into_the_context(work: Any, refusal: str, chats: bool) -> None:
    work.engine.context = context_of(work)
    work.engine.refusal, work.engine.tokenize_chats = refusal, chats
    fill(work)
    assert work.go() == 0
    work.check(3)
    rejects = work.rows("rejects.jsonl")
    assert [(row["id"], row["cause"]) for row in rejects] == [("long", "context")]
    assert "maximum context length" in rejects[0]["detail"]
    fitted = {body["max_tokens"] for body in work.engine.bodies if body["messages"][-1]["content"] != "Hello"}
    assert fitted - {1, 200} == {30 - ("sglang" in refusal)}
    # a measurement of one token only where nobody counts the prompt
    assert (1 in fitted) == (refusal == "vllm" and not chats)


def test_context_is_read_from_the_models_where_the_refusal_is_mute(work: Any) -> None:
    work.engine.context = work.engine.listed_context = context_of(work)
    work.engine.refusal, work.engine.tokenize_chats = "mute", False
    fill(work)
    assert work.go() == 0
    work.check(3)
    assert work.rows("rejects.jsonl")[0]["cause"] == "context"


def test_refused_for_its_length_is_asked_again_by_a_resume_and_once_in_an_attempt(work: Any) -> None:
    work.engine.context = context_of(work)
    fill(work)
    assert work.go() == 0
    assert "1 context" in work.events()[-1]["message"] and "asks them again" in work.events()[-1]["message"]
    work.engine.context = 0
    work.run.change_plan({"generate.max_samples": 4}, "the server has a longer context now")
    assert work.go() == 0
    assert {row["id"] for row in work.rows()} == {"p0", "p1", "p2", "long"}
    assert work.run.stage("generate").current().report()["counts"]["rejected"] == 0


def test_contexts_that_are_too_short_stop_it_with_a_remedy_that_works(work: Any) -> None:
    work.engine.context = 20
    rows = [{"id": f"p{number}", "prompt": f"q{number}" if number > 25 else "x" * 50} for number in range(40)]
    work.prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    work.plan(0)
    assert work.go() == 1
    said = work.outcome()
    assert "for context" in said["message"] and said["resumable"]
    assert "--max-model-len" in said["remedy"] and "needs a restart" in said["remedy"]
    work.engine.context = 0
    assert work.go() == 0
    assert len(work.rows()) == 40


def test_prompts_known_to_be_too_long_do_not_stop_a_continued_output(work: Any) -> None:
    work.engine.context = context_of(work)
    rows = [{"id": f"{number}", "prompt": "q" if number % 3 else "x" * 70} for number in range(90)]
    work.prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    work.plan(0, max_samples=58, concurrency=4)
    assert work.go() == 0
    work.run.change_plan({"generate.max_samples": 90}, "more")
    assert work.go() == 0
    assert len(work.rows()) == 60
    assert "30 context" in work.events()[-1]["message"]
