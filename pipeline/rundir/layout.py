"""A run on disk: the run directory with its plan revisions, its stages, their outputs and attempts.

Standard library only, Python >= 3.9. Imports the other modules of this folder; pipeline.config where a plan is read,
because a supervisor reads none and stays small.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.rundir.atomic import encode, fsync_folder, read_json, replace_link, temporary, write_json, write_new
from pipeline.rundir.attempt import Attempt
from pipeline.rundir.errors import PlanConflict, RunError, refuse_newer, restart_words
from pipeline.rundir.output import Output
from pipeline.rundir.paths import RESERVED, number_of, numbered, numbers, stay_inside, valid_name
from pipeline.stages import STAGES

if TYPE_CHECKING:
    from pipeline.config import Plan

SCHEMA = 1


@dataclass(frozen=True)
class RunDir:
    """A run directory. Made by `create` or `open`."""

    path: Path

    @classmethod
    def create(cls, root: Path, name: str, plan: Plan) -> RunDir:
        """Make `root/name` with run.json and plan/0001.json, whole or not at all. Raises RunError, OSError."""
        import shutil

        root = Path(root).absolute()
        if not valid_name(name) or name in RESERVED:
            raise RunError(
                f"{name!r} can't be the name of a run",
                "Use a-z, 0-9, '.', '_' and '-', a letter or digit first, up to 64; not " + ", ".join(sorted(RESERVED)),
            )
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = root / name
        taken = RunError(
            f"A run {name} is already in {root}",
            f"Its plan is on the host: `eagledeck set {name} KEY=VALUE` changes it. Another name makes another run",
        )
        if os.path.lexists(path):
            raise taken
        build = temporary(path)
        build.mkdir(mode=0o700)
        try:
            run = cls(build)
            run.write_plan(plan, plan.note)
            identity = {"schema": SCHEMA, "id": os.urandom(16).hex(), "name": name, "created": time.time()}
            write_json(build / "run.json", identity)
            os.rename(build, path)
        except OSError as error:
            shutil.rmtree(build, ignore_errors=True)
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise taken from None
            raise
        except BaseException:
            shutil.rmtree(build, ignore_errors=True)
            raise
        fsync_folder(root)
        return cls(path)

    @classmethod
    def open(cls, path: Path | str) -> RunDir:
        """An existing run. Raises RunError: no run there, a link out of the root, or written by a newer Eagledeck."""
        path = Path(os.path.abspath(path))
        stay_inside(path.parent, path)
        identity = read_json(path / "run.json")
        if identity is None:
            raise RunError(f"There is no run at {path}", "Check the name; `eagledeck init` makes a new run")
        refuse_newer(identity, path / "run.json", SCHEMA)
        return cls(path)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def root(self) -> Path:
        return self.path.parent

    def identity(self) -> dict[str, Any]:
        """run.json: schema, id, name, created."""
        return read_json(self.path / "run.json") or {}

    def plans(self) -> list[int]:
        """Revisions of the plan, ascending."""
        try:
            names = os.listdir(self.path / "plan")
        except FileNotFoundError:
            return []
        found = (number_of(name[:-5]) for name in names if name.endswith(".json"))
        return sorted(number for number in found if number is not None)

    def plan(self, revision: int | None = None) -> Plan:
        """The newest readable revision, or the one asked for. Raises RunError: none there, or one this can't read."""
        from pipeline.config import ConfigError, Plan

        for number in [revision] if revision is not None else reversed(self.plans()):
            path = numbered(self.path / "plan", number, ".json")
            raw = read_json(path)
            if raw is None:
                continue
            try:
                return Plan.from_json({**raw, "revision": number})
            except ConfigError as error:
                raise RunError(f"{path}: {error.message}", error.remedy) from None
        wanted = "" if revision is None else f" revision {revision}"
        raise RunError(f"The run {self.path} has no readable plan{wanted}", "Make the run again with `eagledeck init`")

    def write_plan(self, plan: Plan, note: str) -> Plan:
        """Write the next revision and return it as written.

        A plan that was read from the run (revision > 0) must still be the newest, or else PlanConflict (a RunError) is
        raised: nobody's change is overwritten unseen. Raises OSError on a full volume.
        """
        folder = self.path / "plan"
        folder.mkdir(mode=0o700, exist_ok=True)
        while True:
            numbers_taken = self.plans()
            newest = self._newest_readable(numbers_taken)
            if plan.revision and newest > plan.revision:
                raise PlanConflict(
                    f"The plan of {self.name} is at revision {newest} by now; this change was made to {plan.revision}",
                    "Look at the new plan and make the change again",
                )
            number = max(numbers_taken, default=0) + 1
            new = dataclasses.replace(plan, revision=number, created=time.time(), note=note)
            if write_new(numbered(folder, number, ".json"), encode(new.to_json())):
                return new

    def _newest_readable(self, revisions: list[int]) -> int:
        """The newest revision that isn't torn; 0 without one."""
        for number in reversed(revisions):
            if read_json(numbered(self.path / "plan", number, ".json")) is not None:
                return number
        return 0

    def change_plan(self, changes: Mapping[str, object], note: str) -> Plan:
        """Set keys (see config.set_values) on the newest plan and write it, again if another writer was faster.

        Raises ConfigError, RunError."""
        from pipeline.config import set_values

        while True:
            try:
                return self.write_plan(set_values(self.plan(), changes), note)
            except PlanConflict:
                continue

    def stage(self, name: str) -> StageDir:
        """The folder of a stage. Raises RunError for an unknown name, or a link out of the run."""
        if name not in STAGES:
            raise RunError(f"There is no stage {name!r}", "Stages are " + ", ".join(STAGES))
        stage = StageDir(self.path / name, self)
        stay_inside(self.path, stage.path)
        for part in ("attempts", "out"):
            stay_inside(stage.path, stage.path / part)
        return stage


def runs(root: Path) -> list[str]:
    """Names of the runs in a root, sorted."""
    try:
        names = os.listdir(root)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(name for name in names if valid_name(name) and (Path(root) / name / "run.json").is_file())


@dataclass(frozen=True)
class StageDir:
    path: Path
    run: RunDir

    @property
    def stage(self) -> str:
        return self.path.name

    @property
    def lock_path(self) -> Path:
        """Held by the supervisor, or by a stage that runs alone."""
        return self.path / "lock"

    @property
    def writer_lock_path(self) -> Path:
        """Held by the stage's main process (inherited from the supervisor)."""
        return self.path / "writer.lock"

    def make(self) -> StageDir:
        """Make the folder, so that its lock can be taken."""
        self.path.mkdir(mode=0o700, exist_ok=True)
        stay_inside(self.run.path, self.path)
        return self

    def attempts(self) -> list[int]:
        return numbers(self.path / "attempts")

    def attempt(self, number: int) -> Attempt:
        return Attempt(numbered(self.path / "attempts", number), self)

    def latest(self) -> Attempt | None:
        """The newest attempt, started or not."""
        found = self.attempts()
        return self.attempt(found[-1]) if found else None

    def outputs(self) -> list[int]:
        return numbers(self.path / "out")

    def output(self, number: int) -> Output:
        """Output `number`. Raises RunError when it isn't there."""
        if number not in self.outputs():
            raise RunError(
                f"{self.run.name}/{self.stage} has no output {number}", restart_words(self.run.name, self.stage)
            )
        return Output(numbered(self.path / "out", number), self)

    def current(self) -> Output | None:
        """The output that counts, of this run (borrowing: lineage.counting_output); None when there is none."""
        link, remedy = self.path / "current", "Link it to an output of the stage, such as out/0001"
        try:
            target = os.readlink(link)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:
            raise RunError(f"{link} is no link", remedy) from None
        folder, _, name = target.partition("/")
        number = number_of(name) if folder == "out" else None
        if number is None:
            raise RunError(f"{link} points at {target}", remedy)
        return self.output(number) if number in self.outputs() else None

    def point_current(self, output: Output) -> None:
        """Make `output` the one that counts, in one step."""
        target = f"out/{output.path.name}"
        link = self.path / "current"
        if not (link.is_symlink() and os.readlink(link) == target):
            replace_link(link, target)

    def new_attempt(
        self,
        *,
        restart: bool = False,
        argv: list[str] | None = None,
        cwd: str = "",
        python: str = "",
        by: str = "",
    ) -> Attempt:
        """Open an attempt; see start.new_attempt."""
        from pipeline.rundir.start import new_attempt

        return new_attempt(self, restart=restart, argv=argv, cwd=cwd, python=python, by=by)
