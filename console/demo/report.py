"""What a headless demo says: a line when a stage has ended, and the final table, for people and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from console import format as shown
from console.demo.counting import counts_text, many
from console.snapshot import Snapshot, StageView

ENDED = frozenset({"DONE", "FAILED", "KILLED", "STOPPED", "INTERRUPTED", "LOST"})


@dataclass(frozen=True)
class Outcome:
    """A demo at its end. `total_s` counts from the command, once the verifier is there, to the last stage's end."""

    run: str
    verifier: str
    snapshot: Snapshot
    total_s: float

    @property
    def ok(self) -> bool:
        return bool(self.snapshot.stages) and all(stage.state == "DONE" for stage in self.snapshot.stages)

    @property
    def report(self) -> Mapping[str, Any]:
        return self.snapshot.stages[-1].report if self.snapshot.stages else {}


def stage_line(stage: StageView) -> str:
    """`extract    DONE   12s   640 sequences, 84,120 tokens`."""
    said = f"   {shown.sentence(stage.message, stage.remedy)}".rstrip() if stage.state != "DONE" else ""
    return (
        f"{stage.name:<9}  {stage.state:<11}  {shown.duration(stage.elapsed_s):>6}   {counts_text(stage.counts)}{said}"
    )


def table_lines(outcome: Outcome) -> list[str]:
    """The final table."""
    report = outcome.report
    agreement, speed = report.get("greedy_agreement") or {}, report.get("tokens_per_s") or {}
    rates = report.get("rate_by_position") or []
    alike = [shown.full_count(agreement.get(name)) for name in ("identical", "prompts", "different")]
    near = many(agreement.get("near_ties"), "near ties")
    plain, drafted = speed.get("plain"), speed.get("drafted")
    gain = f" ({drafted / plain:.2f} times)" if plain and drafted else ""
    rows = [
        *(
            (stage.name, f"{shown.duration(stage.elapsed_s):>6}   {counts_text(stage.counts)}")
            for stage in outcome.snapshot.stages
        ),
        ("total", f"{shown.duration(outcome.total_s):>6}"),
        ("acceptance length", shown.number(report.get("acceptance_length"))),
        ("rate by position", "  ".join(shown.number(rate) for rate in rates) or shown.UNKNOWN),
        ("greedy agreement", "{} of {} identical, {near}, {} different".format(*alike, near=near)),
        ("tokens/s", f"{shown.number(plain, 1)} plain, {shown.number(drafted, 1)} with the drafter{gain}"),
    ]
    width = max(len(name) for name, _ in rows)
    return [f"{name:<{width}}  {value}" for name, value in rows]


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """The numbers of the final table."""
    report = outcome.report
    return {
        "ok": outcome.ok,
        "run": outcome.run,
        "verifier": outcome.verifier,
        "total_seconds": round(outcome.total_s, 2),
        "stages": {
            stage.name: {"state": stage.state, "seconds": stage.elapsed_s, "counts": dict(stage.counts)}
            for stage in outcome.snapshot.stages
        },
        **{
            name: report.get(name)
            for name in ("acceptance_length", "rate_by_position", "greedy_agreement", "tokens_per_s")
        },
    }
