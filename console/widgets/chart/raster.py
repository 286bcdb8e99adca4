"""Dots to characters: braille (2 x 4 dots a cell), half blocks or ASCII (1 x 2 dots a cell).

A layer is a list of integers, one a dot column; bit r is dot row r from the top: a vertical run costs one shift.
Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from console.widgets.ink import Line, Span, runs

_BRAILLE_ROWS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


def _braille() -> tuple[str, ...]:
    """The glyph of left nibble + 16 * right nibble; a nibble has bit r set for dot row r."""
    glyphs = []
    for pattern in range(256):
        bits = 0
        for side in (0, 1):
            nibble = pattern >> (4 * side) & 0xF
            bits |= sum(_BRAILLE_ROWS[side][row] for row in range(4) if nibble >> row & 1)
        glyphs.append(chr(0x2800 + bits))
    return tuple(glyphs)


@dataclass(frozen=True)
class Marks:
    """A way to draw: dots of a cell across and down, the glyph of each dot pattern, and the sign of a single point."""

    name: str
    across: int
    down: int
    glyphs: tuple[str, ...]
    point: str
    grid: str


BRAILLE = Marks("braille", 2, 4, _braille(), "●", "┈")
BLOCK = Marks("block", 1, 2, (" ", "▀", "▄", "█"), "●", "─")
ASCII = Marks("ascii", 1, 2, (" ", "'", ".", "|"), "o", "-")
MARKS = (BRAILLE, BLOCK, ASCII)


def polyline(points: Iterable[tuple[float, float]], columns: int, rows: int) -> list[int]:
    """A layer with the points joined by lines. Points are (share across, share up); a NaN breaks the line."""
    layer = [0] * columns
    previous: tuple[int, int] | None = None
    for x, y in points:
        if y != y or not math.isfinite(x):
            previous = None
            continue
        column = min(columns - 1, max(0, round(x * (columns - 1))))
        row = min(rows - 1, max(0, round((1.0 - y) * (rows - 1))))
        if previous is None:
            layer[column] |= 1 << row
        else:
            _segment(layer, previous, (column, row))
        previous = column, row
    return layer


def _segment(layer: list[int], start: tuple[int, int], end: tuple[int, int]) -> None:
    (x0, y0), (x1, y1) = start, end
    if x1 <= x0 + 1:
        # One column: a run from the row after the last one to the new one, which stays a single dot when they touch.
        if y1 > y0:
            first, last = (y0 if x1 == x0 else y0 + 1), y1
        elif y1 < y0:
            first, last = y1, (y0 if x1 == x0 else y0 - 1)
        else:
            first = last = y1
        layer[x1] |= ((1 << (last - first + 1)) - 1) << first
        return
    row = y0
    for column in range(x0 + 1, x1 + 1):
        at = round(y0 + (y1 - y0) * (column - x0) / (x1 - x0))
        first, last = (row + 1, at) if at > row else (at, row - 1) if at < row else (at, at)
        layer[column] |= ((1 << (last - first + 1)) - 1) << first
        row = at


def compose(layers: Sequence[tuple[Sequence[int], str]], under: Sequence[Sequence[Span]], marks: Marks) -> list[Line]:
    """Text rows of the layers, each with its role, the last one on top; a cell shows only the topmost layer in it.

    `under` holds what empty cells show: for each row one single-cell span a column.
    """
    glyphs, across, down = marks.glyphs, marks.across, marks.down
    full = (1 << down) - 1
    rows = [list(row) for row in under]
    width = len(rows[0]) if rows else 0
    for layer, role in layers:
        for cell in range(width):
            left = layer[across * cell]
            right = layer[across * cell + 1] if across == 2 else 0
            dots = left | right
            while dots:  # only cells with a dot in them are visited: most of a chart is empty
                row = ((dots & -dots).bit_length() - 1) // down
                shift = row * down
                dots &= ~(full << shift)
                rows[row][cell] = (glyphs[left >> shift & full | (right >> shift & full) << 4], role)
    return [runs(row) for row in rows]
