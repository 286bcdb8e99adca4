"""The engine's answers, asked for by the openai client: ids, reasoning, streams, batches, stop strings, sampling."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipeline.verifier import bundled_path
from pipeline.verifier.tasks import tasks

PROMPTS = [task.prompt for task in tasks(11, 36, "held-out")]
SUM = "Add 347 and 586."


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(bundled_path())


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(bundled_path(), dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def client(engine: Any) -> Any:
    return openai.OpenAI(base_url=engine.url, api_key="none", max_retries=0, timeout=60)


def ask(client: Any, prompt: str, **more: Any) -> Any:
    extra = {"return_token_ids": True, **more.pop("extra_body", {})}
    more.setdefault("temperature", 0)
    messages = [{"role": "user", "content": prompt}]
    return client.chat.completions.create(model="bundled", messages=messages, extra_body=extra, **more)


def ids_of(reply: Any) -> list[int]:
    ids: list[int] = reply.choices[0].model_extra["token_ids"]
    return ids


def streamed(client: Any, prompt: str, **more: Any) -> dict[str, Any]:
    """A stream put together again."""
    whole: dict[str, Any] = {"reasoning": "", "content": "", "ids": [], "prompt_ids": None, "end": [], "usage": None}
    for chunk in ask(client, prompt, stream=True, stream_options={"include_usage": True}, **more):
        whole["prompt_ids"] = whole["prompt_ids"] or (chunk.model_extra or {}).get("prompt_token_ids")
        if chunk.usage is not None:
            assert chunk.choices == []
            whole["usage"] = chunk.usage.model_dump()
            continue
        choice = chunk.choices[0]
        whole["reasoning"] += (choice.delta.model_extra or {}).get("reasoning") or ""
        whole["content"] += choice.delta.content or ""
        whole["ids"] += (choice.model_extra or {}).get("token_ids") or []
        if choice.finish_reason:
            whole["end"].append(choice.finish_reason)
    return whole


def test_ids_are_the_templates_and_the_answers(client: Any, tokenizer: Any, engine: Any) -> None:
    reply = ask(client, SUM)
    message = reply.choices[0].message
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": SUM}], add_generation_prompt=True, tokenize=False
    )
    assert rendered.endswith("<|im_assistant|>assistant<|im_middle|><think>")
    prompt_ids = reply.model_extra["prompt_token_ids"]
    assert prompt_ids == tokenizer(rendered, add_special_tokens=False)["input_ids"]
    status, counted = engine.ask("POST", "/tokenize", {"messages": [{"role": "user", "content": SUM}]})
    assert (status, counted["tokens"], counted["count"]) == (200, prompt_ids, len(prompt_ids))
    assert tokenizer.decode(ids_of(reply)) == f"{message.reasoning}</think>{message.content}<|im_end|>"
    assert message.content == "The sum is 933."
    assert "carry 1" in message.reasoning
    assert (reply.choices[0].finish_reason, reply.usage.completion_tokens) == ("stop", len(ids_of(reply)))
    assert reply.usage.prompt_tokens == len(prompt_ids)
    assert reply.usage.completion_tokens_details.reasoning_tokens == ids_of(reply).index(
        tokenizer.convert_tokens_to_ids("</think>")
    )


def test_a_batch_answers_as_transformers_does_alone(client: Any, model: Any, tokenizer: Any) -> None:
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        replies = list(pool.map(lambda prompt: ask(client, prompt), PROMPTS))
    assert [reply.choices[0].finish_reason for reply in replies] == ["stop"] * len(PROMPTS)
    for reply in replies[::9]:
        prompt = torch.tensor([reply.model_extra["prompt_token_ids"]])
        with torch.inference_mode():
            out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=400, do_sample=False)
        alone = out[0, prompt.shape[1] :].tolist()
        together = ids_of(reply)
        if alone != together:
            same = next(i for i, (a, b) in enumerate(zip(alone, together)) if a != b)
            ids = torch.cat((prompt, torch.tensor([alone[:same]], dtype=torch.long)), 1)
            top = model(ids).logits[0, -1].topk(2).values
            assert top[0] - top[1] < 1e-3, "a batch changed an answer that was no near tie"


def test_a_stream_says_what_a_whole_answer_says(client: Any) -> None:
    for prompt in PROMPTS[:4]:
        reply, stream = ask(client, prompt), streamed(client, prompt)
        message = reply.choices[0].message
        assert (stream["reasoning"], stream["content"]) == (message.reasoning, message.content)
        assert (stream["ids"], stream["end"]) == (ids_of(reply), [reply.choices[0].finish_reason])
        assert stream["prompt_ids"] == reply.model_extra["prompt_token_ids"]
        assert stream["usage"] == reply.usage.model_dump()


def test_ids_come_only_when_asked_for(engine: Any) -> None:
    reply = engine.chat(SUM)
    assert "prompt_token_ids" not in reply
    assert "token_ids" not in reply["choices"][0]


@pytest.mark.parametrize("room", ["inside", "at the end tag", "after it"])
def test_an_answer_cut_by_length(client: Any, tokenizer: Any, room: str) -> None:
    whole = ask(client, SUM)
    ids = ids_of(whole)
    end = ids.index(tokenizer.convert_tokens_to_ids("</think>"))
    count = {"inside": 7, "at the end tag": end + 1, "after it": end + 2}[room]
    reply = ask(client, SUM, max_completion_tokens=count)
    message = reply.choices[0].message
    assert (reply.choices[0].finish_reason, ids_of(reply)) == ("length", ids[:count])
    assert message.reasoning == tokenizer.decode(ids[: min(count, end)])
    assert message.content == (tokenizer.decode(ids[end + 1 : end + 2]) if room == "after it" else None)
    assert reply.usage.completion_tokens_details.reasoning_tokens == min(count, end)


def test_thinking_switched_off_leaves_content_only(client: Any, tokenizer: Any) -> None:
    reply = ask(client, SUM, extra_body={"chat_template_kwargs": {"thinking": False}})
    assert tokenizer.decode(reply.model_extra["prompt_token_ids"]).endswith("<think></think>")
    message = reply.choices[0].message
    assert message.reasoning is None
    assert message.content.startswith("The sum is")
    assert reply.usage.completion_tokens_details.reasoning_tokens == 0


def test_a_conversation_with_a_system_prompt_and_an_earlier_turn(client: Any) -> None:
    messages = [
        {"role": "system", "content": "Be brief and exact."},
        {"role": "user", "content": "Which number is larger, 812 or 821?"},
        {"role": "assistant", "content": "The larger number is 821"},
        {"role": "user", "content": [{"type": "text", "text": "What is 35 + 48?"}]},
    ]
    reply = client.chat.completions.create(model="bundled", messages=messages, temperature=0)
    assert reply.choices[0].message.content == "35 + 48 = 83"


@pytest.mark.parametrize(
    ("stop", "part"), [("carry", "reasoning"), ([" sum is", "zzz"], "content"), ("Digits from", "reasoning")]
)
def test_a_stop_string_ends_either_part(client: Any, stop: Any, part: str) -> None:
    whole = ask(client, SUM).choices[0].message
    reply, stream = ask(client, SUM, stop=stop), streamed(client, SUM, stop=stop)
    choice, first = reply.choices[0], stop if isinstance(stop, str) else stop[0]
    assert (choice.finish_reason, choice.model_extra["stop_reason"]) == ("stop", first)
    before = getattr(whole, part).partition(first)[0]
    expected = (before, None) if part == "reasoning" else (whole.reasoning, before)
    assert (choice.message.reasoning, choice.message.content) == expected
    assert (stream["reasoning"], stream["content"] or None) == expected
    assert ids_of(reply) == ids_of(ask(client, SUM))[: len(ids_of(reply))]


def test_seeds_repeat_and_heat_varies(client: Any) -> None:
    hot = {"temperature": 8.0, "max_tokens": 24}
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda seed: ids_of(ask(client, SUM, seed=seed, **hot)), [5, 5, 6, 7, 8, 9]))
    assert answers[0] == answers[1]
    assert len({tuple(ids) for ids in answers}) > 2
    assert ids_of(ask(client, SUM, temperature=8.0, top_p=1e-6, seed=1)) == ids_of(ask(client, SUM))


def test_short_answers_leave_while_a_long_one_goes_on(client: Any) -> None:
    long = ask(client, SUM, temperature=100.0, seed=3, max_tokens=600, stream=True)
    first = next(iter(long))
    assert ask(client, "What is 12 + 5?", max_tokens=3).choices[0].finish_reason == "length"
    rest = [chunk.choices[0].finish_reason for chunk in long]
    assert first.choices[0].finish_reason is None
    assert rest.count(None) == len(rest) - 1, "the long answer had ended before the short one was asked for"


def test_the_chat_client_of_smollm2_style_models(drafting: Any, tokenizer: Any) -> None:
    """Without the parser the reasoning stands in the content, and nothing says so: what a missing flag looks like."""
    reply = drafting.chat(SUM, return_token_ids=True)
    message = reply["choices"][0]["message"]
    assert message["reasoning"] is None
    assert message["content"].endswith("The sum is 933.")
    assert "carry 1" in message["content"]
    assert "completion_tokens_details" not in reply["usage"]
    ids = reply["choices"][0]["token_ids"]
    assert message["content"] == tokenizer.decode(ids, skip_special_tokens=True)
    assert Path(bundled_path(), "config.json").is_file()


def test_a_drafter_changes_no_greedy_answer_and_is_counted(drafting: Any, engine: Any) -> None:
    before = drafting.metric("vllm:spec_decode_num_drafts_total")
    with ThreadPoolExecutor(6) as pool:
        drafted = list(pool.map(lambda prompt: drafting.chat(prompt, return_token_ids=True), PROMPTS[:6]))
        plain = list(pool.map(lambda prompt: engine.chat(prompt, return_token_ids=True), PROMPTS[:6]))
    assert [one["choices"][0]["token_ids"] for one in drafted] == [one["choices"][0]["token_ids"] for one in plain]
    drafts = drafting.metric("vllm:spec_decode_num_drafts_total")
    assert drafts > before
    assert drafting.metric("vllm:spec_decode_num_draft_tokens_total") == 2 * drafts
    by_position = [
        drafting.metric(f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{i}"}}') for i in (0, 1)
    ]
    assert sum(by_position) == drafting.metric("vllm:spec_decode_num_accepted_tokens_total")
    assert drafts >= by_position[0] >= by_position[1]


def test_with_a_drafter_stop_strings_and_streams_work_and_heat_is_refused(drafting: Any, tokenizer: Any) -> None:
    reply = drafting.chat(SUM, stop="carry", return_token_ids=True)
    assert reply["choices"][0]["stop_reason"] == "carry"
    assert tokenizer.decode(reply["choices"][0]["token_ids"]).count("carry") == 1
    client = openai.OpenAI(base_url=drafting.url, api_key="none", max_retries=0)
    messages: Any = [{"role": "user", "content": SUM}]
    stream = client.chat.completions.create(model="model", messages=messages, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == drafting.chat(SUM)["choices"][0]["message"]["content"]
    status, error = drafting.ask("POST", "/v1/chat/completions", {"messages": messages, "temperature": 0.5})
    assert (status, error["error"]["param"]) == (400, "temperature")
