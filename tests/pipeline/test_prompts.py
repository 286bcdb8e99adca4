"""Prompt files: the three forms, stable ids, and what broken lines get."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.prompts import PromptError, index_prompts, parse_line


def write(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(data)
    return path


def test_three_forms_become_messages() -> None:
    plain = parse_line(b'{"id": "a", "prompt": "Hi"}')
    assert plain is not None and (plain.id, plain.messages) == ("a", ({"role": "user", "content": "Hi"},))
    roles = [("system", "S"), ("user", "Q"), ("assistant", "old")]
    chat = parse_line(json.dumps({"id": 7, "messages": [{"role": r, "content": c} for r, c in roles]}).encode())
    assert chat is not None and chat.id == "7"
    assert [m["role"] for m in chat.messages] == ["system", "user"]
    turns = [("system", "S"), ("human", "Q1"), ("gpt", "A1"), ("human", "Q2"), ("gpt", "A2")]
    shared = parse_line(json.dumps({"conversations": [{"from": f, "value": v} for f, v in turns]}).encode())
    assert shared is not None
    assert [(m["role"], m["content"]) for m in shared.messages] == [
        ("system", "S"),
        ("user", "Q1"),
        ("assistant", "A1"),
        ("user", "Q2"),
    ]


def test_id_without_one_is_a_hash_of_the_content_only() -> None:
    one = parse_line(b'{"prompt": "Same", "source": "x"}')
    other = parse_line(b'  {"messages": [{"content": "Same", "role": "user"}]}\r\n')
    third = parse_line(b'{"prompt": "Other"}')
    assert one is not None and other is not None and third is not None
    assert one.id == other.id != third.id


def test_bom_crlf_blank_lines_and_no_final_newline(tmp_path: Path) -> None:
    index = index_prompts(write(tmp_path, b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n{"prompt": "b"}\r\n{"prompt": "c"}'))
    reader = index.open()
    assert [reader.read(i).messages[0]["content"] for i in (2, 0, 1)] == ["c", "a", "b"]
    assert index.lines == (1, 3, 4)
    assert not index.bad
    reader.close()


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (b'{"prompt": "torn', "not JSON"),
        (b'{"prompt": "\xff"}', "not UTF-8"),
        (b"[1, 2]", "JSON object"),
        (b'{"text": "x"}', "none of"),
        (b'{"prompt": "  "}', "not empty"),
        (b'{"prompt": 5}', "not empty"),
        (b'{"messages": []}', "not empty"),
        (b'{"messages": [{"role": "robot", "content": "x"}]}', "role"),
        (b'{"messages": [{"role": "user"}]}', "content"),
        (b'{"messages": [{"role": "assistant", "content": "x"}]}', "no message from a user"),
        (b'{"messages": [{"role": "user", "content": "x"}, {"role": "system", "content": "y"}]}', "nothing to answer"),
        (b'{"conversations": [{"from": "alien", "value": "x"}]}', "from"),
        (b'{"conversations": ["x"]}', "from"),
        (b'{"id": {"a": 1}, "prompt": "x"}', "`id`"),
        (b'{"id": true, "prompt": "x"}', "`id`"),
        (b'{"id": "a\\nb", "prompt": "x"}', "printable"),
        (b'{"prompt": "\\ud800"}', "surrogate"),
        (b"[" * 100_000, "not JSON"),
        (b'{"prompt": "x", "tools": {"name": "f"}}', "list of tools"),
        (b'{"prompt": "x", "tools": "[oops"}', "`tools` is a text that is no JSON"),
        (b'{"prompt": "x", "tools": [{"type": "function"}]}', "tool 1 needs"),
        (b'{"prompt": "x", "tools": [{"name": "f"}, 5]}', "tool 2 needs"),
    ],
)
def test_broken_line_is_named_and_the_good_ones_run(tmp_path: Path, line: bytes, cause: str) -> None:
    index = index_prompts(write(tmp_path, b'{"prompt": "first"}\n' + line + b'\n{"prompt": "third"}\n'))
    assert len(index) == 2
    assert [bad.line for bad in index.bad] == [2]
    assert cause in index.bad[0].cause


TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def test_tools_are_kept_and_shape_the_id() -> None:
    bare = parse_line(b'{"prompt": "x"}')
    assert bare is not None and bare.tools == () and bare.id == "h-7c5139ff349b5009ca51"
    for empty in ("null", "[]", '""'):
        same = parse_line(b'{"prompt": "x", "tools": ' + empty.encode() + b"}")
        assert same == bare
    forms = [[TOOL], [TOOL["function"]], json.dumps([TOOL]), json.dumps([TOOL["function"]])]
    found = [parse_line(json.dumps({"prompt": "x", "tools": form}).encode()) for form in forms]
    assert all(one is not None and one.tools == (TOOL,) and one.messages == bare.messages for one in found)
    assert len({one.id for one in found if one is not None} | {bare.id}) == 2
    named = parse_line(json.dumps({"id": "mine", "prompt": "x", "tools": [TOOL]}).encode())
    assert named is not None and named.id == "mine"


def turns(*pairs: tuple[str, object]) -> bytes:
    values = [(kind, value if isinstance(value, str) else json.dumps(value)) for kind, value in pairs]
    return json.dumps({"conversations": [{"from": kind, "value": value} for kind, value in values]}).encode()


def test_sharegpt_function_calls_become_tool_calls() -> None:
    look, find = {"name": "look", "arguments": {"at": "ü"}}, {"name": "find", "arguments": '{"n": 1}'}
    prompt = parse_line(
        turns(
            ("human", "Q"),
            ("function_call", look),
            ("observation", "seen"),
            ("function_call", [find, {"name": "stop"}]),
            ("observation", "one"),
            ("tool", "two"),
            ("gpt", "so"),
            ("human", "and?"),
            ("function_call", look),
        )
    )
    assert prompt is not None
    assert [message["role"] for message in prompt.messages] == [
        *("user", "assistant", "tool", "assistant", "tool", "tool", "assistant", "user"),
    ]
    calls = [call for message in prompt.messages for call in message.get("tool_calls", [])]
    assert [call["id"] for call in calls] == ["functions.look:0", "functions.find:1", "functions.stop:2"]
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [{"at": "ü"}, {"n": 1}, {}]
    results = [message for message in prompt.messages if message["role"] == "tool"]
    assert [message["tool_call_id"] for message in results] == [call["id"] for call in calls]
    assert [message["content"] for message in results] == ["seen", "one", "two"]


def test_sharegpt_observation_of_a_call_in_the_text_needs_no_id() -> None:
    prompt = parse_line(turns(("human", "Q"), ("gpt", "<functioncall> look"), ("observation", "seen")))
    assert prompt is not None and prompt.messages[-1] == {"role": "tool", "content": "seen"}


CALL = ("function_call", {"name": "f", "arguments": {}})


@pytest.mark.parametrize(
    ("pairs", "cause"),
    [
        ([("human", "Q"), ("function_call", "f(1)"), ("observation", "x")], "turn 2: the function call is not JSON"),
        ([("human", "Q"), ("function_call", {"arguments": {}}), ("observation", "x")], "turn 2: a function call needs"),
        ([("human", "Q"), ("function_call", "[]"), ("observation", "x")], "turn 2 calls no function"),
        (
            [("human", "Q"), ("function_call", {"name": "f", "arguments": "{"}), ("human", "x")],
            "arguments of f are not",
        ),
        ([("human", "Q"), ("function_call", {"name": "f", "arguments": [1]})], "arguments of f are no"),
        ([("human", "Q"), CALL, ("human", "and?")], "turn 3 is no observation, but turn 2"),
        ([("human", "Q"), CALL, ("observation", "x"), ("observation", "y")], "turn 4 is an observation too many"),
        ([("human", "Q"), ("function_call", [CALL[1], CALL[1]]), ("observation", "x")], "turn 2 calls more functions"),
    ],
)
def test_sharegpt_calls_that_cannot_be_mapped_leave_their_line_out(
    tmp_path: Path, pairs: list[tuple[str, object]], cause: str
) -> None:
    index = index_prompts(write(tmp_path, b'{"prompt": "first"}\n' + turns(*pairs) + b'\n{"prompt": "third"}\n'))
    assert len(index) == 2
    assert [bad.line for bad in index.bad] == [2]
    assert cause in index.bad[0].cause


def test_duplicate_ids_keep_the_first_and_name_both_lines(tmp_path: Path) -> None:
    index = index_prompts(
        write(tmp_path, b'{"id": "a", "prompt": "1"}\n{"id": "b", "prompt": "2"}\n{"id": "a", "prompt": "3"}\n')
    )
    assert index.ids == ("a", "b")
    assert index.duplicates[0].line == 3 and "line 1" in index.duplicates[0].cause


@pytest.mark.parametrize(
    ("data", "words"), [(b"", "no usable prompt"), (b"nonsense\n", "line 1"), ("a".encode("utf-16"), "UTF-16")]
)
def test_file_without_a_prompt_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    with pytest.raises(PromptError, match=words) as caught:
        index_prompts(write(tmp_path, data))
    assert caught.value.remedy


def test_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="no prompt file") as caught:
        index_prompts(tmp_path / "none.jsonl")
    assert "generate.prompts" in caught.value.remedy
    with pytest.raises(PromptError, match="can't be read"):
        index_prompts(tmp_path)


def test_file_that_changes_under_the_reader_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path, b'{"prompt": "a"}\n{"prompt": "b"}\n')
    index = index_prompts(path)
    path.write_bytes(b'{"prompt": "x"}\n{"prompt": "y"}\n')
    with pytest.raises(PromptError, match="changed"):
        index.open().read(1)
