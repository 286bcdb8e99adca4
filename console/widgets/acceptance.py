"""Acceptance length and the rate at each position, as console.acceptance finds them."""

from __future__ import annotations

from console.acceptance import OLDER, Acceptance
from console.format import UNKNOWN, number
from console.widgets.ink import Line, Span, bar, fit, heading, width_of
from console.widgets.panel import Panel


def acceptance_lines(acceptance: Acceptance | None, width: int, height: int) -> list[Line]:
    """A heading with the length; the positions as bars, or in one row when there is only one."""
    if acceptance is None:
        return [heading("acceptance", [(UNKNOWN, "dim")], width)]
    length: Span = (number(acceptance.length, 2), "strong" if acceptance.current else "dim")
    info: list[Span] = [length, (f" {acceptance.kind}", "label" if acceptance.current else "warn")]
    if acceptance.kind == OLDER and width < 32:
        info[1] = (" older one", "warn")
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
