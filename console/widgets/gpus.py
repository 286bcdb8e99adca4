"""GPU rows: utilisation, power against its limit, VRAM, temperature. A reading that is missing is `—`, never 0."""

from __future__ import annotations

from collections.abc import Sequence

from console.format import UNKNOWN, known
from console.snapshot import GpuView
from console.widgets.ink import Line, Span, bar, fit, heading, pad, right
from console.widgets.panel import Panel

GIB = 2.0**30
_HOT_C = 85.0
_TWO_COLUMNS = 56
"""From this width on, GPUs for which there are too few rows stand in two columns."""


def gpu_lines(gpus: Sequence[GpuView], note: str, width: int, height: int) -> list[Line]:
    """A heading with the sums, then one row a GPU; with too few rows two columns, and a count of the rest."""
    if not gpus:
        said = note or UNKNOWN
        return [heading("gpus", [(said, "dim")], width)]
    out = [heading("gpus", _sums(gpus, width), width)]
    room = height - 1
    if room <= 0:
        return out
    sizes = _sizes(gpus)
    if len(gpus) <= room:
        return out + [gpu_row(gpu, width, sizes) for gpu in gpus]
    if width >= _TWO_COLUMNS:
        half = (width - 2) // 2
        rows = (len(gpus) + 1) // 2
        if rows > room:
            rows = room - 1
        for row in range(rows):
            cells = [gpu_row(gpus[row], half, sizes), ((" " * (width - 2 * half), ""),)]
            if row + rows < len(gpus):
                cells.append(gpu_row(gpus[row + rows], half, sizes))
            out.append(fit([span for cell in cells for span in cell], width))
        hidden = len(gpus) - 2 * rows
    else:
        shown = room - 1
        out += [gpu_row(gpu, width, sizes) for gpu in gpus[:shown]]
        hidden = len(gpus) - shown
    if hidden > 0:
        out.append(fit([(f"and {hidden} more", "dim")], width))
    return out


def _sizes(gpus: Sequence[GpuView]) -> tuple[int, int]:
    """Cells of `655/700` and `88/96` in these rows, so that all rows have the same columns."""
    powers = (len(_pair(gpu.power_w, gpu.power_limit_w, 1.0)) for gpu in gpus)
    memory = (len(_pair(gpu.mem_used, gpu.mem_total, GIB)) for gpu in gpus)
    return max(7, *powers), max(5, *memory)


def gpu_row(gpu: GpuView, width: int, sizes: tuple[int, int]) -> Line:
    """`0 ━━━━━━━╸ 98%  655/700 W ━━━━╸─ 88/96 GiB  62°` in as much of it as fits; `sizes` are those of all rows."""
    index = right(str(gpu.index), 2)
    if gpu.error and gpu.util_pct is None and gpu.power_w is None:
        return fit([(index, "label"), (" ! ", "bad"), (gpu.error, "bad")], width)
    share = _share(gpu.util_pct, 100.0)
    hot = gpu.temp_c is not None and gpu.temp_c >= _HOT_C
    mark: Span = ("!", "warn") if gpu.error or hot else (" ", "")
    util: Span = (right(_whole(gpu.util_pct, "%"), 4), "value")
    heat = "warn" if hot else "dim"
    power, memory = sizes
    spans: list[Span] = [(index, "label"), mark]
    if width >= 62:
        free = width - (3 + 4 + 2 + power + 2 + 3 + 1 + memory + 4 + 6)
        spans += [*bar(share, free - free // 2, "bar-util"), util, ("  ", "")]
        spans += [*_of(gpu.power_w, gpu.power_limit_w, 1.0, power, " W"), ("   ", "")]
        spans += [*bar(_share(gpu.mem_used, gpu.mem_total), free // 2, "bar-vram"), (" ", "")]
        spans += [*_of(gpu.mem_used, gpu.mem_total, GIB, memory, " GiB"), (right(_whole(gpu.temp_c, "°C"), 6), heat)]
    elif width >= 42:
        free = width - (3 + 4 + 1 + power + 1 + 1 + 1 + memory + 1 + 4)
        across = max(3, free * 3 // 5)
        spans += [*bar(share, across, "bar-util"), util, (" ", "")]
        spans += [*_of(gpu.power_w, gpu.power_limit_w, 1.0, power, "W"), (" ", "")]
        spans += [*bar(_share(gpu.mem_used, gpu.mem_total), free - across, "bar-vram"), (" ", "")]
        spans += [*_of(gpu.mem_used, gpu.mem_total, GIB, memory, "G"), (right(_whole(gpu.temp_c, "°"), 4), heat)]
    elif width >= 34:
        free = width - (3 + 4 + 1 + power + 1 + 1 + memory + 1)
        spans += [*bar(share, free, "bar-util"), util, (" ", "")]
        spans += [*_of(gpu.power_w, gpu.power_limit_w, 1.0, power, "W"), (" ", "")]
        spans += [*_of(gpu.mem_used, gpu.mem_total, GIB, memory, "G")]
    else:
        free = width - (3 + 4 + 6 + 6)
        spans += [*bar(share, free if free >= 2 else 0, "bar-util"), util]
        spans += [(right(_whole(gpu.power_w, ""), 5), "value"), ("W", "label")]
        spans += [(right(_scaled(gpu.mem_used, GIB), 5), "value"), ("G", "label")]
    return fit(spans, width)


def _whole(value: float | None, unit: str) -> str:
    return UNKNOWN if value is None or not known(value) else f"{value:.0f}{unit}"


def _scaled(value: float | None, unit: float) -> str:
    return UNKNOWN if value is None or not known(value) else f"{value / unit:.0f}"


def _pair(part: float | None, whole: float | None, unit: float) -> str:
    return f"{_scaled(part, unit)}/{_scaled(whole, unit)}"


def _of(part: float | None, whole: float | None, unit: float, size: int, name: str) -> list[Span]:
    """`655/700 W` in `size` cells and its unit."""
    text = _pair(part, whole, unit)
    first, _, second = text.partition("/")
    return [(" " * max(0, size - len(text)), ""), (first, "value"), (f"/{second}{name}", "label")]


def _share(part: float | None, whole: float | None) -> float | None:
    if part is None or not whole or not known(part) or not known(whole):
        return None
    return part / whole


def _sums(gpus: Sequence[GpuView], width: int) -> list[Span]:
    """`4.77 kW · 89% · 702/768 GiB`; sums leave out what is unknown and say so with `≥`."""
    powers = [gpu.power_w for gpu in gpus if gpu.power_w is not None and known(gpu.power_w)]
    utils = [gpu.util_pct for gpu in gpus if gpu.util_pct is not None and known(gpu.util_pct)]
    memory = [
        (gpu.mem_used, gpu.mem_total)
        for gpu in gpus
        if gpu.mem_used is not None and gpu.mem_total is not None and known(gpu.mem_used) and known(gpu.mem_total)
    ]
    parts: list[list[Span]] = []
    if powers:
        least = "≥" if len(powers) < len(gpus) else ""
        total = sum(powers)
        text = f"{total / 1000:.2f} kW" if total >= 1000 else f"{total:.0f} W"
        parts.append([(f"{least}{text}", "value")])
    if memory and width >= 24:
        used, whole = sum(used for used, _ in memory), sum(whole for _, whole in memory)
        parts.append([(f"{used / GIB:.0f}", "value"), (f"/{whole / GIB:.0f} GiB", "label")])
    if utils and width >= 40:
        parts.append([(f"{sum(utils) / len(utils):.0f}%", "value"), (" mean", "label")])
    spans: list[Span] = []
    for index, part in enumerate(parts):
        spans += [(" · ", "faint"), *part] if index else part
    return spans or [(UNKNOWN, "dim")]


def gpu_summary(gpus: Sequence[GpuView], note: str, width: int) -> Line:
    """All of it in one line, for terminals without room for rows."""
    if not gpus:
        return fit([(pad("gpus", 9), "label"), (note or UNKNOWN, "dim")], width)
    return fit([(pad("gpus", 9), "label"), (f"{len(gpus)} × ", "label"), *_sums(gpus, width)], width)


class Gpus(Panel):
    """Shows gpu_lines, or gpu_summary in a single row."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._gpus: tuple[GpuView, ...] = ()
        self._note = ""

    def show(self, gpus: tuple[GpuView, ...], note: str) -> None:
        if (gpus, note) != (self._gpus, self._note):
            self._gpus, self._note = gpus, note
            self.redraw()

    def lines(self, width: int, height: int) -> list[Line]:
        if height == 1 and self._gpus:
            return [gpu_summary(self._gpus, self._note, width)]
        return gpu_lines(self._gpus, self._note, width, height)
