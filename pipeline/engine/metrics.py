"""Counters of the engine and their Prometheus text, under vLLM's names. Standard library only.

Names and label sets: vllm/v1/metrics/loggers.py and vllm/v1/spec_decode/metrics.py of vLLM 0.32.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


class DraftCounters(Protocol):
    """What a speculative decoder counts."""

    drafts: int
    draft_tokens: int
    accepted: int
    accepted_per_pos: list[int]


@dataclass
class Metrics:
    """Totals since the start. Written by one thread."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    running: int = 0
    waiting: int = 0
    finished: Counter[str] = field(default_factory=Counter)


def prometheus(metrics: Metrics, model: str, drafted: DraftCounters | None) -> str:
    """The text of /metrics; vllm:spec_decode_* only where a drafter is loaded."""
    quoted = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    labels = f'engine="0",model_name="{quoted}"'
    lines: list[str] = []

    def add(name: str, kind: str, help_text: str, values: Sequence[tuple[str, float]]) -> None:
        lines.append(f"# HELP {name} {help_text}")
        lines.append(f"# TYPE {name} {kind}")
        suffix = "_total" if kind == "counter" else ""
        lines.extend(f"{name}{suffix}{{{labels}{extra}}} {float(value)}" for extra, value in values)

    add("vllm:num_requests_running", "gauge", "Number of requests in the batch.", [("", metrics.running)])
    add("vllm:num_requests_waiting", "gauge", "Number of requests waiting.", [("", metrics.waiting)])
    add("vllm:prompt_tokens", "counter", "Number of prompt tokens read.", [("", metrics.prompt_tokens)])
    add("vllm:generation_tokens", "counter", "Number of tokens generated.", [("", metrics.generation_tokens)])
    reasons = sorted({"stop", "length", "abort"} | set(metrics.finished))
    add(
        "vllm:request_success",
        "counter",
        "Number of requests ended.",
        [(f',finished_reason="{reason}"', metrics.finished[reason]) for reason in reasons],
    )
    if drafted is not None:
        add("vllm:spec_decode_num_drafts", "counter", "Number of verifications.", [("", drafted.drafts)])
        add("vllm:spec_decode_num_draft_tokens", "counter", "Number of draft tokens.", [("", drafted.draft_tokens)])
        add("vllm:spec_decode_num_accepted_tokens", "counter", "Number of accepted tokens.", [("", drafted.accepted)])
        add(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "counter",
            "Accepted tokens per draft position.",
            [(f',position="{position}"', value) for position, value in enumerate(drafted.accepted_per_pos)],
        )
    return "\n".join(lines) + "\n"
