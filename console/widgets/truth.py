"""The line of truth: is what is on screen current, how old is it, of which host and run. It never fades."""

from __future__ import annotations

from dataclasses import dataclass

from console.format import UNKNOWN, duration, known
from console.snapshot import Snapshot
from console.widgets.ink import Line, Part, Span, clip_middle, fit, spread, width_of
from console.widgets.looks import link_look
from console.widgets.panel import Panel


@dataclass(frozen=True)
class Moment:
    """What changes between snapshots: seconds since the newest one, the clock, snapshots held back by a freeze."""

    since_s: float = 0.0
    clock: str = ""
    frozen: bool = False
    held_back: int = 0


def truth_line(snapshot: Snapshot | None, moment: Moment, width: int) -> Line:
    """One line of exactly `width` cells."""
    if snapshot is None:
        waiting: list[Span] = [(" ○ ", "dim"), ("waiting for the first data", "dim")]
        return fit(spread(waiting, _right_parts(None, moment, width), width - 1), width)
    link = snapshot.link
    glyph, role = link_look(link)
    left: list[Span] = [(f" {glyph} ", role), (link.state, role), (" ", "")]
    left.append((_age(link.age_s, moment.since_s), "value" if link.state == "LIVE" else role))
    if link.retry_in_s is not None and link.state in {"LOST", "BACKOFF"}:
        left.append((f" retry {duration(max(0.0, link.retry_in_s - moment.since_s))}", "dim"))
    elif link.rtt_ms is not None and link.state == "LIVE" and width >= 72:
        left += [("  ssh ", "label"), (f"{link.rtt_ms:.0f} ms", "value")]
    right = _right_parts(snapshot, moment, width)
    clock = len(moment.clock) + 2 + (16 if moment.frozen else 0)
    room = width - width_of(left) - clock - 7
    host, run = snapshot.host or link.host or UNKNOWN, snapshot.run or UNKNOWN
    if len(host) + len(run) > room:
        host = clip_middle(host, max(4, min(len(host), room // 3)))
        run = clip_middle(run, max(6, room - len(host)))
    left += [("   ", ""), (host, "label"), (" › ", "faint"), (run, "strong")]
    return fit(spread(left, right, width - 1), width)


def _age(age_s: float | None, since_s: float) -> str:
    return UNKNOWN if age_s is None or not known(age_s) else duration(max(0.0, age_s + since_s))


def _right_parts(snapshot: Snapshot | None, moment: Moment, width: int) -> list[Part]:
    parts: list[Part] = []
    if moment.frozen:
        parts.append((0, [(f" FROZEN +{moment.held_back} ", "badge")]))
    if snapshot is not None:
        if snapshot.verifier:
            parts.append((6, [("verifier ", "label"), (clip_middle(snapshot.verifier, 28), "value")]))
        if snapshot.plan_revision is not None:
            parts.append((5, [("plan ", "label"), (str(snapshot.plan_revision), "value")]))
        parts.append((3, [(_gpus(snapshot, width), "value" if snapshot.gpus else "label")]))
    parts.append((1, [(moment.clock, "value")]))
    return parts


def _gpus(snapshot: Snapshot, width: int) -> str:
    count = len(snapshot.gpus)
    if not count:
        return "no GPU" if snapshot.gpu_note else ""
    names = {gpu.name for gpu in snapshot.gpus}
    if len(names) == 1:
        name = names.pop().removeprefix("NVIDIA ").strip()
        if name and len(name) <= (24 if width >= 110 else 8):
            return f"{count} × {name}"
    return f"{count} GPU{'s' if count > 1 else ''}"


class Truth(Panel):
    """Shows truth_line; the screen sets `snapshot` and `moment`."""

    FADES = False

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._snapshot: Snapshot | None = None
        self._moment = Moment()

    def show(self, snapshot: Snapshot | None, moment: Moment) -> None:
        self._snapshot, self._moment = snapshot, moment
        self.redraw()

    def lines(self, width: int, height: int) -> list[Line]:
        return [truth_line(self._snapshot, self._moment, width)]
