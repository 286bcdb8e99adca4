"""The parts of generate that need no server: frames, answers, failures, verdicts, reasoning, re-tokenising."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.generate.answer import Answer, Gathering, Unfinished, error_text
from pipeline.generate.endpoint import Endpoint, base_url, frames
from pipeline.generate.endtoken import EndToken, read_end_token
from pipeline.generate.failure import Failure, Kind, classify
from pipeline.generate.judge import Reject, RejectWatch, judge
from pipeline.generate.question import Chat
from pipeline.generate.reasoning import ReasoningWatch, expected, template_opens_reasoning
from pipeline.generate.retokenize import FolderTokenizer, add_ids
from pipeline.generate.store import SampleStore
from pipeline.generate.unanswered import unanswered
from pipeline.stage import StageError

FIELDS = [
    *("choices", "delta", "message", "content", "reasoning", "reasoning_content", "finish_reason", "usage", "error"),
    *("prompt_tokens", "completion_tokens", "token_ids", "prompt_token_ids", "response_token_ids", "sglext"),
    *("input_ids", "output_ids", "stop_reason", "matched_stop", "model", "object"),
]
USAGE = {"prompt_tokens": 2, "completion_tokens": 3}


async def pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_frames_do_not_depend_on_how_bytes_arrive(size: int) -> None:
    stream = (
        ': hi\r\n\r\ndata: {"a": "ü\u2028"}\r\n\r\nevent: x\ndata:{"b":\ndata: 1}\n\n\n: c\n\ndata: {"c": 2}'.encode()
    )
    assert [one async for one in frames(pieces(stream, size))] == [{"a": "ü\u2028"}, {"b": 1}, {"c": 2}]


async def test_frames_end_at_done_and_name_garbage() -> None:
    assert [one async for one in frames(pieces(b"data: [DONE]\n\ndata: {}\n\n", 9))] == []
    with pytest.raises(Unfinished, match=r"garbage.*<html>"):
        [one async for one in frames(pieces(b"data: <html>\n\n", 9))]


def gathered(*parts: dict[str, Any]) -> Answer:
    gathering = Gathering()
    for part in parts:
        gathering.add(part)
    return gathering.finish()


def choice(delta: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"choices": [{"delta": delta, **more}]}


def test_both_reasoning_fields_are_read_once() -> None:
    end = choice({}, finish_reason="stop") | {"usage": USAGE}
    assert gathered(choice({"reasoning": "a"}), choice({"reasoning": "b"}), end).reasoning == "ab"
    assert gathered(choice({"reasoning_content": "a"}), end).reasoning == "a"
    # vLLM 0.11.1 … 0.15 send both
    assert gathered(choice({"reasoning": "a", "reasoning_content": "a"}), end).reasoning == "a"
    assert gathered(choice({"reasoning": None, "reasoning_content": "a"}), end).reasoning == "a"
    assert gathered(choice({"content": "x"}), end).reasoning is None
    assert gathered(choice({"reasoning": ""}), end).reasoning == ""


def test_ids_of_every_name() -> None:
    end = choice({}, finish_reason="stop") | {"usage": USAGE}
    vllm = gathered({"prompt_token_ids": [1, 2], **choice({}, token_ids=[3])}, choice({}, token_ids=[4, 5]), end)
    whole = {"finish_reason": "stop", "message": {"content": "x"}, "prompt_token_ids": [1, 2]}
    sglang = gathered({"choices": [{**whole, "response_token_ids": [3, 4, 5]}], "usage": USAGE})
    late = gathered(end, {"choices": [], "sglext": {"input_ids": [1, 2], "output_ids": [3, 4, 5]}})
    for one in (vllm, sglang, late):
        assert (one.prompt_ids, one.output_ids) == ((1, 2), (3, 4, 5))
    assert not gathered(end).has_ids
    assert not gathered({"prompt_token_ids": "12", **choice({}, token_ids=["3"])}, end).has_ids


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([choice({"content": "x"})], "finish reason"),
        ([choice({}, finish_reason="stop")], "usage"),
        ([{"error": {"message": "died"}}], "died"),
        ([{"object": "error", "message": "died"}], "died"),
        ([[1]], "garbage"),
        ([{"hello": 1}], "choices"),
        ([{"choices": ["x"]}], "choice"),
        ([choice({}, finish_reason="abort") | {"usage": USAGE}], "abort"),
        ([choice({}, finish_reason=["stop"])], "finish_reason"),
        ([choice({"reasoning": 1})], "reasoning"),
        ([choice({}, finish_reason="stop") | {"usage": {**USAGE, "prompt_tokens": float("inf")}}], "usage"),
        ([choice({}, finish_reason="stop") | {"usage": {**USAGE, "completion_tokens": -1}}], "usage"),
    ],
)
def test_what_is_no_whole_answer(parts: list[Any], words: str) -> None:
    with pytest.raises(Unfinished, match=words):
        gathered(*parts)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "stop", "length", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=6),
    max_leaves=30,
)


@given(st.lists(JSON | st.fixed_dictionaries({"choices": st.lists(JSON)}, optional={"usage": JSON}), max_size=4))
def test_no_json_is_more_than_an_answer_or_unfinished(parts: list[Any]) -> None:
    with suppress(Unfinished):
        assert isinstance(gathered(*parts), Answer)


def status_error(code: int, body: Any, headers: dict[str, str] | None = None) -> openai.APIStatusError:
    module = openai.DefaultAsyncHttpxClient.__mro__[1].__module__.partition(".")[0]
    transport: Any = __import__(module)
    request = transport.Request("POST", "http://x/v1/chat/completions")
    response = transport.Response(code, request=request, json=body, headers=headers)
    return openai.APIStatusError("", response=response, body=body.get("error", body))


VLLM_CONTEXT = "This model's maximum context length is 2048 tokens. However, your prompt contains 9 input tokens"
SGLANG_CONTEXT = "The input (9000 tokens) is longer than the model's context length (4096 tokens)."


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        (400, VLLM_CONTEXT, Kind.CONTEXT),
        (400, SGLANG_CONTEXT, Kind.CONTEXT),
        (400, "bad temperature", Kind.REFUSED),
        (422, "bad field", Kind.REFUSED),
        (401, "no", Kind.FATAL),
        (403, "no", Kind.FATAL),
        (404, "The model `x` does not exist.", Kind.FATAL),
        (408, "late", Kind.BROKEN),
        (429, "slow down", Kind.BUSY),
        (503, "The request queue is full.", Kind.BUSY),
        (500, "boom", Kind.BROKEN),
        (502, "bad gateway", Kind.BROKEN),
    ],
)
def test_status_codes(code: int, message: str, kind: Kind) -> None:
    for body in ({"error": {"message": message}}, {"object": "error", "message": message}):
        failure = classify(status_error(code, body, {"retry-after": "7"}))
        assert failure is not None
        assert (failure.kind, failure.status) == (kind, code)
        assert message[:20] in failure.detail
        assert failure.retry_after_s == (7.0 if kind in (Kind.BUSY, Kind.BROKEN) else None)


def test_refusal_of_a_long_prompt_may_come_in_the_stream() -> None:
    for text, kind in ((SGLANG_CONTEXT, Kind.CONTEXT), ("EngineCore died", Kind.BROKEN)):
        with pytest.raises(Unfinished) as caught:
            gathered({"error": {"message": text, "code": 400}})
        failure = classify(caught.value)
        assert failure is not None and failure.kind is kind
    about = classify(Unfinished("garbage instead of JSON: 'context length'"))
    assert about is not None and about.kind is Kind.BROKEN


def test_other_exceptions() -> None:
    module = openai.DefaultAsyncHttpxClient.__mro__[1].__module__.partition(".")[0]
    transport: Any = __import__(module)
    for error in (transport.RemoteProtocolError("cut"), transport.ReadError("reset"), ConnectionResetError("reset")):
        failure = classify(error)
        assert failure is not None and failure.kind is Kind.DOWN
    silent, bug = classify(TimeoutError()), classify(KeyError("x"))
    assert silent is not None and silent.kind is Kind.BROKEN
    assert bug is None


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("http://h:8000", "http://h:8000/v1"),
        ("http://h:8000/", "http://h:8000/v1"),
        ("http://h:8000/v1/", "http://h:8000/v1"),
        ("https://h/api/v1/chat/completions", "https://h/api/v1"),
        ("h:8000", "http://h:8000/v1"),
        ("http://[::1]:9/v1", "http://[::1]:9/v1"),
    ],
)
def test_base_url(given: str, wanted: str) -> None:
    assert base_url(given) == wanted


@pytest.mark.parametrize("given", ["", "ftp://h", "http://", "/v1"])
def test_what_is_no_url(given: str) -> None:
    with pytest.raises(ValueError, match="is no URL"):
        base_url(given)


async def test_password_of_a_url_is_not_shown() -> None:
    endpoint = Endpoint("http://me:secret@h:8000/v1", api_key="", connections=1)
    assert endpoint.shown == "http://h:8000/v1"
    await endpoint.close()


def answer(**more: Any) -> Answer:
    fields = {"reasoning": "r", "content": "c", "finish_reason": "stop", "prompt_tokens": 2, "completion_tokens": 3}
    return Answer(**{**fields, "prompt_ids": (1, 2), "output_ids": (3, 4, 5), **more})


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({}, None),
        ({"finish_reason": "length", "content": ""}, None),
        ({"finish_reason": "content_filter"}, "finish_reason"),
        ({"finish_reason": "repetition"}, "finish_reason"),
        ({"reasoning": " "}, "no_reasoning"),
        ({"reasoning": None}, "no_reasoning"),
        ({"output_ids": None}, "no_token_ids"),
        ({"prompt_ids": None}, "no_token_ids"),
        ({"output_ids": (3, 4)}, "token_count"),
        ({"prompt_ids": (1,)}, "token_count"),
        ({"output_ids": (3, 4, 100)}, "vocabulary"),
        ({"prompt_tokens": 0, "prompt_ids": (), "completion_tokens": 1, "output_ids": (100,)}, "vocabulary"),
        ({"completion_tokens": 0, "output_ids": ()}, "empty_answer"),
    ],
)
def test_verdicts(changes: dict[str, Any], cause: str | None) -> None:
    reject = judge(answer(**changes), reasoning=True, vocab_size=100)
    assert (reject.cause if reject else None) == cause


def test_reasoning_is_missed_only_where_it_must_be() -> None:
    bare = answer(reasoning=None)
    assert judge(bare, reasoning=False, vocab_size=None) is None
    assert judge(bare, reasoning=None, vocab_size=None) is None
    unsplit = judge(answer(reasoning=None, content="so </think> yes"), reasoning=None, vocab_size=None)
    assert unsplit is not None and unsplit.cause == "no_reasoning"


def test_watches_wait_for_enough() -> None:
    watch = RejectWatch()
    for number in range(200):
        watch.note(Reject("failed", "x") if number % 3 == 0 else None)
    watch = RejectWatch()
    for _ in range(19):
        watch.note(Reject("context", "too long"))
    with pytest.raises(StageError, match="context: too long") as caught:
        watch.note(Reject("failed", "x"))
    assert "max_tokens" in caught.value.remedy
    reasoning = ReasoningWatch()
    for number in range(100):
        reasoning.note(number % 3 == 0, "")
    reasoning = ReasoningWatch()
    for _ in range(9):
        reasoning.note(True, "")
    with pytest.raises(StageError, match="neither `reasoning`"):
        reasoning.note(True, "")


KIMI = (
    "{%- for message in messages -%}<|im_{{ message.role }}|>{{ message.content }}<|im_end|>{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|>"
    "{%- if thinking is defined and thinking is false -%}<think></think>{%- else -%}<think>{%- endif -%}{%- endif -%}"
)
QWEN_OFF = "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n\n</think>\n\n{% endif %}"
EXOTIC = "{{ unknown_function() }}{% if add_generation_prompt %}<think>\n{% endif %}"


@pytest.mark.parametrize(
    ("template", "opens"),
    [(KIMI, True), (QWEN_OFF, False), ("plain {{ messages }}", False), (EXOTIC, True), ("{% x", False)],
)
def test_template_that_opens_reasoning(tmp_path: Path, template: str, opens: bool) -> None:
    (tmp_path / "chat_template.jinja").write_text(template)
    assert template_opens_reasoning(tmp_path) is opens
    (tmp_path / "chat_template.jinja").unlink()
    for value in (template, [{"name": "tool_use", "template": "x"}, {"name": "default", "template": template}]):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": value}))
        assert template_opens_reasoning(tmp_path) is opens


def test_who_decides_whether_reasoning_is_expected(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(KIMI)
    assert expected("auto", None, tmp_path) is True
    assert expected("auto", False, tmp_path) is False
    assert expected("yes", False, None) is True
    assert expected("no", True, tmp_path) is False
    assert expected("auto", None, tmp_path / "none") is None
    assert expected("auto", None, None) is None


class Bytes:
    """A byte is a token, <think> and </think> are 256 and 257; `merge` makes one token of two bytes."""

    def __init__(self, merge: bytes = b"") -> None:
        self.merge = merge

    async def prompt(self, chat: Chat) -> list[int]:
        return await self.encode(chat.messages[0]["content"])

    async def encode(self, text: str) -> list[int]:
        data = text.replace("<end>", "\x03").replace("</think>", "\x02").replace("<think>", "\x01").encode()
        data = data.replace(self.merge, b"\x04") if self.merge else data
        return list(data)

    async def decode(self, ids: Sequence[int]) -> str:
        text = bytes(ids).replace(b"\x04", self.merge).decode()
        return text.replace("\x01", "<think>").replace("\x02", "</think>").replace("\x03", "<end>")


END = EndToken("<end>", frozenset({3}))


async def proven(count: int, *, opened: bool = True, end: EndToken = END, **more: Any) -> Any:
    bare = answer(prompt_ids=None, output_ids=None, completion_tokens=count, **more)
    return await add_ids(bare, Chat(({"content": "ab"},)), Bytes(), opened=opened, end=end)


async def test_round_trip_is_proven_by_the_servers_counts() -> None:
    found = await proven(len("r") + 1 + len("c") + 1)
    assert found.output_ids == (ord("r"), 2, ord("c"), 3) and found.prompt_ids == (97, 98)
    unopened = await proven(1 + len("r") + 1 + len("c") + 1, opened=False)
    assert unopened.output_ids == (1, ord("r"), 2, ord("c"), 3)
    cut = await proven(1, finish_reason="length", content="")
    assert cut.output_ids == (ord("r"),)
    plain = await proven(2, reasoning=None)
    assert plain.output_ids == (ord("c"), 3)
    stopped = await proven(2, reasoning=None, stop_reason=77, end=EndToken())
    assert stopped.output_ids == (ord("c"), 77)
    # of several end tokens only the server knows which it was
    several = EndToken("<end>", frozenset({3, 77}))
    assert (await proven(2, reasoning=None, stop_reason=77, end=several)).output_ids == (ord("c"), 77)
    by_text = await proven(4, reasoning=None, stop_reason="END", end=EndToken())
    assert by_text.output_ids == (ord("c"), *b"END")


@pytest.mark.parametrize(
    ("count", "more", "words"),
    [
        (4, {"prompt_tokens": 3}, "prompt makes 2 ids"),
        (99, {}, "no way"),
        (5, {}, "more than one way"),  # a line break before </think>, behind it, or at the start
        (4, {"end": EndToken()}, "does not tell which token"),
        (4, {"end": EndToken("<end>")}, "does not tell which token"),
        (4, {"end": EndToken("<end>", frozenset({3, 7}))}, "any of the verifier's 2 end tokens (3, 7)"),
        (4, {"end": EndToken("<end>", frozenset({7}))}, "encodes to [3], and the verifier's eos_token_id is 7"),
        (4, {"end": EndToken("END", frozenset({3}))}, "'END' encodes to [69, 78, 68]"),
        (2, {"reasoning": None, "finish_reason": "tool_calls"}, "not what the model wrote"),
    ],
)
async def test_what_cannot_be_proven_is_rejected(count: int, more: dict[str, Any], words: str) -> None:
    found = await proven(count, **more)
    assert isinstance(found, Reject) and found.cause == "round_trip" and words in found.detail


def test_end_token_of_a_folder(tmp_path: Path) -> None:
    assert read_end_token(None) == read_end_token(tmp_path) == EndToken()
    for value in ("<e>", {"content": "<e>"}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": value}))
        assert read_end_token(tmp_path) == EndToken("<e>")
    files = [("config.json", {"text_config": {"eos_token_id": 5}}, {5})]
    files += [("config.json", {"eos_token_id": 6}, {6}), ("generation_config.json", {"eos_token_id": [6, 7]}, {6, 7})]
    files += [("generation_config.json", {"eos_token_id": "x"}, {6}), ("config.json", [1], set())]
    for name, found, ids in files:
        (tmp_path / name).write_text(json.dumps(found))
        assert read_end_token(tmp_path) == EndToken("<e>", frozenset(ids))


def test_stop_token_is_read_under_both_engines_names() -> None:
    for name in ("stop_reason", "matched_stop"):
        for sent, kept in ((5, 5), ("<e>", "<e>"), (None, None), (True, None), ([1], None), (-1, None)):
            end = choice({}, finish_reason="stop", **{name: sent}) | {"usage": USAGE}
            assert gathered(choice({"content": "x"}, matched_stop=None), end).stop_reason == kept


class Template:
    """A tokenizer that shows what its chat template was given."""

    def apply_chat_template(self, messages: Any, *, tools: Any, **_: Any) -> str:
        return json.dumps([tools, [call["function"]["arguments"] for call in messages[0].get("tool_calls", ())]])

    def encode(self, text: str, **_: Any) -> list[int]:
        return list(text.encode())


async def test_chat_template_gets_tools_and_parsed_arguments() -> None:
    tokenizer = FolderTokenizer.__new__(FolderTokenizer)
    tokenizer._tokenizer = Template()
    called = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"n": 1}'}}]}
    assert json.loads(bytes(await tokenizer.prompt(Chat((called,), ({"type": "function"},))))) == [
        [{"type": "function"}],
        [{"n": 1}],
    ]
    assert json.loads(bytes(await tokenizer.prompt(Chat(({"role": "user"},))))) == [None, []]
    with pytest.raises(Failure, match="chat template"):
        await tokenizer.prompt(Chat(({"tool_calls": [5]},)))


def rejects(**causes: int) -> dict[str, Reject]:
    return {f"{cause}{n}": Reject(cause, f"why {cause}") for cause, count in causes.items() for n in range(count)}


@pytest.mark.parametrize(
    ("causes", "prompts", "fails"),
    [
        ({}, 10, False),
        ({"failed": 3}, 10, False),
        ({"failed": 3, "no_reasoning": 1}, 10, True),
        ({"failed": 200}, 10_000, False),
        ({"failed": 201}, 10_000, True),
        ({"context": 9}, 10, False),
        ({"refused": 9}, 10, False),
    ],
)
def test_how_many_failures_a_run_is_completed_with(causes: dict[str, int], prompts: int, fails: bool) -> None:
    found = rejects(**causes)
    if not fails:
        said = unanswered(found, prompts, prompts - len(found))
        assert all(f"{count} {cause}" in said for cause, count in causes.items()) and bool(said) == bool(causes)
        return
    with pytest.raises(StageError, match="failed: why failed") as caught:
        unanswered(found, prompts, prompts - len(found))
    assert f"generate.max_samples to {prompts - len(found)}" in caught.value.remedy


def test_no_sample_at_all_fails_and_names_the_cause() -> None:
    with pytest.raises(StageError, match=r"None of the 2 prompts.*2 for context: why context") as caught:
        unanswered(rejects(context=2), 2, 0)
    assert "longer context" in caught.value.remedy and "max_samples" not in caught.value.remedy


def row(name: str) -> dict[str, Any]:
    return {"id": name, "prompt_ids": [1, 2], "output_ids": [3], "finish_reason": "stop", "model": "m"}


def test_store_remembers_what_is_done_and_what_may_be_asked_again(tmp_path: Path) -> None:
    store = SampleStore(tmp_path)
    store.add(row("a"))
    for name, cause in (("b", "context"), ("c", "failed"), ("d", "no_reasoning"), ("e", "empty_answer")):
        store.reject(name, Reject(cause, "x"))
    with pytest.raises(ValueError, match="already"):
        store.add(row("a"))
    assert store.counts()["rejected/failed"] == 1
    store.close()
    with (tmp_path / "samples.jsonl").open("a") as file:
        file.write('{"id": "torn"')
    again = SampleStore(tmp_path)
    assert again.repaired == len('{"id": "torn"')
    assert [again.done(name) for name in "abcde"] == [True, False, False, False, True]
    assert [again.settled(name) for name in "abcde"] == [True, True, False, False, True]
    assert again.rejected["c"] == Reject("failed", "x")
    again.add(row("c"))
    assert (again.counts()["samples"], again.counts()["rejected"], again.counts()["tokens"]) == (2, 3, 6)
    assert again.tally.bytes == (tmp_path / "samples.jsonl").stat().st_size
    again.close()
    assert (SampleStore(tmp_path).counts()["rejected"], SampleStore(tmp_path).model) == (3, "m")


def test_error_texts() -> None:
    assert error_text({"error": {"message": "a\n b"}}) == "a b"
    assert error_text({"message": "a"}) == error_text({"error": "a"}) == error_text("a") == "a"
    assert len(error_text("x" * 1000)) == 300


def test_failure_says_its_detail() -> None:
    assert str(Failure(Kind.DOWN, "no route")) == "no route"
