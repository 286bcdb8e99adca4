"""What becomes of a run whose prompts did not all give a sample, once each was asked as often as makes sense. Pure.

A user wants the pipeline to go on when a handful of prompts keep failing, and to be told; and wants it to stop, before
hours of extract and train, when so many fail that something is wrong with the server. So a few (FEW, or SHARE of the
prompts where that is more) are passed over with a warning, and more end the stage: it can be resumed, which asks them
again, or told to do with the samples there are. Prompts that can't be answered as they are (too long for the context,
refused, an answer that breaks off for its own reasons) are counted in the warning and never end the stage: asking again
would not help, and the watch over the last hundred prompts has stopped it if they are the rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from pipeline.generate.judge import SETTLED, Reject, remedy
from pipeline.stage import StageError

FEW, SHARE = 3, 0.02


def unanswered(rejects: Mapping[str, Reject], prompts: int, samples: int) -> str:
    """The sentence about prompts without a sample, by cause; "" when there are none.

    `rejects`: the last one of each prompt that has no sample, by id. For a run that has not reached its target. Raises
    StageError when there is no sample at all, or when too many prompts may have failed for the server's sake.
    """
    causes = causes_of(rejects)
    listed = ", ".join(f"{count} {cause}" for cause, count in causes.items())
    failing = {cause: count for cause, count in causes.items() if cause not in SETTLED}
    failed = sum(failing.values())
    if not samples:
        raise StageError(f"None of the {prompts} prompts gave a sample ({_most(rejects, causes)})", _remedy(causes))
    if failed > max(FEW, SHARE * prompts):
        raise StageError(
            f"{failed} of the {prompts} prompts failed although they were asked twice ({_most(rejects, failing)}); "
            f"without a sample are {listed} (rejects.jsonl)",
            f"{_remedy(failing)}; or set generate.max_samples to {samples} to do with those there are, and resume",
        )
    if not rejects:
        return ""
    return (
        f"{len(rejects)} of the {prompts} prompts gave no sample: {listed} (rejects.jsonl). "
        "A resume with another generate.max_samples asks them again"
    )


def causes_of(rejects: Mapping[str, Reject]) -> dict[str, int]:
    """How many rejects each cause has, the most frequent first."""
    return dict(Counter(reject.cause for reject in rejects.values()).most_common())


def _most(rejects: Mapping[str, Reject], causes: Mapping[str, int]) -> str:
    """The most frequent of the causes, with an example's detail."""
    cause = next(iter(causes), "")
    detail = next((reject.detail for reject in rejects.values() if reject.cause == cause), "")
    return f"{causes[cause]} for {cause}: {detail}" if cause else "no reject is on record"


def _remedy(causes: Mapping[str, int]) -> str:
    return remedy(next(iter(causes), ""))
