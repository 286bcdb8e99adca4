"""What an engine's /metrics says about speculation: counters, compared as differences, and SGLang's gauge.

Exact names only: beside each `…_total` Prometheus clients expose `…_created` stamps, which a looser match would sum in.
vLLM's names are those of its v1/spec_decode/metrics.py; SGLang's (with --enable-metrics) those of sglang 0.5.23,
srt/observability/metrics_collector.py. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

PREFIX = "vllm:spec_decode_num_"
DRAFTS, ACCEPTED = f"{PREFIX}drafts_total", f"{PREFIX}accepted_tokens_total"
DRAFT_TOKENS, BY_POSITION = f"{PREFIX}draft_tokens_total", f"{PREFIX}accepted_tokens_per_pos_total"
VERIFY_CALLS = "sglang:spec_verify_calls_total"
"""Verifications of the requests that ended. Engines older than the counter only have the gauge."""
GENERATED, REQUESTS = "sglang:generation_tokens_total", "sglang:num_requests_total"
GAUGE = "sglang:spec_accept_length"
"""Mean acceptance length, bonus token included, over the last --decode-log-interval (40) decode steps; 0 until then
and in an engine that doesn't draft."""
_NAMES = frozenset({DRAFTS, ACCEPTED, DRAFT_TOKENS, BY_POSITION, VERIFY_CALLS, GENERATED, REQUESTS, GAUGE})
_SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+([0-9.eE+-]+|NaN|[+-]?Inf)(?:\s+-?\d+)?$")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class SpecCounters:
    """drafts: verifications; accepted_by_position[i]: of them, how many accepted the draft at position i; name: the
    counter that counts the verifications. draft_tokens 0 and no positions: the engine doesn't count them.
    """

    drafts: float = 0.0
    draft_tokens: float = 0.0
    accepted: float = 0.0
    accepted_by_position: tuple[float, ...] = ()
    name: str = DRAFTS

    def since(self, before: SpecCounters) -> SpecCounters | None:
        """What was added since `before`; None when a counter went back, because the engine was restarted."""
        places = max(len(self.accepted_by_position), len(before.accepted_by_position))
        now, then = (
            one.accepted_by_position + (0.0,) * (places - len(one.accepted_by_position)) for one in (self, before)
        )
        found = SpecCounters(
            self.drafts - before.drafts,
            self.draft_tokens - before.draft_tokens,
            self.accepted - before.accepted,
            tuple(new - old for new, old in zip(now, then)),
            self.name,
        )
        values = (found.drafts, found.draft_tokens, found.accepted, *found.accepted_by_position)
        return None if min(values) < 0 else found

    @property
    def acceptance_length(self) -> float | None:
        """1 + accepted drafts per verification, the bonus token included; None without a verification."""
        return 1.0 + self.accepted / self.drafts if self.drafts else None

    @property
    def rate_by_position(self) -> list[float]:
        """Share of verifications that accepted the draft at each position (not conditional on the one before)."""
        return [count / self.drafts for count in self.accepted_by_position] if self.drafts else []


@dataclass(frozen=True)
class Metrics:
    """One reading. counters: summed over engines, None where it exposes none; gauge: SGLang's acceptance length, the
    mean over engines that drafted, 0 before any did, None where it isn't exposed.
    """

    counters: SpecCounters | None = None
    gauge: float | None = None


def parse_metrics(text: str) -> Metrics:
    """Reads a Prometheus text."""
    sums: dict[str, float] = {}
    positions: dict[int, float] = {}
    gauges: list[float] = []
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match is None or match[1] not in _NAMES:
            continue
        value = float(match[3])
        if match[1] == GAUGE:
            gauges.append(value)
        elif match[1] == BY_POSITION:
            position = dict(_LABEL.findall(match[2] or "")).get("position", "")
            if position.isdigit():
                positions[int(position)] = positions.get(int(position), 0.0) + value
        else:
            sums[match[1]] = sums.get(match[1], 0.0) + value
    drafting = [value for value in gauges if value > 0]
    gauge = sum(drafting) / len(drafting) if drafting else (0.0 if gauges else None)
    return Metrics(_counters(sums, positions), gauge)


def _counters(sums: Mapping[str, float], positions: Mapping[int, float]) -> SpecCounters | None:
    if DRAFTS in sums:
        by_position = tuple(positions.get(place, 0.0) for place in range(max(positions, default=-1) + 1))
        return SpecCounters(sums[DRAFTS], sums.get(DRAFT_TOKENS, 0.0), sums.get(ACCEPTED, 0.0), by_position)
    if VERIFY_CALLS in sums:
        # An answer's first token comes from its prompt's pass, every other from a verification, which gives the
        # accepted drafts and one token more. What an answer's end cuts off its last verification is missing.
        accepted = sums.get(GENERATED, 0.0) - sums.get(REQUESTS, 0.0) - sums[VERIFY_CALLS]
        return SpecCounters(sums[VERIFY_CALLS], accepted=accepted, name=VERIFY_CALLS)
    return None
