"""What deploy asks of the service it measures: that its command tells an engine with a drafter from one without.

Imports pipeline.command, config and failure.
"""

from __future__ import annotations

from pipeline.command import CLOSE, OPEN, left_over
from pipeline.config import ServicePlan
from pipeline.failure import StageError

EXAMPLE = """'--speculative-config', '{"method":"eagle3","model":"{drafter}","num_speculative_tokens":{k}}'"""


def check_service(name: str, service: ServicePlan) -> None:
    """Raises StageError when the phases with and without the drafter would start alike."""
    if not any("{drafter}" in word for word in service.command):
        raise StageError(
            f"The command of service {name} has no place for the drafter",
            f"Write {{drafter}} into it, such as {EXAMPLE}",
        )
    if left_over(service.command):
        raise StageError(
            f"Without the drafter service {name} would still be given {' '.join(left_over(service.command))}",
            f"Put all words for drafting between {OPEN} and {CLOSE} in its command",
        )


def takes_k(service: ServicePlan) -> bool:
    """Whether deploy.k reaches the service."""
    return any(place in word for word in service.command for place in ("{k}", "{k+1}"))
