"""What needs a person, worst first: what happened, where, and what to do. It never fades."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from console.causes import causes
from console.format import duration, si_bytes
from console.snapshot import DiskView, LinkView, Snapshot, StageView
from console.widgets.ink import Line, Span, fit
from console.widgets.looks import CONDUCTING, ENDED_BADLY, TRYING, active_stage, conductor_of
from console.widgets.panel import Panel


@dataclass(frozen=True)
class Alert:
    """`role` is "bad" or "warn"; `remedy` may be empty."""

    role: str
    message: str
    remedy: str = ""


def alerts(snapshot: Snapshot | None, refusal: Alert | None = None, broken: LinkView | None = None) -> list[Alert]:
    """Everything worth an alert. `refusal` is the last action that the host refused.

    `broken` is the link as it last failed: while the next attempt is under way its reason still stands, so that a host
    that stays away does not make the screen jump.
    """
    found: list[Alert] = [refusal] if refusal else []
    if snapshot is None:
        return found
    link = snapshot.link
    if link.state in TRYING and broken is not None:
        link = broken
    if link.state not in TRYING and link.state != "LIVE" and (link.message or link.remedy):
        blocked = link.state == "BLOCKED"
        remedy = link.remedy or ("" if blocked else "R connects now")
        found.append(Alert("bad" if blocked else "warn", link.message or link.remedy, remedy))
    for stage in snapshot.stages:
        found += _of_stage(stage)
    found += _of_stale(snapshot)
    if snapshot.disk is not None:
        found += _of_disk(snapshot.disk)
    if snapshot.budget is not None and snapshot.budget.fits is False:
        found.append(Alert("bad", f"does not fit the volume: {_budget(snapshot)}", "e edits the plan"))
    for service in snapshot.services:
        if service.state in {"FAILED", "LOST"}:
            reason = service.message or "no reason given"
            found.append(Alert("bad", f"service {service.name} {service.state}: {reason}"))
        elif service.state == "SILENT":
            found.append(Alert("warn", f"service {service.name} is {service.message}"))
    for gpu in snapshot.gpus:
        if gpu.error:
            found.append(Alert("warn", f"GPU {gpu.index}: {gpu.error}"))
    found += _of_conductor(snapshot)
    return sorted(found, key=lambda alert: alert.role != "bad")


def _of_conductor(snapshot: Snapshot) -> list[Alert]:
    """Why the run does not go on, unless the stage that it halted at says it already."""
    conductor = snapshot.conductor
    at = next((stage for stage in snapshot.stages if stage.name == conductor.stage), None)
    told = at is not None and (at.state in ENDED_BADLY or at.undecided or (at.state == "STOPPED" and at.resumable))
    if conductor.state == "failed" and conductor.message:
        return [Alert("bad", conductor.message)]
    if conductor.state == "lost":
        return [Alert("warn", "the conductor is gone: after this stage no other is started", "s starts it again")]
    if conductor.state != "halted" or not conductor.message or told:
        return []
    if conductor.cause == "stale":
        return [Alert("warn", f"the run rests: it halted for {conductor.stage}, which is no longer STALE", "s goes on")]
    return [Alert("bad", f"the run has halted: {conductor.message}", "s starts it again")]


def _of_stage(stage: StageView) -> list[Alert]:
    if stage.state == "RUNNING" and stage.note:
        return [Alert("warn", f"{stage.name} waits: {stage.note}")]
    if stage.state not in ENDED_BADLY:
        return []
    role = "warn" if stage.state == "KILLED" else "bad"
    message = f"{stage.name} {stage.state}" + (f": {stage.message}" if stage.message else "")
    remedy = stage.remedy or ("r resumes it" if stage.resumable else "")
    return [Alert(role, message, remedy)]


def _of_stale(snapshot: Snapshot) -> list[Alert]:
    busy = active_stage(snapshot.stages) is not None or conductor_of(snapshot)[0] in CONDUCTING
    found = []
    asked = (stage for stage in snapshot.stages if stage.undecided and stage.name not in snapshot.conductor.settles)
    for cause in causes(asked):
        if busy:
            remedy = "once the run rests, s asks what becomes of it"
        elif all(stage.state == "DONE" for stage in cause.stages):
            remedy = "s asks whether to rerun or keep it"
        else:
            remedy = "s begins it anew, asking first"
        found.append(Alert("warn", cause.text(), remedy))
    return found


def _of_disk(disk: DiskView) -> list[Alert]:
    if disk.free is not None and disk.reserve is not None and disk.free <= disk.reserve:
        return [
            Alert(
                "bad",
                f"volume {disk.path}: {si_bytes(disk.free)} free, the reserve is {si_bytes(disk.reserve)}",
                "free space, or lower generate.max_samples (e)",
            )
        ]
    if disk.fills_soon:
        return [Alert("warn", f"volume {disk.path} reaches its reserve in {duration(disk.full_in_s)}")]
    return []


def _budget(snapshot: Snapshot) -> str:
    budget = snapshot.budget
    assert budget is not None
    return budget.text or f"{si_bytes(budget.need_bytes)} needed, {si_bytes(budget.available_bytes)} available"


def alert_rows(found: Sequence[Alert], width: int) -> int:
    """Rows that show everything."""
    return sum(len(_wrapped(alert, width - 4)) for alert in found)


def alert_lines(found: Sequence[Alert], width: int, height: int) -> list[Line]:
    """The alerts in `height` rows: whole ones while there is room, then the count of those that are not shown."""
    out: list[Line] = []
    for index, alert in enumerate(found):
        room = height - len(out)
        later = len(found) - index - 1
        texts = _wrapped(alert, width - 4)
        take = min(len(texts), max(1, room - min(later, room - 1)))
        if room <= 0:
            break
        cut = take < len(texts)
        for row in range(take):
            text, role = texts[row]
            if cut and row == take - 1:
                text = " ".join(t for t, _ in texts[row:])
            lead: Span = (" ! ", alert.role) if row == 0 else ("   ", "")
            spans: list[Span] = [lead, (text, role)]
            last = len(out) == height - 1
            if last and later:
                more = f" +{later} more "
                out.append((*fit(spans, width - len(more)), (more, "badge")))
            else:
                out.append(fit(spans, width))
    return out


def _wrapped(alert: Alert, width: int) -> list[Span]:
    width = max(8, width)
    message = textwrap.wrap(alert.message, width, max_lines=4, placeholder="…") or [""]
    spans: list[Span] = [(text, alert.role) for text in message]
    if not alert.remedy or alert.remedy == alert.message:
        return spans
    if len(message[-1]) + len(alert.remedy) + 4 <= width and len(message) == 1:
        return [(f"{message[0]} → {alert.remedy}", alert.role)]
    remedy = textwrap.wrap(f"→ {alert.remedy}", width, max_lines=3, placeholder="…")
    return [*spans, *((text, "value") for text in remedy)]


class Alerts(Panel):
    """Shows alert_lines."""

    FADES = False

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._alerts: list[Alert] = []

    def show(self, found: list[Alert]) -> None:
        if found != self._alerts:
            self._alerts = found
            self.redraw()

    def lines(self, width: int, height: int) -> list[Line]:
        return alert_lines(self._alerts, width, height)
