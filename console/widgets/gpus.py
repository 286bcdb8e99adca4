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
"""From this width on, GPUs that do not fit below each other stand in two columns."""


def gpu_lines(gpus: Sequence[GpuView], note: str, width: int, height: int) -> list[Line]:
    """A heading with the sums, then one row a GPU; two columns, and at last a count of the rest, when rows are short."""
    if not gpus:
        said = note or UNKNOWN
        return [heading("gpus", [(said, "dim")], width)]
    out = [heading("gpus", _sums(gpus, width), width)]
    room = height - 1
    if room <= 0:
        return out
    if len(gpus) <= room:
        return out + [gpu_row(gpu, width) for gpu in gpus]
    if width >= _TWO_COLUMNS:
        half = (width - 2) // 2
        rows = min(room, (len(gpus) + 1) // 2)
        for row in range(rows):
            cells = [gpu_row(gpus[row], half), ((" " * (width - 2 * half), ""),)]
            if row + rows < len(gpus):
                cells.append(gpu_row(gpus[row + rows], half))
            out.append(fit([span for cell in cells for span in cell], width))
        hidden = len(gpus) - 2 * rows
    else:
        shown = room - 1
        out += [gpu_row(gpu, width) for gpu in gpus[:shown]]
        hidden = len(gpus) - shown
    if hidden > 0:
        more: list[Span] = [(f"and {hidden} more", "dim")]
        out[-1 if len(out) > room else len(out) :] = [fit(more, width)]
    return out[:height]


def gpu_row(gpu: GpuView, width: int) -> Line:
    """`0 ████████▊ 98%  655/700 W  ██████▏ 88/96 GiB  62°` in as much of it as fits."""
    index = right(str(gpu.index), 2)
    if gpu.error and gpu.util_pct is None and gpu.power_w is None:
        return fit([(index, "label"), (" ! ", "bad"), (gpu.error, "bad")], width)
    share = None if gpu.util_pct is None or not known(gpu.util_pct) else gpu.util_pct / 100
    hot = gpu.temp_c is not None and gpu.temp_c >= _HOT_C
    util: Span = (right(_whole(gpu.util_pct, "%"), 4), "value")
    power = _whole(gpu.power_w, "")
    limit = _whole(gpu.power_limit_w, "")
    used, total = _gib(gpu.mem_used), _gib(gpu.mem_total)
    vram_share = None
    if gpu.mem_used is not None and gpu.mem_total and known(gpu.mem_used) and known(gpu.mem_total):
        vram_share = gpu.mem_used / gpu.mem_total
    mark: Span = ("!", "warn") if gpu.error or hot else (" ", "")
    spans: list[Span] = [(index, "label"), mark]
    if width >= 62:
        free = width - 3 - 4 - 11 - 12 - 6 - 6
        bars = max(4, free // 2)
        spans += [*bar(share, bars, "bar-util"), util, ("  ", ""), *_power(power, limit, 9), ("   ", "")]
        spans += [*bar(vram_share, bars, "bar-vram"), (" ", ""), *_of(used, total, " GiB", 11)]
        spans += [(right(_whole(gpu.temp_c, "°C"), 6), "warn" if hot else "dim")]
    elif width >= 42:
        free = width - 3 - 4 - 9 - 1 - 7 - 5
        across = max(3, free * 3 // 5)
        spans += [*bar(share, across, "bar-util"), util, (" ", ""), *_power(power, limit, 8)]
        spans += [(" ", ""), *bar(vram_share, free - across, "bar-vram"), (" ", ""), *_of(used, total, "G", 6)]
        spans += [(right(_whole(gpu.temp_c, "°"), 4), "warn" if hot else "dim")]
    elif width >= 34:
        free = width - 3 - 4 - 9 - 9
        spans += [*bar(share, max(3, free), "bar-util"), util, (" ", ""), *_power(power, limit, 8)]
        spans += [(" ", ""), *_of(used, total, "G", 8)]
    else:
        free = width - 3 - 4 - 6 - 6
        if free >= 2:
            spans += [*bar(share, free, "bar-util")]
        spans += [util, (right(power, 5), "value"), ("W", "label"), (right(used, 5), "value"), ("G", "label")]
    return fit(spans, width)


def _whole(value: float | None, unit: str) -> str:
    return UNKNOWN if value is None or not known(value) else f"{value:.0f}{unit}"


def _gib(value: float | None) -> str:
    return UNKNOWN if value is None or not known(value) else f"{value / GIB:.0f}"


def _power(power: str, limit: str, size: int) -> list[Span]:
    text = f"{power}/{limit}"
    blank = " " * max(0, size - len(text))
    return [(blank, ""), (power, "value"), (f"/{limit} W" if size > 8 else f"/{limit}W", "label")]


def _of(used: str, total: str, unit: str, size: int) -> list[Span]:
    text = f"{used}/{total}{unit}"
    return [(" " * max(0, size - len(text)), ""), (used, "value"), (f"/{total}{unit}", "label")]


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
    if utils and width >= 34:
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
