"""A stage's counts as a person would say them. A count that isn't known here is said by its name. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from console import format as shown

Counts = Mapping[str, float]

_QUIET_AT_0 = frozenset({"rejected", "in_flight"})
_INSIDE = {
    "sequences_total": "sequences",
    "prompts_total": "prompts",
    "prompt_tokens": "tokens",
    "output_tokens": "tokens",
}
"""Counts that are said with another one, where that is there."""
_NAMES = {"accepted": "accepted drafts", "distinct": "different", "validation": "for validation"}


def counts_text(counts: Counts) -> str:
    """`720 samples, 67,235 tokens (22,407 of prompts, 44,828 of answers)`; `—` without counts."""
    told = [_said(name, value, counts) for name, value in counts.items() if not _with_another(name, value, counts)]
    return ", ".join(told) or shown.UNKNOWN


def many(value: float | None, names: str) -> str:
    """`1 shard`, `2 shards`: `names` is the plural."""
    one = value == 1 and names.endswith("s")
    return f"{_value(value)} {names[:-1] if one else names}"


def _with_another(name: str, value: float, counts: Counts) -> bool:
    if name.startswith("rejected/"):
        return "rejected" in counts
    if name == "tokens" and "coverage" in counts:
        return True
    return (value == 0 and name in _QUIET_AT_0) or _INSIDE.get(name) in counts


def _said(name: str, value: float, counts: Counts) -> str:
    if counts.get(f"{name}_total", value) != value:
        return f"{_value(value)} of {many(counts[f'{name}_total'], name)}"
    if name == "tokens":
        parts = {"of prompts": counts.get("prompt_tokens"), "of answers": counts.get("output_tokens")}
        return many(value, "tokens") + _inside(f"{_value(part)} {what}" for what, part in parts.items() if part)
    if name == "rejected":
        causes = {key.partition("/")[2]: count for key, count in counts.items() if key.startswith("rejected/")}
        return many(value, "rejected") + _inside(
            f"{_value(n)} {cause.replace('_', ' ')}" for cause, n in causes.items()
        )
    if name == "size":
        return f"draft vocabulary of {many(value, 'tokens')}"
    if name == "coverage":
        of = f" of {many(counts['tokens'], 'generated tokens')}" if "tokens" in counts else ""
        return f"coverage {shown.percent(value, 1.0)}{of}"
    if name == "bytes":
        return shown.si_bytes(value)
    return many(value, _NAMES.get(name, name.replace("_", " ")))


def _inside(parts: Iterable[str]) -> str:
    text = ", ".join(parts)
    return f" ({text})" if text else ""


def _value(value: float | None) -> str:
    return shown.full_count(value) if value is None or float(value).is_integer() else shown.number(value)
