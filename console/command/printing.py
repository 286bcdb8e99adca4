"""A snapshot as lines for a terminal, and as JSON for programs. Pure; unknown is `—` in one, null in the other."""

from __future__ import annotations

import dataclasses
from typing import Any

from console import format as shown
from console.acceptance import acceptance_of
from console.curves import last_value
from console.screens.intents import planned
from console.snapshot import Snapshot, StageView


def status_lines(snapshot: Snapshot) -> list[str]:
    """The run at a glance: link, stages, counts, volume, GPUs, and what needs attention."""
    link = snapshot.link
    lines = [
        f"{snapshot.run} on {snapshot.host}   {link.state} {shown.age(link.age_s)}   "
        f"verifier {snapshot.verifier or shown.UNKNOWN}   through {snapshot.through or shown.UNKNOWN}   "
        f"plan {shown.full_count(snapshot.plan_revision)}"
    ]
    ahead = planned(snapshot)
    lines += [f"  {stage_line(stage, stage in ahead)}" for stage in snapshot.stages]
    lines.append(
        f"samples {_samples(snapshot.samples, snapshot.samples_target)}   tokens {shown.full_count(snapshot.tokens)}"
    )
    training, validation = (last_value(snapshot.curves, f"{split}/loss") for split in ("train", "val"))
    acceptance = acceptance_of(snapshot)
    if training is not None or acceptance is not None:
        known = f"{shown.number(acceptance.length)} ({acceptance.kind})" if acceptance else shown.UNKNOWN
        lines.append(
            f"loss {shown.number(training)}, validation {shown.number(validation)}   acceptance length {known}"
        )
    disk = snapshot.disk
    if disk is not None:
        full = f"   reaches its reserve in {shown.duration(disk.full_in_s)}" if disk.fills_soon else ""
        used = f"{shown.si_bytes(disk.used)} of {shown.si_bytes(disk.capacity)} used"
        lines.append(f"volume {disk.path}   {used}, {shown.si_bytes(disk.free)} free{full}")
    for gpu in snapshot.gpus:
        memory = f"{shown.iec_bytes(gpu.mem_used)} of {shown.iec_bytes(gpu.mem_total)}"
        power = f"{shown.number(gpu.power_w, 0)} W of {shown.number(gpu.power_limit_w, 0)} W"
        lines.append(
            f"GPU {gpu.index} {gpu.name}   {shown.percent(gpu.util_pct)}   {power}   {memory}   {gpu.error}".rstrip()
        )
    if not snapshot.gpus and snapshot.gpu_note:
        lines.append(snapshot.gpu_note)
    for service in snapshot.services:
        lines.append(f"service {service.name}   {service.state}   {service.url}   {service.message}".rstrip())
    conductor = snapshot.conductor
    if conductor.state:
        lines.append(f"conductor {conductor.state}" + (f": {conductor.message}" if conductor.message else ""))
    if snapshot.budget is not None and snapshot.budget.text:
        lines.append(f"budget {snapshot.budget.text}")
    return lines


def _samples(there: int | None, target: int | None) -> str:
    """`720 of 10,000`; more than the plan asks for are what a plan before it asked for."""
    if there is not None and target is not None and there > target:
        return f"{shown.full_count(there)} (the plan asks for {shown.full_count(target)})"
    return f"{shown.full_count(there)} of {shown.full_count(target)}"


def stage_line(stage: StageView, planned: bool = True) -> str:
    """`train     RUNNING      41%  1,234 of 3,000 steps  12.0 steps/s  4m10s  eta 6m02s`."""
    if stage.state == "PENDING" and not planned:
        return f"{stage.name:<9} not planned"
    parts = [f"{stage.name:<9} {stage.state:<11}"]
    if stage.stale:
        parts.append("STALE, kept" if stage.kept else "STALE")
    if stage.done is not None:
        total = f" of {shown.full_count(stage.total)}" if stage.total is not None else ""
        if stage.total is not None and stage.state != "DONE":
            parts.append(shown.percent(stage.done, stage.total))
        parts.append(f"{shown.full_count(stage.done)}{total} {stage.unit}")
    if stage.state == "RUNNING":
        parts.append(shown.rate(stage.rate, stage.unit) if stage.phase in ("", "running") else stage.phase)
    if stage.elapsed_s is not None:
        parts.append(shown.duration(stage.elapsed_s))
    if stage.state == "RUNNING":
        parts.append(f"eta {shown.duration(stage.eta_s)}")
    if stage.state == "RUNNING" and stage.note:
        parts.append(shown.sentence(stage.note, ""))
    elif stage.stale and stage.stale_reason:
        parts.append(shown.sentence(stage.stale_reason, ""))
    elif stage.state != "PENDING":  # what a stage waits for is clear from the ones before it
        parts.append(shown.sentence(stage.message, stage.remedy))
    return "  ".join(parts).rstrip()


def status_json(snapshot: Snapshot) -> dict[str, Any]:
    """The snapshot without log and curves; each curve's newest known value, and whether each stage is planned."""
    raw = dataclasses.asdict(dataclasses.replace(snapshot, log=(), curves=(), plan=None))
    for name in ("log", "log_source", "curves"):
        del raw[name]
    raw["plan"] = snapshot.plan
    for row, stage in zip(raw["stages"], snapshot.stages):
        row["planned"] = stage in planned(snapshot)
    raw["metrics"] = {
        curve.name: next((value for value in reversed(curve.values) if value is not None), None)
        for curve in snapshot.curves
    }
    return raw
