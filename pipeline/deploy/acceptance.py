"""What a measurement says about acceptance, by the best source that the engine had. Imports this room and failure."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.deploy.client import Measurement
from pipeline.deploy.counters import GAUGE, VERIFY_CALLS
from pipeline.failure import StageError

UNKNOWN = (
    "unknown: the engine's /metrics tells nothing about speculation (SGLang needs --enable-metrics, vLLM must run "
    "without --disable-log-stats)"
)


@dataclass(frozen=True)
class Acceptance:
    """length: acceptance length, None when unknown; rates: by position, empty when the engine doesn't tell; source:
    the metric it is from, or why it is unknown; verifications and accepted drafts; k: drafted tokens as the engine
    counted them. None: not counted.
    """

    length: float | None
    rates: list[float]
    source: str
    verifications: float | None = None
    accepted: float | None = None
    k: int | None = None


def acceptance_of(drafted: Measurement) -> Acceptance:
    """The acceptance while an engine with the drafter was measured. Raises StageError when it counts verifications
    and made none: then it ran without the drafter.
    """
    counters = drafted.counters
    if counters is None:
        if drafted.gauge:
            return Acceptance(drafted.gauge, [], f"{GAUGE}, a mean of readings while it answered")
        return Acceptance(None, [], UNKNOWN)
    if not counters.drafts:
        raise StageError(
            f"The engine ran with the drafter, but its {counters.name} did not move",
            "Check in its log that the drafter was loaded, then resume deploy",
        )
    proposed = round(counters.draft_tokens / counters.drafts) or None
    source = counters.name
    if source == VERIFY_CALLS:
        source += ", against the tokens of the answers"
    length = counters.acceptance_length
    return Acceptance(length, counters.rate_by_position, source, counters.drafts, counters.accepted, proposed)
