"""An engine's speculative counters, read from its /metrics and compared as differences.

Exact names only: beside each `…_total` Prometheus clients expose `…_created` stamps, which a looser match would sum in
(vLLM's own names, v1/spec_decode/metrics.py). Standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PREFIX = "vllm:spec_decode_num_"
DRAFTS, ACCEPTED = f"{PREFIX}drafts_total", f"{PREFIX}accepted_tokens_total"
DRAFT_TOKENS, BY_POSITION = f"{PREFIX}draft_tokens_total", f"{PREFIX}accepted_tokens_per_pos_total"
_SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+([0-9.eE+-]+|NaN|[+-]?Inf)(?:\s+-?\d+)?$")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class SpecCounters:
    """drafts: verifications; accepted_by_position[i]: of them, how many accepted the draft at position i."""

    drafts: float = 0.0
    draft_tokens: float = 0.0
    accepted: float = 0.0
    accepted_by_position: tuple[float, ...] = ()

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


def parse_counters(text: str) -> SpecCounters | None:
    """The counters in a Prometheus text, summed over engines; None when the engine exposes none."""
    sums: dict[str, float] = {}
    positions: dict[int, float] = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match is None or match[1] not in (DRAFTS, ACCEPTED, DRAFT_TOKENS, BY_POSITION):
            continue
        value = float(match[3])
        if match[1] == BY_POSITION:
            position = dict(_LABEL.findall(match[2] or "")).get("position", "")
            if position.isdigit():
                positions[int(position)] = positions.get(int(position), 0.0) + value
        else:
            sums[match[1]] = sums.get(match[1], 0.0) + value
    if DRAFTS not in sums:
        return None
    by_position = tuple(positions.get(place, 0.0) for place in range(max(positions, default=-1) + 1))
    return SpecCounters(sums[DRAFTS], sums.get(DRAFT_TOKENS, 0.0), sums.get(ACCEPTED, 0.0), by_position)
