"""What the console knows at one moment, as one immutable value.

The collector fills it, the screens and the command line only read it.
`None` means unknown and is shown as `—`; it never turns into 0.
Standard library only: no Textual, no asyncssh, nothing of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FULL_SOON_S = 6 * 3600.0
"""A volume that is full within this time is an alert: half a working day to act in."""
HALF_FULL = 0.5
"""Below this fill a rate measured over minutes says little: a large file that comes and goes would be an alert."""


@dataclass(frozen=True)
class LinkView:
    """The connection to the host.

    `state` is the name of a link state: IDLE, CONNECTING, BOOTSTRAP, LIVE, STALE, LOST, BACKOFF or BLOCKED.
    `locked` are identity files with a passphrase that a refused login might have needed.
    `age_s` is how old the data on screen is (seconds since the last line from the host, None before the first one).
    """

    state: str
    age_s: float | None
    rtt_ms: float | None
    retry_in_s: float | None
    host: str
    message: str
    remedy: str
    skew_s: float | None
    locked: tuple[str, ...] = ()


@dataclass(frozen=True)
class GpuView:
    """One GPU. Watts, percent, bytes, degrees Celsius; `error` says why a reading is missing."""

    index: int
    name: str
    power_w: float | None
    power_limit_w: float | None
    util_pct: float | None
    mem_used: float | None
    mem_total: float | None
    temp_c: float | None
    error: str


@dataclass(frozen=True)
class DiskView:
    """The data volume, in bytes.

    `fill_rate_bps` is bytes per second, `full_in_s` seconds until the reserve is reached at that rate.
    """

    path: str
    capacity: int | None
    used: int | None
    free: int | None
    reserve: int | None
    fill_rate_bps: float | None
    full_in_s: float | None

    @property
    def fills_soon(self) -> bool:
        """Whether it needs a person within hours."""
        if self.full_in_s is None or self.full_in_s >= FULL_SOON_S:
            return False
        return not (self.used is not None and self.capacity and self.used / self.capacity < HALF_FULL)


@dataclass(frozen=True)
class StageView:
    """One stage of the run.

    `state` is a StageState name, `done` and `total` count `unit`s, `stop_since` is host wall time in seconds.
    `stale_root` is the stage with the first cause of its being STALE, `kept`: somebody has said to use it all the same.
    `note` is why a stage at work waits; `saved` is where a resume goes on, in `unit`s; None when the host doesn't say.
    """

    name: str
    state: str
    attempt: int | None
    output: int | None
    stale: bool
    stale_reason: str
    stale_root: str
    kept: bool
    resumable: bool
    message: str
    remedy: str
    done: int | None
    total: int | None
    unit: str
    saved: int | None
    rate: float | None
    eta_s: float | None
    elapsed_s: float | None
    phase: str
    note: str
    counts: Mapping[str, float]
    report: Mapping[str, object]
    stop_grace_s: float | None
    stop_since: float | None

    @property
    def undecided(self) -> bool:
        """Whether it is STALE and nobody has said what becomes of it."""
        return self.stale and not self.kept


@dataclass(frozen=True)
class ConductorView:
    """What goes from stage to stage.

    `state` in small letters: idle, running, waiting, halted, stopped, done, lost, failed; "" before the host has said
    anything.
    `stage` is the one it is or was at; `cause` of a halt: "stale" (it was so then), "ended" (the stage
    has said how), or "". `settles`: stages that it reruns or keeps by itself where they are STALE.
    """

    state: str = ""
    stage: str = ""
    message: str = ""
    remedy: str = ""
    cause: str = ""
    settles: tuple[str, ...] = ()


@dataclass(frozen=True)
class Curve:
    """One metric by step.

    The three tuples have the same length; a None value is a step without this metric (or a NaN).
    """

    name: str
    steps: tuple[float, ...]
    epochs: tuple[float | None, ...]
    values: tuple[float | None, ...]


@dataclass(frozen=True)
class EventView:
    """One event of a stage; `t` is host wall time in seconds."""

    t: float
    stage: str
    kind: str
    message: str


@dataclass(frozen=True)
class BudgetView:
    """Whether the planned run fits the volume; `text` is the arithmetic in words."""

    need_bytes: int | None
    available_bytes: int | None
    fits: bool | None
    text: str


@dataclass(frozen=True)
class ServiceView:
    """A long-lived server that stages need."""

    name: str
    state: str
    url: str
    message: str


@dataclass(frozen=True)
class Snapshot:
    """Everything a screen draws.

    `log` holds sanitised tail lines of `log_source`; `taken_wall` is this machine's wall time in seconds.
    """

    link: LinkView
    run: str
    host: str
    plan_revision: int | None
    through: str
    verifier: str
    stages: tuple[StageView, ...]
    gpus: tuple[GpuView, ...]
    gpu_note: str
    disk: DiskView | None
    samples: int | None
    tokens: int | None
    tokens_target: int | None
    samples_target: int | None
    curves: tuple[Curve, ...]
    acceptance_length: float | None
    log: tuple[str, ...]
    log_source: str
    events: tuple[EventView, ...]
    budget: BudgetView | None
    services: tuple[ServiceView, ...]
    conductor: ConductorView
    runs: tuple[str, ...]
    taken_wall: float
    plan: Mapping[str, object] | None
