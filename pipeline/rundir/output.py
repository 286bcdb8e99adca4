"""One output of a stage, `out/000N`: the data, where it comes from (source.json) and, once complete, its report."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.rundir.atomic import TEMPORARY, fsync_folder, read_json, write_json
from pipeline.rundir.paths import number_of

if TYPE_CHECKING:
    from pipeline.rundir.layout import StageDir

SOURCE, REPORT = "source.json", "report.json"


@dataclass(frozen=True)
class Output:
    """`path` is the folder, `stage` the stage it belongs to (of another run when it is borrowed)."""

    path: Path
    stage: StageDir

    @property
    def number(self) -> int:
        return number_of(self.path.name) or 0

    def source(self) -> dict[str, Any]:
        """What it is made from: plan_revision, params, fingerprint (of the params), inputs, borrowed, files."""
        return read_json(self.path / SOURCE) or {}

    def write_source(self, source: dict[str, Any]) -> None:
        write_json(self.path / SOURCE, source)

    def report(self) -> dict[str, Any] | None:
        """What the stage wrote at the end: stage, fingerprint (of the data), counts, params, …; None until then."""
        return read_json(self.path / REPORT)

    def write_report(self, report: dict[str, Any]) -> None:
        """Makes the output complete."""
        write_json(self.path / REPORT, report)

    def reopen(self) -> None:
        """Take the report away, because an attempt goes on with this output."""
        try:
            os.unlink(self.path / REPORT)
        except FileNotFoundError:
            return
        fsync_folder(self.path)

    @property
    def complete(self) -> bool:
        return self.fingerprint is not None

    @property
    def fingerprint(self) -> str | None:
        """Of the data, from the report; None while the output isn't complete."""
        report = self.report()
        value = report.get("fingerprint") if report else None
        return value if isinstance(value, str) and value else None

    @property
    def untouched(self) -> bool:
        """Whether no attempt left anything in it but empty files and folders."""
        return _holds_nothing(self.path)

    def params(self) -> dict[str, Any]:
        """The parameters that shape it, live changes included."""
        params = self.source().get("params")
        return params if isinstance(params, dict) else {}

    def name(self) -> str:
        """`RUN/STAGE output N`, for sentences."""
        return f"{self.stage.run.name}/{self.stage.stage} output {self.number}"


def _holds_nothing(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return all(_is_nothing(entry) for entry in entries)


def _is_nothing(entry: os.DirEntry[str]) -> bool:
    if entry.name == SOURCE or TEMPORARY in entry.name:
        return True
    if entry.is_dir(follow_symlinks=False):
        return _holds_nothing(Path(entry.path))
    return entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_size == 0
