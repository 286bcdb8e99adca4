"""The stage rail: every stage with its state in a glyph and a word, its progress, and how long it still takes."""

from __future__ import annotations

from collections.abc import Sequence

from console.format import duration, percent
from console.snapshot import StageView
from console.widgets.ink import Line, Span, bar, fit, spread, width_of
from console.widgets.looks import ACTIVE, active_stage, share_of, stage_look, stop_clock
from console.widgets.panel import Panel

_ORDER = ("generate", "extract", "vocab", "train", "deploy")


def rail_lines(
    stages: Sequence[StageView], through: str, width: int, height: int, now_host: float | None = None
) -> list[Line]:
    """One line (names with glyphs), two (states and times), or three (progress lines) for the five stages.

    `now_host` is the host's wall time, against which a stopping stage's grace runs.
    """
    if not stages:
        waiting: list[Span] = []
        for name in _ORDER:
            waiting += [("— ", "faint"), (name, "dim"), ("   ", "")]
        return [fit([(" ", ""), *waiting], width)]
    inner = width - 2
    widths, gap = _columns(stages, inner, now_host)
    last = _ORDER.index(through) if through in _ORDER else len(_ORDER)
    cells = [
        _cell(stage, size, height, stage.name in _ORDER and _ORDER.index(stage.name) > last, now_host)
        for stage, size in zip(stages, widths)
    ]
    rows: list[Line] = []
    for row in range(min(height, 3)):
        spans: list[Span] = [(" ", "")]
        for index, cell in enumerate(cells):
            if index:
                spans.append((" " * gap, ""))
            spans.extend(cell[row])
        rows.append(fit(spans, width))
    return rows


def _columns(stages: Sequence[StageView], inner: int, now_host: float | None) -> tuple[list[int], int]:
    """Widths and the gap between them. What is left over goes to all alike, or to the stage at work when it is little.

    In narrow terminals the times go first, then the gaps; words are cut only when nothing else is left.
    """
    active = active_stage(tuple(stages))
    for words, gap in ((40, 3), (0, 3), (0, 1)):
        natural = [max(width_of(_name(stage)), width_of(_words(stage, words, now_host))) for stage in stages]
        spare = inner - gap * (len(stages) - 1) - sum(natural)
        if spare >= 0:
            alike = spare // len(stages) if active is None or spare >= 4 * len(stages) else 0
            rest = spare - alike * len(stages)
            return [size + alike + (rest if stage is active else 0) for stage, size in zip(stages, natural)], gap
    room = inner - (len(stages) - 1)
    return [room // len(stages)] * len(stages), 1


def _name(stage: StageView) -> list[Span]:
    glyph, role = stage_look(stage)
    return [(f"{glyph} ", role), (stage.name, "strong" if stage.state in ACTIVE else "value")]


def _words(stage: StageView, width: int, now_host: float | None) -> list[Span]:
    """`RUNNING 4h12m · eta 6h02m`, `STOPPING 37/60s`, `DONE 9h20m`, `DONE STALE`."""
    _, role = stage_look(stage)
    spans: list[Span] = [(stage.state, role)]
    if stage.stale:
        return [*spans, (" ", ""), ("kept", "dim") if stage.kept else ("STALE", "warn")]
    times: list[Span] = []
    clock = stop_clock(stage, now_host) if stage.state == "STOPPING" else ""
    if clock:
        times.append((f" {clock}", "value"))
    elif stage.elapsed_s is not None:
        times.append((f" {duration(stage.elapsed_s)}", "dim"))
    if stage.state == "RUNNING" and stage.eta_s is not None:
        times.append((f" eta {duration(stage.eta_s)}", "value"))
    elif stage.state not in ACTIVE | {"DONE", "PENDING"} and share_of(stage) is not None:
        times = [(f" {percent(share_of(stage), 1.0)}", "dim")]
    if width_of(spans) + width_of(times) > width:
        times = times[-1:]
    if width_of(spans) + width_of(times) > width:
        times = []
    return [*spans, *times]


def _cell(stage: StageView, width: int, height: int, beyond: bool, now_host: float | None) -> list[Line]:
    share = share_of(stage)
    head = _name(stage)
    if beyond and stage.state == "PENDING":
        head = [("  ", ""), (stage.name, "faint")]
        words: list[Span] = [("not planned", "faint")]
    else:
        words = _words(stage, width, now_host)
    shown = percent(share, 1.0) if share is not None and stage.state != "DONE" else ""
    if height >= 3:
        role = "bar-stage" if stage.state in ACTIVE else "good" if stage.state == "DONE" else "dim"
        first = spread(head, [(0, [(shown, "value")])] if shown else [], width)
        return [first, fit(words, width), bar(share, width, role)]
    if stage.state in ACTIVE and shown:
        room = width - width_of(head) - len(shown) - 2
        line: list[Span] = [*head, (" ", "")]
        if room >= 4:
            line += [*bar(share, room, "bar-stage"), (" ", "")]
        return [fit([*line, (shown, "value")], width), fit(words, width)]
    return [fit(head, width), fit(words, width)]


class Rail(Panel):
    """Shows rail_lines."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._stages: tuple[StageView, ...] = ()
        self._through = ""
        self._now_host: float | None = None

    def show(self, stages: tuple[StageView, ...], through: str, now_host: float | None = None) -> None:
        stopping = any(stage.state == "STOPPING" for stage in stages)
        changed = (stages, through) != (self._stages, self._through)
        if changed or (stopping and now_host != self._now_host):
            self._stages, self._through, self._now_host = stages, through, now_host
            self.redraw()

    def lines(self, width: int, height: int) -> list[Line]:
        return rail_lines(self._stages, self._through, width, height, self._now_host)
