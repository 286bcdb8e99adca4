"""The tools of a row, as the API wants them: a list of {"type": "function", "function": {"name": …}}."""

from __future__ import annotations

import json
from typing import Any

from pipeline.prompts.errors import PromptError


def read_tools(value: Any) -> list[dict[str, Any]]:
    """The tools of a row; none for null, "" and []. Raises PromptError for what is no list of tools.

    ShareGPT sets write the list as a text, and a tool as its bare function.
    """
    if value is None or value == "":
        return []
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise PromptError(f"`tools` is a text that is no JSON ({error})") from None
    if not isinstance(value, list):
        raise PromptError("`tools` must be a list of tools")
    return [_tool(one, number) for number, one in enumerate(value, start=1)]


def _tool(value: Any, number: int) -> dict[str, Any]:
    if isinstance(value, dict) and isinstance(value.get("name"), str) and "function" not in value:
        value = {"type": "function", "function": value}
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise PromptError(f"tool {number} needs a `function` with a `name`")
    return {"type": "function", **value}
