"""The chart as a widget: a heading with the newest values, and the picture."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from console.snapshot import Curve
from console.widgets.chart.picture import View, can_log, draw
from console.widgets.chart.raster import ASCII, BLOCK, BRAILLE, MARKS, Marks
from console.widgets.chart.views import ChartView, TrackStore, has_epochs, legend, series_of, views_of
from console.widgets.ink import Line, Span, heading, join, width_of
from console.widgets.panel import Panel


def marks_for(environ: Mapping[str, str], encoding: str | None) -> Marks:
    """Braille where the terminal can be expected to have it: not on the Linux console, nor without UTF-8."""
    if "utf" not in (encoding or "utf-8").lower():
        return ASCII
    return BLOCK if environ.get("TERM") == "linux" else BRAILLE


class LineChart(Panel):
    """Curves of one picture at a time; toggles change how they are looked at, never the data."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._curves: tuple[Curve, ...] = ()
        self._store = TrackStore()
        self._hint: tuple[Line, ...] = ()
        self._chosen = ""
        self._log_y = False
        self._x_unit = "step"
        self._marks = marks_for(os.environ, getattr(sys.__stdout__, "encoding", None))

    def show(self, curves: tuple[Curve, ...], hint: tuple[Line, ...]) -> None:
        """`hint` is said while there is no curve."""
        blank = self.view is None
        changed = curves is not self._curves and curves != self._curves
        self._curves, hint_before, self._hint = curves, self._hint, hint
        if changed or (blank and hint != hint_before):
            self.redraw()

    @property
    def view(self) -> ChartView | None:
        """The picture on show; loss unless another one was chosen and can be filled."""
        found = views_of(self._curves)
        return next((view for view in found if view.name == self._chosen), found[0] if found else None)

    def next_view(self) -> str:
        """Choose the next picture; its name, empty when there is nothing to draw."""
        found = views_of(self._curves)
        if not found:
            return ""
        current = self.view
        place = next((index for index, view in enumerate(found) if current and view.name == current.name), -1)
        self._chosen = found[(place + 1) % len(found)].name
        self.redraw()
        return self._chosen

    def toggle_log(self) -> bool:
        """Linear or logarithmic y. False, and nothing changes, when no value is positive."""
        view = self.view
        if not self._log_y and view is not None:
            series = series_of(view, self._curves, self._store, self._x_unit)
            if not can_log(series):
                return False
        self._log_y = not self._log_y
        self.redraw()
        return True

    def toggle_x(self) -> bool:
        """Steps or epochs. False, and nothing changes, when the curves hold no epochs."""
        if self._x_unit == "step" and not has_epochs(self._curves):
            return False
        self._x_unit = "epoch" if self._x_unit == "step" else "step"
        self.redraw()
        return True

    def next_marks(self) -> str:
        """Draw with the next kind of characters; its name."""
        self._marks = MARKS[(MARKS.index(self._marks) + 1) % len(MARKS)]
        self.redraw()
        return self._marks.name

    def lines(self, width: int, height: int) -> list[Line]:
        view = self.view
        if view is None:
            blank = draw((), width, height - 1, empty=self._hint)
            return [heading("run", [], width), *blank]
        series = series_of(view, self._curves, self._store, self._x_unit)
        marks: list[Span] = [("log" if self._log_y and can_log(series) else "linear", "dim")]
        room = width - width_of([(view.name, "")]) - 5 - width_of(marks)
        info = _trimmed(join(legend(view, series), max(8, room), 2))
        look = View(self._log_y, self._x_unit, self._marks)
        return [heading(view.name, info, width, marks), *draw(series, width, height - 1, look)]


def _trimmed(line: Line) -> list[Span]:
    spans = list(line)
    while spans and not spans[-1][0].strip():
        spans.pop()
    return spans
