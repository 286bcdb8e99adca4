"""Glyph, word and role of every state: the one place that says how a state looks. No colour stands alone.

Glyphs are one cell wide in every common terminal font. Standard library only.
"""

from __future__ import annotations

from console.snapshot import LinkView, Snapshot, StageView

ACTIVE = frozenset({"RUNNING", "STOPPING"})
ENDED_BADLY = frozenset({"FAILED", "KILLED", "INTERRUPTED", "LOST"})

_STAGES = {
    "PENDING": ("·", "faint"),
    "RUNNING": ("▶", "busy"),
    "STOPPING": ("▷", "warn"),
    "STOPPED": ("■", "warn"),
    "DONE": ("✓", "good"),
    "FAILED": ("✗", "bad"),
    "KILLED": ("✗", "warn"),
    "INTERRUPTED": ("!", "warn"),
    "LOST": ("?", "bad"),
    "UNREACHABLE": ("○", "warn"),
}

_LINKS = {
    "IDLE": ("○", "dim"),
    "CONNECTING": ("○", "busy"),
    "BOOTSTRAP": ("○", "busy"),
    "LIVE": ("●", "good"),
    "STALE": ("○", "warn"),
    "LOST": ("×", "bad"),
    "BACKOFF": ("×", "bad"),
    "BLOCKED": ("!", "bad"),
}

TRYING = frozenset({"IDLE", "CONNECTING", "BOOTSTRAP"})
"""Link states on the way to LIVE."""

CURRENT = frozenset({"LIVE"})
"""Link states in which the numbers on screen are current; in all others they fade."""


CONDUCTING = frozenset({"running", "waiting"})
"""Conductor states in which it goes from stage to stage by itself."""

_SERVICES = {
    "STARTING": ("○", "busy"),
    "READY": ("●", "good"),
    "SILENT": ("!", "warn"),
    "STOPPING": ("▷", "warn"),
    "FAILED": ("✗", "bad"),
    "LOST": ("?", "bad"),
}


def conductor_of(snapshot: Snapshot) -> tuple[str, str]:
    """(state in small letters, what it says): `waiting: service vllm`."""
    return snapshot.conductor.state, snapshot.conductor.message


def service_look(state: str) -> tuple[str, str] | None:
    """(glyph, role); None for a service that nobody needs to know of: it is not up, and nothing is wrong with it."""
    return _SERVICES.get(state)


def stage_look(stage: StageView) -> tuple[str, str]:
    """(glyph, role)."""
    return _STAGES.get(stage.state, ("?", "warn"))


def link_look(link: LinkView) -> tuple[str, str]:
    """(glyph, role)."""
    return _LINKS.get(link.state, ("?", "warn"))


def share_of(stage: StageView) -> float | None:
    """Progress of a stage from 0 to 1; a stage that is done is all of it."""
    if stage.state == "DONE":
        return 1.0
    if stage.done is None or not stage.total or stage.total <= 0:
        return None
    return min(1.0, max(0.0, stage.done / stage.total))


def active_stage(stages: tuple[StageView, ...]) -> StageView | None:
    """The stage at work, the latest one if there were several."""
    return next((stage for stage in reversed(stages) if stage.state in ACTIVE), None)


def stop_clock(stage: StageView, now_host: float | None) -> str:
    """`37/60s`: how much of its grace a stopping stage has used."""
    if stage.stop_since is None or now_host is None:
        return ""
    used = max(0.0, now_host - stage.stop_since)
    grace = f"/{stage.stop_grace_s:.0f}" if stage.stop_grace_s else ""
    return f"{used:.0f}{grace}s"
