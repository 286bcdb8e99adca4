"""Lines of text with roles instead of colours, and the ways to fit them into a width.

A line is a tuple of spans (text, role); a role is a name that palette.py turns into a style. Pure functions; of the
installed packages only Rich's cell measure is used, so every panel can be tested without an app.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size

Span = tuple[str, str]
Line = tuple[Span, ...]

ELLIPSIS = "…"


def width_of(line: Iterable[Span]) -> int:
    """Terminal cells the line takes."""
    return sum(cell_len(text) for text, _ in line)


def text_of(line: Iterable[Span]) -> str:
    return "".join(text for text, _ in line)


def clip(text: str, width: int) -> str:
    """The text in at most `width` cells; a cut is marked with `…`."""
    if cell_len(text) <= width:
        return text
    if width <= 0:
        return ""
    return set_cell_size(text, width - 1).rstrip() + ELLIPSIS


def clip_middle(text: str, width: int) -> str:
    """Like clip, but the end stays: of paths and names it tells more than the middle."""
    if cell_len(text) <= width or width < 5:
        return clip(text, width)
    tail = (width - 1) // 2
    end = text[-tail:]
    while cell_len(end) > tail:
        end = end[1:]
    return set_cell_size(text, width - 1 - cell_len(end)).rstrip() + ELLIPSIS + end


def fold(text: str, width: int, indent: int = 0) -> list[str]:
    """All of the text, in rows of at most `width` cells; those after the first have `indent` cells less.

    Rows end at a blank where one of its second half has one.
    """
    rows: list[str] = []
    room = max(2, width)
    while cell_len(text) > room:
        row = text[:room]
        while cell_len(row) > room:
            row = row[:-1]
        blank = row.rfind(" ") + 1
        if blank > len(row) // 2 and not text[len(row)].isspace():
            row = row[:blank]
        rows.append(row.rstrip())
        text = text[len(row) :].lstrip()
        room = max(2, width - indent)
    return [*rows, text]


def pad(text: str, width: int) -> str:
    """The text in exactly `width` cells, left-aligned."""
    text = clip(text, width)
    return text + " " * (width - cell_len(text))


def right(text: str, width: int) -> str:
    """The text in exactly `width` cells, right-aligned."""
    text = clip(text, width)
    return " " * (width - cell_len(text)) + text


def fit(line: Iterable[Span], width: int, role: str = "") -> Line:
    """The line in exactly `width` cells: cut with `…`, or filled up with blanks of `role`."""
    out: list[Span] = []
    room = width
    for text, span_role in line:
        size = cell_len(text)
        if size > room:
            cut = clip(text, room)
            if cut:
                out.append((cut, span_role))
                room -= cell_len(cut)
            break
        if text:
            out.append((text, span_role))
            room -= size
    if room > 0:
        out.append((" " * room, role))
    return tuple(out)


Part = tuple[int, Sequence[Span]]
"""Something worth showing if there is room, with its rank: the highest rank is dropped first."""


def _keep(parts: Sequence[Part], room: int, gap: int) -> list[Sequence[Span]]:
    kept = [part for part in parts if part[1]]
    while len(kept) > 1 and sum(width_of(spans) + gap for _, spans in kept) - gap > room:
        kept.remove(max(kept, key=lambda part: part[0]))
    return [spans for _, spans in kept]


def _in_a_row(parts: Sequence[Sequence[Span]], gap: int) -> list[Span]:
    out: list[Span] = []
    for spans in parts:
        if out:
            out.append((" " * gap, ""))
        out.extend(spans)
    return out


def join(parts: Sequence[Part], width: int, gap: int = 3) -> Line:
    """Parts from the left in their order, without those that there is no room for."""
    return fit(_in_a_row(_keep(parts, width, gap), gap), width)


def spread(left: Sequence[Span], parts: Sequence[Part], width: int, gap: int = 3, least: int = 0) -> Line:
    """`left` at the left edge (it keeps `least` cells of its own before a part is kept), the parts at the right one."""
    need = min(width_of(left), least) if least else width_of(left)
    tail = _in_a_row(_keep(parts, width - need - gap, gap), gap)
    room = width - width_of(tail) - (1 if tail else 0)
    if room < 1:
        return fit(tail, width)
    return (*fit(left, room), *([(" ", "")] if tail else []), *tail)


def heading(title: str, info: Sequence[Span], width: int, marks: Sequence[Span] = (), focused: bool = False) -> Line:
    """A panel's first line: title, what belongs to it, a rule, and `marks` at the right edge."""
    left: list[Span] = [(title, "title-focused" if focused else "title"), (" ", "")]
    if info:
        left += [(" ", ""), *info, (" ", "")]
    tail = [(" ", ""), *marks] if marks else []
    if width_of(left) + width_of(tail) + 1 > width:
        tail = []
    rule = width - width_of(left) - width_of(tail)
    if rule < 0:
        return fit(left, width)
    return fit([*left, ("─" * rule, "rule-focused" if focused else "rule"), *tail], width)


def bar(share: float | None, width: int, role: str, mark: float | None = None) -> Line:
    """`━━━━━╸────`: filled in half cells; `mark` (a share) is drawn as `│`. Unknown is an empty bar.

    Only nothing looks like nothing, and only all of it looks like all of it.
    """
    width = max(0, width)
    share = 0.0 if share is None or not math.isfinite(share) else min(1.0, max(0.0, share))
    halves = round(share * width * 2)
    if share > 0:
        halves = max(1, halves)
    if share < 1:
        halves = min(2 * width - 1, halves)
    full, half = divmod(max(0, halves), 2)
    done = "━" * full + "╸" * half
    cells = [(sign, role) for sign in done] + [("─", "track")] * (width - len(done))
    if mark is not None and 0.0 < mark < 1.0 and width:
        cells[min(width - 1, int(mark * width))] = ("│", "mark")
    return runs(cells)


def runs(cells: Iterable[Span]) -> Line:
    """Neighbours of one role joined to one span."""
    out: list[Span] = []
    texts: list[str] = []
    current = ""
    for text, role in cells:
        if role != current and texts:
            out.append(("".join(texts), current))
            texts = []
        current = role
        texts.append(text)
    if texts:
        out.append(("".join(texts), current))
    return tuple(out)
