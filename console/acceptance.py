"""The acceptance length on show and where it is from: measured by deploy, simulated by train's validation until then.

A measurement stays true of the drafter that was measured. Once there is another one, it gives way to what is known of
that, and until anything is, it says whose it is. Pure, standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from console.snapshot import Curve, Snapshot, StageView

OLDER = "older drafter"


@dataclass(frozen=True)
class Acceptance:
    """`length` counts the bonus token; `rates` are shares by position.

    `kind` says where they are from: measured, simulated, OLDER (measured of the one before) or STALE (measured, but
    the plan asks for something else now).
    """

    length: float | None
    rates: tuple[float | None, ...]
    kind: str
    speed: tuple[float, float] | None = None
    """Tokens per second (plain, drafted), when deploy measured both."""

    @property
    def current(self) -> bool:
        return self.kind in ("measured", "simulated")


def acceptance_of(snapshot: Snapshot) -> Acceptance | None:
    """What is known of it, or None."""
    deploy = next((stage for stage in snapshot.stages if stage.name == "deploy"), None)
    report = deploy.report if deploy is not None else {}
    measured = report.get("acceptance_length")
    older = deploy is not None and of_older_drafter(deploy)
    if isinstance(measured, int | float) and not (older and snapshot.acceptance_length is not None):
        listed = report.get("rate_by_position")
        rates = tuple(_rate(value) for value in listed) if isinstance(listed, Sequence) else ()
        kind = OLDER if older else "STALE" if deploy is not None and deploy.undecided else "measured"
        return Acceptance(float(measured), rates, kind, _speed(report.get("tokens_per_s")))
    if snapshot.acceptance_length is None:
        return None
    return Acceptance(snapshot.acceptance_length, simulated_rates(snapshot.curves), "simulated")


def of_older_drafter(deploy: StageView) -> bool:
    """Whether what deploy has made is of another drafter than the one that train has made since, or is making."""
    reason = deploy.stale_reason
    return deploy.stale and reason.startswith("its input train ") and not reason.startswith("its input train is stale")


def _rate(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _speed(value: object) -> tuple[float, float] | None:
    if not isinstance(value, dict):
        return None
    plain, drafted = _rate(value.get("plain")), _rate(value.get("drafted"))
    return (plain, drafted) if plain and drafted else None


def simulated_rates(curves: Sequence[Curve]) -> tuple[float | None, ...]:
    """The newest rate of each position in validation's serving walk: val/rate_0, val/rate_1, …"""
    found: dict[int, float | None] = {}
    for curve in curves:
        name, _, position = curve.name.rpartition("_")
        if name == "val/rate" and position.isdecimal() and len(position) <= 2:
            known = [value for value in curve.values if value is not None and math.isfinite(value)]
            found[int(position)] = known[-1] if known else None
    return tuple(found.get(position) for position in range(max(found) + 1)) if found else ()
