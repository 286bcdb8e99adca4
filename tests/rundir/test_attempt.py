"""The records of an attempt: requests, state, outcome, exit; and what another version wrote."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.rundir import (
    Attempt,
    RunDir,
    RunError,
    StageDir,
    latest_checkpoint,
    read_json,
    recorded_inputs,
    write_checkpoint,
    write_json,
)

Begin = Callable[..., Attempt]


@pytest.fixture
def generate(run: RunDir) -> StageDir:
    return run.stage("generate").make()


def test_requests_are_left_once(generate: StageDir, begin: Begin) -> None:
    attempt = begin(generate)
    assert not attempt.stop_requested()
    assert attempt.request("stop", by="anna") is True
    assert attempt.request("stop", by="bert") is False
    assert attempt.stop_requested()
    assert (attempt.requested("stop") or {})["by"] == "anna"
    assert attempt.requested("checkpoint") is None
    attempt.request("checkpoint", by="bert")
    attempt.answer("checkpoint")
    attempt.answer("checkpoint")
    assert attempt.requested("checkpoint") is None
    assert os.listdir(attempt.path / "control") == ["stop"]
    with pytest.raises(ValueError, match="is none of"):
        attempt.request("../../stop", by="mallory")


def test_a_stop_gets_through_on_a_full_volume(
    generate: StageDir, begin: Begin, full_after: Callable[[int], None]
) -> None:
    attempt = begin(generate)
    full_after(0)
    assert attempt.request("stop", by="anna") is True
    assert attempt.stop_requested()
    assert attempt.requested("stop") == {"by": "", "t": 0.0}
    assert attempt.request("stop", by="anna") is False


def test_what_a_newer_version_wrote_is_not_gone_on_with(tmp_path: Path, generate: StageDir, begin: Begin) -> None:
    def raise_schema(path: Path) -> None:
        record = read_json(path)
        assert record is not None
        write_json(path, {**record, "schema": 2})

    attempt = begin(generate)
    (attempt.output().path / "data").write_text("data")
    output = attempt.output()
    raise_schema(output.path / "source.json")
    for use in (lambda: begin(generate), lambda: recorded_inputs(generate.run, output)):
        with pytest.raises(RunError, match=r"source\.json was written by a newer Eagledeck \(schema 2"):
            use()
    raise_schema(attempt.path / "spec.json")
    with pytest.raises(RunError, match=r"spec\.json was written by a newer Eagledeck"):
        attempt.output()
    checkpoint = write_checkpoint(tmp_path / "c", "step-1", lambda folder: (folder / "x").write_text("x"), {}, 1)
    raise_schema(checkpoint / "manifest.json")
    with pytest.raises(RunError, match=r"manifest\.json was written by a newer Eagledeck"):
        latest_checkpoint(tmp_path / "c")


def test_an_attempt_without_a_readable_specification_names_it(generate: StageDir, begin: Begin) -> None:
    attempt = begin(generate)
    (attempt.path / "spec.json").write_text("")
    with pytest.raises(RunError, match=r"spec\.json names no output"):
        attempt.output()


def test_records_refuse_unknown_words(generate: StageDir, begin: Begin) -> None:
    attempt = begin(generate)
    with pytest.raises(ValueError, match="is none of"):
        attempt.write_exit(reason="finished")
    with pytest.raises(ValueError, match="is none of"):
        attempt.write_outcome("killed")
    assert attempt.exit() is None
    assert attempt.outcome() is None


def test_state_is_merged_and_begins_with_the_incarnation(generate: StageDir, begin: Begin) -> None:
    attempt = begin(generate)
    started = attempt.state()["started"]
    state = attempt.write_state(phase="stopping", members=[])
    assert state["started"] == started
    assert state["phase"] == "stopping"
    assert set(state["incarnation"]) == {"boot_id", "pidns", "pid1_start"}
    write_json(attempt.path / "state.json", {})
    assert attempt.living() == []
