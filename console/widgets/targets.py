"""Samples and tokens against their targets, the stage at work in its own unit, and the fill of the volume."""

from __future__ import annotations

from dataclasses import dataclass

from console.format import (
    UNKNOWN,
    byte_rate,
    duration,
    full_count,
    known,
    percent,
    rate,
    short_count,
    si_bytes,
)
from console.snapshot import HALF_FULL, DiskView, ServiceView, Snapshot, StageView
from console.widgets.ink import Line, Part, Span, bar, clip, fit, heading, join, pad, right, width_of
from console.widgets.looks import active_stage, service_look, share_of
from console.widgets.panel import Panel

_LABEL = 8
_AMOUNT = 15
_PERCENT = 5
_FAR_OFF_S = 60 * 86_400.0
"""Nobody plans by a volume that is full in more than two months: at that rate nothing is filling it. Nor while it is
not half full: what a run still writes is the budget's to say."""
_IF_ROOM = 9
"""Rank of a note for which no room is made."""


@dataclass(frozen=True)
class Row:
    """A labelled bar. `share` None draws none; `notes` stand at the end while there is room, in order of rank.

    `alarm` is the role of a number that needs a person, empty for all others.
    """

    label: str
    share: float | None
    role: str
    amount: str
    percent: str
    notes: tuple[Part, ...] = ()
    mark: float | None = None
    alarm: str = ""


def target_rows(snapshot: Snapshot) -> list[Row]:
    """Services in use, the stage at work (unless it is told by its samples), samples, tokens, volume."""
    rows = [row for service in snapshot.services if (row := _service_row(service)) is not None]
    active = active_stage(snapshot.stages)
    if active is not None and active.unit not in {"samples", ""}:
        rows.append(_stage_row(active))
    generate = next((stage for stage in snapshot.stages if stage.name == "generate"), None)
    rows += [_samples_row(snapshot, generate), _tokens_row(snapshot), _volume_row(snapshot.disk)]
    return rows


def _service_row(service: ServiceView) -> Row | None:
    look = service_look(service.state)
    if look is None:
        return None
    glyph, role = look
    notes: tuple[Part, ...] = ((_IF_ROOM, [(service.url, "dim")]),) if service.url else ()
    return Row(clip(service.name, _LABEL - 1), None, role, f"{glyph} {service.state}", "", notes, None, role)


def _share(part: float | None, whole: float | None) -> float | None:
    if part is None or not whole or not known(part):
        return None
    return part / whole


def _stage_row(stage: StageView) -> Row:
    notes: list[Part] = []
    if stage.phase and stage.phase != "running":
        notes.append((0, [(stage.phase, "warn")]))
    if stage.rate is not None:
        notes.append((1, [(rate(stage.rate, stage.unit), "value")]))
    amount = f"{short_count(stage.done)}/{short_count(stage.total)}" if stage.total else short_count(stage.done)
    share = share_of(stage)
    return Row(stage.name, share, "bar-stage", amount, percent(share, 1.0) if share is not None else "", tuple(notes))


def _samples_row(snapshot: Snapshot, generate: StageView | None) -> Row:
    notes: list[Part] = []
    if generate is not None and generate.state in {"RUNNING", "STOPPING"}:
        if generate.phase and generate.phase != "running":
            notes.append((0, [(generate.phase, "warn")]))
        if generate.rate is not None:
            notes.append((1, [(rate(generate.rate, "").replace(" /", "/"), "value")]))
    rejected = generate.counts.get("rejected") if generate is not None else None
    if rejected:
        notes.append((2, [(f"{full_count(rejected)} rejected", "warn")]))
    whole = snapshot.samples_target
    share = _share(snapshot.samples, whole)
    if share is not None and share > 1.0:  # the target was lowered after they had been made
        notes.insert(0, (0, [("target ", "label"), (full_count(whole), "value")]))
        whole, share = None, 1.0
    amount = f"{full_count(snapshot.samples)}/{full_count(whole)}" if whole else full_count(snapshot.samples)
    if len(amount) > _AMOUNT:
        amount = f"{short_count(snapshot.samples)}/{short_count(whole)}"
    return Row("samples", share, "bar-samples", amount, percent(share, 1.0) if share is not None else "", tuple(notes))


def _tokens_row(snapshot: Snapshot) -> Row:
    notes: list[Part] = []
    if snapshot.tokens and snapshot.samples:
        notes.append((1, [(full_count(snapshot.tokens / snapshot.samples), "value"), ("/sample", "label")]))
    whole = snapshot.tokens_target
    amount = f"{short_count(snapshot.tokens)}/{short_count(whole)}" if whole else full_count(snapshot.tokens)
    share = _share(snapshot.tokens, whole)
    return Row("tokens", share, "bar-tokens", amount, percent(share, 1.0) if share is not None else "", tuple(notes))


def _volume_row(disk: DiskView | None) -> Row:
    if disk is None:
        return Row("volume", None, "bar-volume", UNKNOWN, "")
    share = _share(disk.used, disk.capacity)
    mark = 1.0 - disk.reserve / disk.capacity if disk.reserve and disk.capacity else None
    alarm = ""
    if disk.free is not None and disk.reserve is not None and disk.free <= disk.reserve:
        alarm = "bad"
    elif disk.fills_soon:
        alarm = "warn"
    notes: list[Part] = []
    if disk.full_in_s is not None and disk.full_in_s < _FAR_OFF_S and (share or 0.0) >= HALF_FULL:
        notes.append((0, [("full in ", alarm or "label"), (duration(disk.full_in_s), alarm or "value")]))
    if disk.fill_rate_bps and disk.fill_rate_bps > 0:
        notes.append((1, [(byte_rate(disk.fill_rate_bps), "value")]))
    if disk.reserve:
        notes.append((2, [("reserve ", "label"), (si_bytes(disk.reserve), "value")]))
    role = alarm or "bar-volume"
    shown = percent(share, 1.0) if share is not None else ""
    return Row("volume", share, role, bytes_of(disk.used, disk.capacity), shown, tuple(notes), mark, alarm)


def bytes_of(part: float | None, whole: float | None) -> str:
    """`2.31/3.00 TB`: one unit for both when they share it."""
    first, second = si_bytes(part), si_bytes(whole)
    if first.partition(" ")[2] == second.partition(" ")[2]:
        first = first.partition(" ")[0]
    return f"{first}/{second}"


def row_line(row: Row, width: int, bar_width: int, amount: int = _AMOUNT) -> Line:
    """Label, bar, amount, percent, notes; all rows of a panel share the columns."""
    spans: list[Span] = [(pad(row.label, _LABEL), "label")]
    if bar_width:
        if row.share is None:
            spans.append((" " * bar_width, ""))
        else:
            spans += bar(row.share, bar_width, row.role, row.mark)
        spans.append((" ", ""))
    spans += [(right(row.amount, amount), row.alarm or "value"), (right(row.percent, _PERCENT), row.alarm or "value")]
    room = width - width_of(spans) - 2
    if row.notes and room >= 4:
        order = sorted(range(len(row.notes)), key=lambda index: row.notes[index][0])
        notes = [row.notes[index] for index in order]
        fitting = [part for part in notes if width_of(part[1]) <= room]
        spans += [("  ", ""), *join(fitting, room, 2)]
    return fit(spans, width)


def target_lines(snapshot: Snapshot | None, width: int, height: int, with_heading: bool = True) -> list[Line]:
    """The panel."""
    out = [heading("progress", _heading_info(snapshot), width)] if with_heading else []
    rows = target_rows(snapshot) if snapshot is not None else []
    room = height - len(out)
    rows = rows[len(rows) - room :] if 0 < room < len(rows) else rows[: max(0, room)]
    amount = max((len(row.amount) for row in rows), default=0)
    fixed = _LABEL + 1 + amount + _PERCENT
    notes = max((_notes_width(row, width) for row in rows), default=0)
    bar_width = min(40, width - fixed - notes - 2)
    if bar_width < 5:
        bar_width = min(12, max(0, width - fixed))
    if bar_width < 4:
        bar_width = 0
    return out + [row_line(row, width, bar_width, amount) for row in rows]


def _notes_width(row: Row, width: int) -> int:
    """Room for the notes: for all of them in a wide panel, else for the first one."""
    notes = [note for note in row.notes if note[0] < _IF_ROOM]
    if not notes:
        return 0
    if width >= 84:
        return sum(width_of(part) + 2 for _, part in notes)
    return width_of(min(notes, key=lambda note: note[0])[1])


def _heading_info(snapshot: Snapshot | None) -> list[Span]:
    if snapshot is None or snapshot.budget is None or not snapshot.budget.need_bytes:
        return []  # unknown, or nothing more is to be written
    budget = snapshot.budget
    if budget.fits is False:
        return [("budget ", "label"), (si_bytes(budget.need_bytes), "bad"), (" does not fit", "bad")]
    verdict = " fits" if budget.fits else ""
    return [("budget ", "label"), (si_bytes(budget.need_bytes), "value"), (verdict, "good")]


class Targets(Panel):
    """Shows target_lines."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._snapshot: Snapshot | None = None
        self._rows: tuple[object, ...] = ()

    def show(self, snapshot: Snapshot) -> None:
        rows = (target_rows(snapshot), snapshot.budget)
        if rows != self._rows:
            self._rows, self._snapshot = rows, snapshot
            self.redraw()

    def lines(self, width: int, height: int) -> list[Line]:
        return target_lines(self._snapshot, width, height, with_heading=height > 3)
