"""One execution of a stage, `attempts/000N`: its specification, state, progress, requests and how it ended.

Writers: spec.json whoever starts it, state.json and exit.json the supervisor (or a stage that runs alone),
progress.json and outcome.json the stage, control/ anybody.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.rundir.atomic import FULL, encode, read_json, write_json, write_json_fast, write_new
from pipeline.rundir.errors import RunError, refuse_newer, restart_words
from pipeline.rundir.identity import alive, incarnation
from pipeline.rundir.output import Output
from pipeline.rundir.paths import number_of

if TYPE_CHECKING:
    from pipeline.rundir.layout import StageDir

REQUESTS = ("stop", "checkpoint", "kill")
EXIT_REASONS = ("done", "stopped", "failed", "killed", "lost")
RESULTS = ("done", "stopped", "failed")


@dataclass(frozen=True)
class Attempt:
    path: Path
    stage: StageDir

    @property
    def number(self) -> int:
        return number_of(self.path.name) or 0

    def file(self, name: str) -> Path:
        return self.path / name

    def spec(self) -> dict[str, Any]:
        """argv, env_allow, env, cwd, python, gpus, grace_s, services, plan_revision, output, resumed, created."""
        return read_json(self.path / "spec.json") or {}

    def output(self) -> Output:
        """The output this attempt writes. Raises RunError when spec.json is unreadable."""
        spec = self.spec()
        refuse_newer(spec, self.path / "spec.json")
        number = spec.get("output")
        if not isinstance(number, int):
            raise RunError(
                f"{self.path}/spec.json names no output", restart_words(self.stage.run.name, self.stage.stage)
            )
        return self.stage.output(number)

    def state(self) -> dict[str, Any]:
        """phase, incarnation, supervisor, main, members ({"pid","start"}), started, wall, mono; {} before the start."""
        return read_json(self.path / "state.json") or {}

    def write_state(self, **fields: Any) -> dict[str, Any]:
        """Merge fields into state.json (one writer) and return it. The first call is the start of the attempt.

        Raises OSError. When nothing fits the volume any more, the output that counted still does.
        """
        state, now = self.state(), time.time()
        first = not state
        if first:
            state = {"schema": 1, "phase": "starting", "incarnation": incarnation(), "started": now}
        state.update(fields, wall=now, mono=time.monotonic())
        write_json(self.path / "state.json", state)
        if first:
            # only now: whatever loses its report or its place has an attempt that says why
            self.begin()
        return state

    def begin(self) -> None:
        """Make this attempt's output the one that counts, and incomplete until this attempt completes it."""
        output = self.output()
        self.stage.point_current(output)
        output.reopen()

    def started(self) -> bool:
        return any((self.path / name).exists() for name in ("state.json", "outcome.json", "exit.json"))

    def progress(self) -> dict[str, Any] | None:
        return read_json(self.path / "progress.json")

    def write_progress(self, progress: dict[str, Any]) -> None:
        write_json_fast(self.path / "progress.json", progress)

    def outcome(self) -> dict[str, Any] | None:
        """What the stage itself wrote last: result, message, remedy, resumable, ended. None: it didn't get that far."""
        return read_json(self.path / "outcome.json")

    def write_outcome(self, result: str, message: str = "", remedy: str = "", resumable: bool = True) -> None:
        if result not in RESULTS:
            raise ValueError(f"result {result!r} is none of {RESULTS}")
        outcome = {"result": result, "message": message, "remedy": remedy, "resumable": resumable, "ended": time.time()}
        write_json(self.path / "outcome.json", outcome)

    def exit(self) -> dict[str, Any] | None:
        """How it ended: reason, code, signal, resumable, message, remedy, ended. None until the supervisor wrote it."""
        return read_json(self.path / "exit.json")

    def write_exit(
        self,
        *,
        reason: str,
        code: int | None = None,
        signal: int | None = None,
        resumable: bool = True,
        message: str = "",
        remedy: str = "",
        **more: Any,
    ) -> None:
        """Write exit.json, the last file of an attempt."""
        if reason not in EXIT_REASONS:
            raise ValueError(f"reason {reason!r} is none of {EXIT_REASONS}")
        record = {"reason": reason, "code": code, "signal": signal, "resumable": resumable, "message": message}
        write_json(self.path / "exit.json", {**record, "remedy": remedy, "ended": time.time(), **more})

    def request(self, kind: str, by: str) -> bool:
        """Leave a request: control/stop, checkpoint, or kill (for the supervisor). False when it was there already."""
        if kind not in REQUESTS:
            raise ValueError(f"request {kind!r} is none of {REQUESTS}")
        folder = self.path / "control"
        folder.mkdir(mode=0o700, exist_ok=True)
        try:
            return write_new(folder / kind, encode({"by": by, "t": time.time()}))
        except OSError as error:
            if error.errno not in FULL:
                raise
        # a full volume has no room for who asked, and most of all then a stop has to get through
        try:
            os.close(os.open(folder / kind, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            return False
        return True

    def requested(self, kind: str) -> dict[str, Any] | None:
        """Who asked and when ({"by","t"}), or None."""
        path = self.path / "control" / kind
        if not path.exists():
            return None
        return read_json(path) or {"by": "", "t": 0.0}

    def answer(self, kind: str) -> None:
        """Take a request away because it was carried out."""
        try:
            os.unlink(self.path / "control" / kind)
        except FileNotFoundError:
            pass

    def stop_requested(self) -> bool:
        return (self.path / "control" / "stop").exists()

    def living(self) -> list[int]:
        """Pids of remembered processes (supervisor, main, members) that still live; [] after a restart of the host."""
        state = self.state()
        if state.get("incarnation") != incarnation():
            return []
        members = state.get("members")
        remembered = [state.get("supervisor"), state.get("main"), *(members if isinstance(members, list) else [])]
        pairs = [(entry.get("pid"), entry.get("start")) for entry in remembered if isinstance(entry, dict)]
        found = [pid for pid, start in pairs if isinstance(pid, int) and alive(pid, start)]
        return sorted(set(found))
