"""Whether an answer becomes a sample, and when so many don't that going on is pointless. Pure; imports this folder."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import Any

from pipeline.generate.answer import Answer
from pipeline.generate.question import Chat
from pipeline.generate.reasoning import CLOSED
from pipeline.stage import StageError

COMPLETE = {"stop", "length", "tool_calls"}
"""Finish reasons of a whole answer; `length` is one that max_tokens or the context cut."""
FINAL = {"finish_reason", "empty_answer"}
"""Causes that lie in the prompt: it is never asked again."""
SETTLED = FINAL | {"context", "refused"}
"""And those that lie between prompt and server: asking it again as it is gives the same, but a resume may find it with
a longer context or mended. The other causes lie in the server, and may be gone at the second try."""
_WINDOW, _EARLIEST, _ABSURD = 100, 20, 0.5


@dataclass(frozen=True)
class Reject:
    """A prompt that gave no sample: a cause to count and a detail to read."""

    cause: str
    detail: str


def judge(answer: Answer, *, reasoning: bool | None, vocab_size: int | None) -> Reject | None:
    """None for an answer that becomes a sample.

    `reasoning`: whether it must have some (None: unknown); `vocab_size`: the verifier's, where its folder is at hand.
    """
    if answer.finish_reason not in COMPLETE:
        return Reject("finish_reason", f"it ended with {answer.finish_reason!r}")
    if lacks_reasoning(answer, reasoning):
        return Reject("no_reasoning", "`reasoning` and `reasoning_content` are empty")
    if not answer.completion_tokens or not (answer.content or answer.reasoning or answer.finish_reason == "tool_calls"):
        return Reject("empty_answer", f"{answer.completion_tokens} tokens, no text")
    if answer.prompt_ids is None or answer.output_ids is None:
        return Reject("no_token_ids", "the server gave no token ids")
    for name, ids, count in (
        ("prompt", answer.prompt_ids, answer.prompt_tokens),
        ("answer", answer.output_ids, answer.completion_tokens),
    ):
        if len(ids) != count:
            return Reject("token_count", f"{len(ids)} ids of the {name}, but its usage says {count} tokens")
    if vocab_size is not None and max((*answer.prompt_ids, *answer.output_ids)) >= vocab_size:
        return Reject(
            "vocabulary", f"a token id beyond the verifier's vocabulary of {vocab_size}: another model answers"
        )
    return None


def lacks_reasoning(answer: Answer, reasoning: bool | None) -> bool:
    """Whether reasoning should be there and isn't. Where nothing is known, a </think> in the content gives it away."""
    if reasoning is False or (answer.reasoning or "").strip():
        return False
    return bool(reasoning) or CLOSED in answer.content


def sample_row(prompt_id: str, chat: Chat, answer: Answer, *, ids_from: str, model: str) -> dict[str, Any]:
    """The row of samples.jsonl."""
    return {
        "id": prompt_id,
        "messages": list(chat.messages),
        **({"tools": list(chat.tools)} if chat.tools else {}),
        "reasoning": answer.reasoning,
        "content": answer.content,
        "prompt_ids": list(answer.prompt_ids or ()),
        "output_ids": list(answer.output_ids or ()),
        "finish_reason": answer.finish_reason,
        "ids_from": ids_from,
        "model": answer.model or model,
        "usage": {"prompt_tokens": answer.prompt_tokens, "completion_tokens": answer.completion_tokens},
    }


class RejectWatch:
    """Raises StageError once half of the last 100 prompts (20 at the least) were rejected."""

    def __init__(self) -> None:
        self._recent: deque[Reject | None] = deque(maxlen=_WINDOW)

    def note(self, reject: Reject | None) -> None:
        self._recent.append(reject)
        rejects = [one for one in self._recent if one is not None]
        if len(self._recent) < _EARLIEST or len(rejects) < _ABSURD * len(self._recent):
            return
        cause, count = Counter(one.cause for one in rejects).most_common(1)[0]
        detail = next(one.detail for one in rejects if one.cause == cause)
        raise StageError(
            f"{len(rejects)} of the last {len(self._recent)} prompts were rejected, {count} for {cause}: {detail}",
            remedy(cause),
        )


def remedy(cause: str) -> str:
    """What to do about many rejects of that cause, as a sentence part."""
    return _REMEDIES.get(cause, "Look at rejects.jsonl and at the server's log, then resume")


_IDS = "Use a server that knows return_token_ids (vLLM 0.10.2, SGLang 0.5.23, or later), then resume"
_REMEDIES = {
    "context": "Start the server with a longer context (vLLM --max-model-len, SGLang --context-length), then resume. "
    "Answers are shortened to what the context leaves, so a lower generate.max_tokens, which needs a restart, helps no "
    "prompt that fills it alone",
    "refused": "Mend what the server complains about (its log says more), then resume",
    "no_token_ids": _IDS,
    "round_trip": _IDS,
    "vocabulary": "Correct verifier.path or generate.endpoint, then resume",
    "failed": "Look at the server's log, then resume",
}
