"""What the host pushes, as views for the screen. A missing or ill-typed field is unknown, never 0.

Pure functions over decoded JSON whose texts the client has sanitised; no I/O, no Textual.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from console.acceptance import of_older_drafter
from console.snapshot import BudgetView, ConductorView, DiskView, EventView, GpuView, ServiceView, StageView
from pipeline.config import STAGES

Json = Mapping[str, Any]


def number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def whole(value: object) -> int | None:
    found = number(value)
    return None if found is None else round(found)


def text(value: object) -> str:
    """One line of text; line ends become blanks."""
    return " ".join(value.split()) if isinstance(value, str) else ""


def table(value: object) -> Json:
    return value if isinstance(value, Mapping) else {}


def stage_view(name: str, data: object) -> StageView:
    """One stage of a "run" push; a stage that the push doesn't hold is PENDING."""
    stage = table(data)
    progress = table(stage.get("progress"))
    counts = {**table(progress.get("counts")), **table(stage.get("counts"))}
    return StageView(
        name=name,
        state=text(stage.get("state")) or "PENDING",
        attempt=whole(stage.get("attempt")),
        output=whole(stage.get("output")),
        stale=stage.get("stale") is True,
        stale_reason=text(stage.get("stale_reason")),
        stale_root=text(stage.get("stale_root")),
        kept=stage.get("kept") is True,
        resumable=stage.get("resumable") is True,
        message=text(stage.get("message")),
        remedy=text(stage.get("remedy")),
        done=whole(progress.get("done")),
        total=whole(progress.get("total")),
        unit=text(progress.get("unit")),
        saved=whole(stage.get("saved")),
        rate=number(progress.get("rate")),
        eta_s=number(progress.get("eta_s")),
        elapsed_s=number(stage.get("elapsed_s")),
        phase=text(progress.get("phase")),
        note=text(progress.get("note")),
        counts={key: found for key, item in counts.items() if (found := number(item)) is not None},
        report=dict(table(stage.get("report"))),
        stop_grace_s=number(stage.get("stop_grace_s")),
        stop_since=number(stage.get("stop_since")),
    )


def stage_views(run: Json) -> tuple[StageView, ...]:
    """The five stages in their order, or none before the host said anything about the run."""
    stages = run.get("stages")
    if not isinstance(stages, Mapping):
        return ()
    return tuple(stage_view(name, stages.get(name)) for name in STAGES)


def gpu_views(host: Json) -> tuple[GpuView, ...]:
    gpus = host.get("gpus")
    rows = [table(row) for row in gpus] if isinstance(gpus, list) else []
    return tuple(
        GpuView(
            index=position if (index := whole(row.get("index"))) is None else index,
            name=text(row.get("name")),
            power_w=number(row.get("power_w")),
            power_limit_w=number(row.get("power_limit_w")),
            util_pct=number(row.get("util_pct")),
            mem_used=number(row.get("mem_used")),
            mem_total=number(row.get("mem_total")),
            temp_c=number(row.get("temp_c")),
            error=text(row.get("error")),
        )
        for position, row in enumerate(rows)
    )


def disk_view(host: Json) -> DiskView | None:
    disk = host.get("disk")
    if not isinstance(disk, Mapping):
        return None
    return DiskView(
        path=text(disk.get("path")),
        capacity=whole(disk.get("capacity")) or whole(disk.get("total")),
        used=whole(disk.get("used")),
        free=whole(disk.get("free")),
        reserve=whole(disk.get("reserve")),
        fill_rate_bps=number(disk.get("fill_rate_bps")),
        full_in_s=number(disk.get("eta_s")),
    )


def budget_view(run: Json) -> BudgetView | None:
    budget = run.get("budget")
    if not isinstance(budget, Mapping):
        return None
    fits = budget.get("fits")
    return BudgetView(
        need_bytes=whole(budget.get("need_bytes")),
        available_bytes=whole(budget.get("available_bytes")),
        fits=fits if isinstance(fits, bool) else None,
        text=text(budget.get("text")) or text(budget.get("message")),
    )


def service_views(run: Json) -> tuple[ServiceView, ...]:
    return tuple(
        ServiceView(text(name), text(row.get("state")), text(row.get("url")), service_message(row))
        for name, row in ((name, table(row)) for name, row in table(run.get("services")).items())
    )


def service_message(row: Json) -> str:
    """What is told of a service: its message, and since when by the clock here it hasn't been answering."""
    said, since = text(row.get("message")), number(row.get("since"))
    if row.get("state") != "SILENT" or since is None:
        return said
    try:
        clock = time.strftime("%a %H:%M:%S", time.localtime(since))
    except (OverflowError, ValueError, OSError):
        clock = "—"
    return f"not answering since {clock}: {said}"


def conductor_view(run: Json) -> ConductorView:
    conductor = table(run.get("conductor"))
    return ConductorView(
        text(conductor.get("state")),
        text(conductor.get("stage")),
        text(str(conductor.get("message") or "").partition("\n")[0]),
        text(conductor.get("remedy")),
        text(conductor.get("cause")),
        tuple(map(text, settles)) if isinstance(settles := conductor.get("settles"), list) else (),
    )


def event_view(row: object) -> EventView | None:
    """None for what is no event, and for a supervisor's details that another event says to people."""
    event = table(row)
    when, kind, message = number(event.get("t")), text(event.get("kind")), text(event.get("message"))
    if when is None or kind == "started" or (kind == "main ended" and message.startswith("status ")):
        return None
    return EventView(when, text(event.get("stage")), kind, message)


def acceptance_length(stages: tuple[StageView, ...], simulated: float | None) -> float | None:
    """The length measured by deploy; until the drafter as it is now is, the one that train's validation simulated."""
    for stage in stages:
        if stage.name == "deploy" and not of_older_drafter(stage):
            measured = number(stage.report.get("acceptance_length"))
            return simulated if measured is None else measured
    return simulated
