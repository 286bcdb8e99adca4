"""Where every panel of the overview stands, for any size of terminal and any state of the run. Pure functions.

What survives when space shrinks, in this order: truth, stages, alerts, chart, volume and counts, GPUs, log, events.
"""

from __future__ import annotations

from dataclasses import dataclass

from textual.geometry import Region

NARROW = 76
"""Below this width everything stands in one column."""
TALL = 34
"""From this height on there is air between the blocks, and the stages have progress lines."""


@dataclass(frozen=True)
class Facts:
    """What the arrangement depends on besides the size."""

    gpus: int = 0
    alert_rows: int = 0
    target_rows: int = 3
    rates: int = 0
    """Positions with an acceptance rate."""
    acceptance: bool = False
    speed: bool = False
    roomy_log: bool = False
    """There is a log but no curve yet: the log has better use for the rows."""
    alone: str = ""
    """The panel that has the room of all of them: chart, events or log."""
    half_log: bool = False


def arrange(width: int, height: int, facts: Facts) -> dict[str, Region]:
    """Regions by panel id, inside the terminal and never overlapping; a panel without room is left out."""
    tall = height >= TALL
    places: dict[str, Region] = {}
    top = _band(places, "truth", 0, 1, width, height)
    rail = 3 if tall else 2 if height >= 10 else 1
    top = _band(places, "rail", top + (1 if tall else 0), rail, width, height)
    most = height // 4 if tall else 4 if height >= 24 else 1 if height < 20 else 2
    if facts.alert_rows:
        top = _band(places, "alerts", top + (1 if tall else 0), min(most, facts.alert_rows), width, height)
    if tall:
        top += 1
    bottom = height
    if height >= 6:
        bottom -= 1
        places["footer"] = Region(0, bottom, width, 1)
    room = bottom - top
    if room <= 0 or width <= 4:
        return places
    left, inner = 1, width - 2
    if facts.alone:
        places[facts.alone] = Region(left, top, inner, room)
        return places
    log = min(room, _log_height(width, height, room, facts))
    middle = room - log - (1 if tall and log else 0)
    if log:
        places["log"] = Region(left, bottom - log, inner, log)
    if middle <= 0:
        return places
    body = Region(left, top, inner, middle)
    if width < NARROW:
        _one_column(places, body, facts)
    else:
        _two_columns(places, body, facts, tall)
    return places


def _band(places: dict[str, Region], name: str, y: int, size: int, width: int, height: int) -> int:
    size = min(size, height - y)
    if size > 0:
        places[name] = Region(0, y, width, size)
        return y + size
    return y


def _log_height(width: int, height: int, room: int, facts: Facts) -> int:
    if facts.half_log:
        return max(2, room // 2)
    if height < 12:
        return 0
    if height < 20:
        return 3
    normal = 1 + max(4, round((height - 8) * 0.25))
    if not facts.roomy_log or width < NARROW:
        return normal
    needed = max(facts.target_rows + 12, facts.gpus + 4)  # what is said in the chart's place takes eleven rows
    return max(normal, room - needed - (3 if height >= TALL else 0))


def _one_column(places: dict[str, Region], body: Region, facts: Facts) -> None:
    x, y, width, height = body
    targets = min(facts.target_rows if facts.target_rows <= 3 else 3, height)
    gpus = 1 if height - targets >= 3 else 0
    chart = height - targets - gpus
    if chart >= 3:
        places["chart"] = Region(x, y, width, chart)
        y += chart
    else:
        targets = min(facts.target_rows, height - gpus)
    if gpus:
        places["gpus"] = Region(x, y, width, 1)
        y += 1
    if targets > 0:
        places["targets"] = Region(x, y, width, targets)


def _two_columns(places: dict[str, Region], body: Region, facts: Facts, tall: bool) -> None:
    x, y, width, height = body
    gutter = 2 if width < 110 else 3
    side = min(74, max(27, round((width + 2) * 0.36) - (2 if width < 100 else 0)))
    main = width - side - gutter
    gap = 1 if tall else 0
    targets = facts.target_rows + 1
    if height - targets - gap < 5:
        targets = max(0, min(targets, height - 5 - gap))
    chart = height - targets - (gap if targets else 0)
    if chart >= 3:
        places["chart"] = Region(x, y, main, chart)
    if targets:
        places["targets"] = Region(x, y + height - targets, main, targets)
    _side(places, Region(x + main + gutter, y, side, height), facts, gap)


def _side(places: dict[str, Region], side: Region, facts: Facts, gap: int) -> None:
    x, y, width, height = side
    end = y + height
    gpus = min(facts.gpus + 1, max(1, height - 2))
    places["gpus"] = Region(x, y, width, min(gpus, height))
    y += gpus + gap
    if facts.acceptance and end - y >= 1:
        want = 1 + facts.rates + (1 if facts.speed else 0)
        keep_for_events = 4 if end - y >= want + gap + 4 else 3
        size = want if end - y - want - gap >= keep_for_events else min(2 if facts.rates else 1, end - y)
        places["acceptance"] = Region(x, y, width, size)
        y += size + gap
    if end - y >= 2:
        places["events"] = Region(x, y, width, end - y)
