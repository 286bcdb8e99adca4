"""A running attempt as its stage sees it: parameters, inputs, output; progress, metrics, events; stop and space.

Imports pipeline.config, pipeline.rundir and small neighbours; never torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.config import LIVE, Plan, StageParams, size_text
from pipeline.failure import StageError, mount_of
from pipeline.rate import Rate, eta_s
from pipeline.rundir import Attempt, JsonLines, Output, RunDir, RunError, recorded_inputs
from pipeline.rundir.contents import GROWN, change, record_of
from pipeline.rundir.errors import restart_words
from pipeline.rundir.lineage import may_grow, shaped_by, shaping_params
from pipeline.volume import Volume, measure_again, space, volume_of

_PROGRESS_EVERY_S, _POLL_EVERY_S, _LIVE_EVERY_S = 0.5, 0.1, 1.0


class Stopped(Exception):
    """A stage raises it once everything is saved: `stopping()` was true, or for the reason given in a sentence."""


class StageRun:
    """A running attempt as its stage sees it. Under torchrun only rank 0 writes; the other ranks' calls do nothing."""

    def __init__(self, attempt: Attempt, log: Callable[[str], None]) -> None:
        spec = attempt.spec()
        self.attempt = attempt
        self.run: RunDir = attempt.stage.run
        self.stage: str = attempt.stage.stage
        self.plan: Plan = self.run.plan(spec.get("plan_revision"))
        self.params: StageParams = self.plan.params(self.stage)
        self.rank = int(os.environ.get("RANK", "0"))
        counting = attempt.output()
        self.output: Path = counting.path
        self.inputs: dict[str, Output] = recorded_inputs(self.run, counting)
        self.resumed: bool = bool(spec.get("resumed"))
        self.finished = False
        self.stop_signal = ""
        self._log = log
        self._stop = False
        self._polled_at = self._live_at = self._progress_at = -1e9
        self._phase = self._note = ""
        self._rate = Rate()
        self._pending: dict[str, Any] | None = None
        self._record: dict[str, Any] = {"counts": {}}
        self._saving: dict[str, float | None] = {
            "save_s": self._save_s_before(),
            "saving_since": None,
            "saving_mono": None,
        }
        self._metrics: JsonLines | None = None
        self._events: JsonLines | None = None
        self._record_source()

    @property
    def main(self) -> bool:
        """Whether this process is the one that writes (rank 0)."""
        return self.rank == 0

    def log(self, line: str) -> None:
        """One line into the stage's log."""
        self._log(line)

    def stopping(self) -> bool:
        """Whether a stop was asked for (control/stop or a signal). Cheap: ask at every step; save, raise Stopped."""
        if self._stop:
            return True
        now = time.monotonic()
        if self.stop_signal:
            self._stop = True
            if self.main:
                # so that others see it stopping; on a full volume they don't, and it stops all the same
                with contextlib.suppress(OSError):
                    self.attempt.request("stop", by=self.stop_signal)
        elif now - self._polled_at >= _POLL_EVERY_S:
            self._polled_at = now
            self._stop = self.attempt.stop_requested()
        return self._stop

    def checkpoint_requested(self) -> bool:
        """Whether somebody asks for a checkpoint now; true once for each request."""
        if not self.main or self.attempt.requested("checkpoint") is None:
            return False
        self.attempt.answer("checkpoint")
        return True

    def progress(
        self,
        done: int,
        total: int | None,
        unit: str,
        *,
        counts: Mapping[str, float] | None = None,
        bytes: int = 0,
        phase: str = "running",
        note: str = "",
        force: bool = False,
    ) -> None:
        """Say where the stage is: `done` of `total` (None: unknown) samples, tokens, steps or answers; `bytes` written.

        `note` is what somebody should know of it now, such as why it waits. Goes into progress.json at most twice a
        second, at once when phase or note changes. Never fails the stage.
        """
        if not self.main:
            return
        now = time.monotonic()
        if phase != self._phase:
            self._rate.restart()
            self._phase, force = phase, True
        if note != self._note:
            self._note, force = note, True
        if not force and now - self._progress_at < _PROGRESS_EVERY_S:
            self._pending = {"done": done, "total": total, "unit": unit, "counts": counts, "bytes": bytes}
            return
        self._progress_at, self._pending = now, None
        rate = self._rate.add(now, done)
        record = {
            "done": done,
            "total": total,
            "unit": unit,
            "rate": rate,
            "eta_s": eta_s(done, total, rate),
            "counts": dict(counts or {}),
            "bytes": bytes,
            "phase": phase,
            "note": note,
            "t": time.time(),
        }
        # a full volume is reported by the stage's own writes; a number on a screen isn't worth a run
        with contextlib.suppress(OSError):
            self.attempt.write_progress({**record, **self._saving})
        self._record = record

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Around the writing of a checkpoint: a stop gives the stage the time it takes. Never fails it."""
        began = time.monotonic()
        self._tell_saving(saving_since=time.time(), saving_mono=began)
        try:
            yield
            self._tell_saving(save_s=time.monotonic() - began)
        finally:
            self._tell_saving(saving_since=None, saving_mono=None)

    def _tell_saving(self, **fields: float | None) -> None:
        self._saving.update(fields)
        if self.main:
            with contextlib.suppress(OSError):
                self.attempt.write_progress({**self._record, **self._saving})

    def _save_s_before(self) -> float | None:
        before = self.attempt.stage.attempt(self.attempt.number - 1).progress() if self.resumed else None
        known = (before or {}).get("save_s")
        return float(known) if isinstance(known, (int, float)) else None

    def metric(
        self, step: int, epoch: float | None = None, values: Mapping[str, float | None] | None = None, **named: float
    ) -> None:
        """Add numbers of a step to metrics.jsonl; those with a slash (`train/loss`) in `values`; NaN becomes null."""
        row: dict[str, Any] = {"t": time.time(), "step": step}
        if epoch is not None:
            row["epoch"] = epoch
        self._metric_row({**row, **(values or {}), **named})

    def resumed_at(self, step: int) -> None:
        """Say before the first metric that this attempt goes on after `step` (0: anew); curves are cut there."""
        self._metric_row({"resume_step": step, "t": time.time()})

    def event(self, kind: str, message: str, **fields: Any) -> None:
        """Add an event (checkpoint, warning, reject, info, saved) to events.jsonl; warnings are logged too."""
        if not self.main:
            return
        if self._events is None:
            self._events = JsonLines(self.attempt.path / "events.jsonl")
        self._events.append({"t": time.time(), "kind": kind, "message": message, **fields})
        if kind == "warning":
            self.log(f"warning: {message}")

    def live_params(self) -> StageParams:
        """The parameters with the newest plan's values of config.LIVE; the plan is read at most once a second."""
        now = time.monotonic()
        if now - self._live_at >= _LIVE_EVERY_S:
            self._live_at = now
            try:
                newest = self.run.plan().params(self.stage)
            except (RunError, OSError):
                return self.params
            names = (key.partition(".")[2] for key in LIVE if key.startswith(self.stage + "."))
            changes = {name: getattr(newest, name) for name in names}
            changes = {name: value for name, value in changes.items() if value != getattr(self.params, name)}
            if changes:
                words = ", ".join(f"{self.stage}.{name} = {value}" for name, value in changes.items())
                self.event("info", f"taken up from the plan: {words}")
                self.log(f"taken up from the plan: {words}")
                self.params = dataclasses.replace(self.params, **changes)
                stages = {**self.plan.stages}
                stages[self.stage] = dataclasses.replace(stages[self.stage], params=self.params)
                self.plan = dataclasses.replace(self.plan, stages=stages)
                # on a full volume `finish` records it
                with contextlib.suppress(OSError):
                    self._record_source()
        return self.params

    def has_read(self, name: str, path: Path, sha256: str) -> None:
        """Record the file of parameter `name` as it was read, which may be another one than when the output was opened.

        Raises StageError when an output that has something in it was begun with other lines, OSError.
        """
        output = self.attempt.output()
        source = output.source()
        files = source.get("files") or {}
        known = files.get(name)
        if not self.main or (known and known.get("sha256") == sha256):
            return
        grown = may_grow(self.stage) and change(known) == GROWN
        if known and not grown and not output.untouched:
            raise StageError(
                f"The file of {self.stage}.{name}, {path}, isn't the one that {output.name()} was begun with",
                restart_words(self.run.name, self.stage),
            )
        record = record_of(str(path)) or {}
        if record.get("sha256") != sha256:
            # replaced again meanwhile: no file is of this size, so that the content decides
            record = {"path": str(path), "bytes": -1, "mtime_ns": 0, "sha256": sha256}
        output.write_source({**source, "files": {**files, name: record}})

    def free_bytes(self) -> int:
        """Bytes that may still be written: free on the volume (and within the plan's capacity), less the reserve."""
        free = space(Volume(self.output)).free
        if self.plan.volume.capacity_bytes:
            free = min(free, space(volume_of(self.run, self.plan)).free)
        return max(0, free - self.plan.volume.reserve_bytes)

    def check_space(self, next_bytes: int) -> None:
        """Raise StageError when a write of that size would touch the reserve. Save first: the stage stays resumable."""
        free = self.free_bytes()
        if free < next_bytes and self.plan.volume.capacity_bytes:
            measure_again(volume_of(self.run, self.plan))
            free = self.free_bytes()
        if free < next_bytes:
            raise StageError(
                f"The volume {mount_of(self.output)} has room for {size_text(free)} before its reserve of "
                f"{size_text(self.plan.volume.reserve_bytes)}, and {self.stage} needs {size_text(next_bytes)} next",
                "Free space there, or lower volume.reserve_bytes, then resume",
            )

    def finish(self, counts: Mapping[str, float], fingerprint: str, **report: Any) -> None:
        """Write report.json: the output is complete. `fingerprint` identifies the data; it mustn't be empty."""
        if not fingerprint:
            raise ValueError("an output needs a fingerprint")
        if self.main:
            self._record_source()
            record = {
                **report,
                "schema": 1,
                "stage": self.stage,
                "fingerprint": fingerprint,
                "counts": dict(counts),
                "params": shaping_params(self.plan, self.stage),
                "plan_revision": self.plan.revision,
                "attempt": self.attempt.number,
                "ended": time.time(),
            }
            self.attempt.output().write_report(record)
        self.finished = True

    def close(self) -> None:
        """Write the last progress that was held back, and close the files."""
        if self._pending is not None:
            self.progress(**self._pending, phase=self._phase, note=self._note, force=True)
        for file in (self._metrics, self._events):
            if file is not None:
                file.close()

    def _record_source(self) -> None:
        """Keep source.json saying what the output is made with: the plan it is continued under, live changes."""
        output, shaped = self.attempt.output(), shaped_by(self.plan, self.stage)
        source = output.source()
        if self.main and any(source.get(name) != value for name, value in shaped.items()):
            output.write_source({**source, **shaped})

    def _metric_row(self, row: Mapping[str, Any]) -> None:
        if not self.main:
            return
        if self._metrics is None:
            self._metrics = JsonLines(self.attempt.path / "metrics.jsonl")
        self._metrics.append(row)
