"""Acceptance length and the rate at each position: measured by deploy, simulated by train's validation until then."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from console.format import UNKNOWN, number
from console.snapshot import Curve, Snapshot
from console.widgets.ink import Line, Span, bar, fit, heading, width_of
from console.widgets.panel import Panel


@dataclass(frozen=True)
class Acceptance:
    """`length` counts the bonus token; `rates` are shares by position; `kind` says where they are from."""

    length: float | None
    rates: tuple[float | None, ...]
    kind: str
    speed: tuple[float, float] | None = None
    """Tokens per second (plain, drafted), when deploy measured both."""


def acceptance_of(snapshot: Snapshot) -> Acceptance | None:
    """What is known of it, or None."""
    deploy = next((stage for stage in snapshot.stages if stage.name == "deploy"), None)
    report = deploy.report if deploy is not None else {}
    measured = report.get("acceptance_length")
    if isinstance(measured, int | float):
        listed = report.get("rate_by_position")
        rates = tuple(_rate(value) for value in listed) if isinstance(listed, Sequence) else ()
        return Acceptance(float(measured), rates, "measured", _speed(report.get("tokens_per_s")))
    if snapshot.acceptance_length is None:
        return None
    return Acceptance(snapshot.acceptance_length, simulated_rates(snapshot.curves), "simulated")


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


def acceptance_lines(acceptance: Acceptance | None, width: int, height: int) -> list[Line]:
    """A heading with the length; the positions as bars, or in one row when there is only one."""
    if acceptance is None:
        return [heading("acceptance", [(UNKNOWN, "dim")], width)]
    info: list[Span] = [(number(acceptance.length, 2), "strong"), (f" {acceptance.kind}", "label")]
    out = [heading("acceptance", info, width)]
    room = height - 1
    if acceptance.speed is not None and room > len(acceptance.rates):
        plain, drafted = acceptance.speed
        speed: list[Span] = [
            (f"{drafted:,.0f} tok/s", "value"),
            (f" drafted, {plain:,.0f} plain ", "label"),
            (f"×{drafted / plain:.2f}", "value"),
        ]
        if width_of(speed) > width:
            speed[1:] = [(", ", "label"), (f"×{drafted / plain:.2f}", "value"), (" plain", "label")]
        out_speed = [fit(speed, width)]
        room -= 1
    else:
        out_speed = []
    if room <= 0 or not acceptance.rates:
        return out + out_speed
    if len(acceptance.rates) > room:
        row = _in_one_row(acceptance, 1)
        return [*out, fit(row if width_of(row) <= width else _in_one_row(acceptance, 0), width)]
    for position, share in enumerate(acceptance.rates):
        label = f" {position + 1} "
        size = min(60, max(0, width - len(label) - 7))
        begun: list[Span] = [(label, "label"), *bar(share, size, "series-3")]
        out.append(fit([*begun, (" ", ""), (_share_text(share), "value")], width))
    return out + out_speed


def _in_one_row(acceptance: Acceptance, digits: int) -> Line:
    cells: list[Span] = []
    for position, share in enumerate(acceptance.rates):
        label = f"{'  ' if position else ''}{position + 1} "
        cells += [(label, "label"), (_share_text(share, digits), "value")]
    return tuple(cells)


def _share_text(share: float | None, digits: int = 1) -> str:
    return UNKNOWN if share is None else f"{100 * share:.{digits}f}%"


class AcceptancePanel(Panel):
    """Shows acceptance_lines."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._acceptance: Acceptance | None = None

    def show(self, acceptance: Acceptance | None) -> None:
        if acceptance != self._acceptance:
            self._acceptance = acceptance
            self.redraw()

    def lines(self, width: int, height: int) -> list[Line]:
        return acceptance_lines(self._acceptance, width, height)
