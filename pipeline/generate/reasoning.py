"""Whether answers must carry reasoning, and what to say when they don't. Imports jinja2 when a template is rendered.

A server without its reasoning parser returns the reasoning as content, or drops it; the answers look fine and are
useless for training. So it is noticed within the first samples.
"""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from typing import Any

from pipeline.stage import StageError

OPENED, CLOSED = "<think>", "</think>"
_WINDOW, _LIMIT = 20, 10


def expected(setting: str, planned: bool | None, folder: Path | None) -> bool | None:
    """Whether an answer must have reasoning: generate.expect_reasoning, else the plan's verifier.reasoning, else True
    when the chat template in the verifier's folder opens <think> for the answer. None: unknown."""
    if setting != "auto":
        return setting == "yes"
    if planned is not None:
        return planned
    return True if folder is not None and template_opens_reasoning(folder) else None


def template_opens_reasoning(folder: Path) -> bool:
    """Whether the generation prompt that the folder's chat template makes ends in <think>."""
    template = chat_template(folder)
    if template is None or OPENED not in template:
        return False
    try:
        return _render(template).rstrip().endswith(OPENED)
    except Exception:
        # templates call whatever their authors' renderer offers; the text of one that can't be rendered here decides
        behind = template.rpartition("add_generation_prompt")[2]
        return OPENED in behind and CLOSED not in behind


def chat_template(folder: Path) -> str | None:
    """The chat template of a verifier's folder: chat_template.jinja, or the one in tokenizer_config.json."""
    try:
        return (folder / "chat_template.jinja").read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        pass
    try:
        found = json.loads((folder / "tokenizer_config.json").read_text("utf-8")).get("chat_template")
    except (OSError, ValueError, AttributeError):
        return None
    if isinstance(found, list):
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _render(template: str) -> str:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Hello"}]
    blank = {"bos_token": "", "eos_token": "", "tools": None}
    return environment.from_string(template).render(messages=messages, add_generation_prompt=True, **blank)


class ReasoningWatch:
    """Raises StageError once half of the last 20 answers came without the reasoning that they should have."""

    def __init__(self) -> None:
        self._missing: deque[bool] = deque(maxlen=_WINDOW)
        self._unsplit = 0

    def note(self, missing: bool, content: str) -> None:
        self._missing.append(missing)
        self._unsplit += missing and CLOSED in content
        if sum(self._missing) < _LIMIT:
            return
        seen = (
            f"the content holds {CLOSED}, so the model reasoned and the server did not split it off"
            if self._unsplit
            else "neither `reasoning` nor `reasoning_content` was filled"
        )
        raise StageError(
            f"{sum(self._missing)} of the last {len(self._missing)} answers came without reasoning: {seen}. "
            "Likely cause: the server runs without its reasoning parser",
            "Start it with --reasoning-parser NAME (vLLM and SGLang: kimi_k2, qwen3, deepseek_r1, …; the bundled "
            "engine: kimi), check that thinking isn't switched off, then resume. If the verifier doesn't reason, set "
            "generate.expect_reasoning to no",
        )
