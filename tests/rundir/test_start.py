"""Who may open an attempt, and on which output."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import Plan
from pipeline.failure import StageError
from pipeline.rundir import (
    Attempt,
    Lock,
    Output,
    RunDir,
    RunError,
    StageDir,
    inputs_of,
    process_start,
    resume_refusal,
    stale,
    status,
)
from pipeline.stagerun import StageRun

Start = Callable[..., Any]
Begin = Callable[..., Attempt]
Complete = Callable[..., Output]
Change = Callable[..., Plan]


def save(attempt: Attempt, text: str = "data") -> None:
    """Leave something in the output, so that it is one to be continued."""
    (attempt.output().path / "data").write_text(text)


@pytest.fixture
def generate(run: RunDir) -> StageDir:
    return run.stage("generate").make()


def test_it_takes_the_lock_of_the_stage(generate: StageDir, hold: Start) -> None:
    with pytest.raises(RunError, match="this process doesn't hold its lock"):
        generate.new_attempt()
    hold(generate.lock_path)
    with pytest.raises(RunError, match="this process doesn't hold its lock"):
        generate.new_attempt()
    assert generate.attempts() == []
    assert generate.outputs() == []


def test_the_specification_says_what_runs(run: RunDir, generate: StageDir, begin: Begin, change: Change) -> None:
    change(run, generate__python="/opt/py", generate__gpus="0,3", generate__env_allow="HF_HOME", generate__grace_s="7")
    spec = begin(generate, by="test").spec()
    path = str(generate.path / "attempts" / "0001")
    assert spec["argv"] == ["/opt/py", "-u", "-m", "pipeline.generate", "--run", str(run.path), "--attempt", path]
    assert (spec["gpus"], spec["env_allow"], spec["grace_s"]) == ([0, 3], ["HF_HOME"], 7.0)
    assert (spec["plan_revision"], spec["output"], spec["resumed"], spec["by"]) == (2, 1, False, "test")
    assert (Path(spec["cwd"]) / "pipeline" / "rundir").is_dir()
    own = begin(generate, argv=["torchrun", "{run}", "{attempt}", "{other}"]).spec()["argv"]
    assert own == ["torchrun", str(run.path), path.replace("0001", "0002"), "{other}"]


def test_resume_continues_the_output_and_restart_opens_a_new_one(generate: StageDir, begin: Begin) -> None:
    first = begin(generate)
    save(first)
    second = begin(generate)
    assert (second.number, second.output().number, second.spec()["resumed"]) == (2, 1, True)
    third = begin(generate, restart=True)
    assert (third.number, third.output().number, third.spec()["resumed"]) == (3, 2, False)
    assert os.readlink(generate.path / "current") == "out/0002"
    save(third)
    assert begin(generate).output().number == 2
    assert (generate.path / "out" / "0001" / "data").read_text() == "data"


def test_current_moves_when_the_attempt_starts_and_not_before(generate: StageDir, complete: Complete) -> None:
    complete(generate)
    with Lock.acquire(generate.lock_path):  # type: ignore[union-attr]
        attempt = generate.new_attempt(restart=True)
        assert generate.current() == generate.output(1)
        assert generate.output(1).complete
        attempt.write_state(phase="starting")
        assert generate.current() == generate.output(2)


def test_an_output_that_got_nothing_is_used_again_under_any_plan(
    run: RunDir, generate: StageDir, begin: Begin, change: Change
) -> None:
    attempt = begin(generate)
    (attempt.output().path / "samples.jsonl").touch()
    (attempt.output().path / "checkpoints" / "empty").mkdir(parents=True)
    change(run, generate__prompts="/data/right.jsonl")
    again = begin(generate)
    assert (again.output().number, again.spec()["resumed"]) == (1, False)
    assert again.output().source()["params"]["prompts"] == "/data/right.jsonl"
    assert begin(generate, restart=True).output().number == 1


def test_what_shapes_the_data_cannot_change_halfway(
    run: RunDir, generate: StageDir, begin: Begin, change: Change
) -> None:
    save(begin(generate))
    change(run, generate__temperature="0.2")
    assert resume_refusal(generate) == "output 1 was begun with temperature = 0.7, the plan says 0.2"
    with pytest.raises(RunError, match=r"one/generate can't go on: output 1 was begun with temperature") as caught:
        begin(generate)
    assert caught.value.remedy == "`eagledeck restart one generate` opens a new output; this one stays on disk"
    assert begin(generate, restart=True).output().number == 2


def test_how_much_and_how_may_change_halfway(run: RunDir, generate: StageDir, begin: Begin, change: Change) -> None:
    save(begin(generate))
    change(run, generate__max_samples="10001", generate__concurrency="4", generate__endpoint="http://other:8000/v1")
    attempt = begin(generate)
    assert attempt.spec()["resumed"] is True
    assert attempt.output().source()["plan_revision"] == 1
    StageRun(attempt, print)
    source = attempt.output().source()
    assert (source["plan_revision"], source["params"]["max_samples"]) == (2, 10_001)


def test_a_complete_output_is_only_continued_when_it_is_to_become_more(
    run: RunDir, generate: StageDir, begin: Begin, complete: Complete, change: Change
) -> None:
    output = complete(generate)
    with pytest.raises(RunError, match="output 1 is complete"):
        begin(generate)
    change(run, generate__max_samples="20000")
    attempt = begin(generate)
    assert attempt.output() == output
    assert not output.complete


def test_inputs_have_to_be_there_and_complete(run: RunDir, begin: Begin, complete: Complete) -> None:
    extract = run.stage("extract")
    with pytest.raises(RunError, match="extract needs an output of generate, and there is none yet") as caught:
        begin(extract)
    assert caught.value.remedy == 'Run generate first, or borrow it with generate.from_run = "RUN/generate"'
    save(begin(run.stage("generate")))
    with pytest.raises(RunError, match="extract needs one/generate output 1 to be complete"):
        begin(extract)
    assert extract.attempts() == []
    complete(run.stage("generate"))
    source = begin(extract).output().source()
    assert source["inputs"] == {"generate": {"run": "one", "output": 1, "fingerprint": "one-generate-1"}}


def test_resume_keeps_to_the_inputs_it_was_begun_from(
    run: RunDir, begin: Begin, complete: Complete, change: Change
) -> None:
    complete(run.stage("generate"))
    save(begin(run.stage("extract")))
    complete(run.stage("generate"), restart=True)
    with pytest.raises(RunError, match="output 1 was begun from another state of generate"):
        begin(run.stage("extract"))
    assert begin(run.stage("extract"), restart=True).output().source()["inputs"]["generate"]["output"] == 2


def test_deploy_reads_the_samples_unless_it_has_prompts(
    run: RunDir, begin: Begin, complete: Complete, change: Change
) -> None:
    for name in ("generate", "extract", "vocab", "train"):
        complete(run.stage(name))
    assert set(begin(run.stage("deploy")).output().source()["inputs"]) == {"train", "generate"}
    change(run, deploy__prompts="/data/held-out.jsonl")
    assert set(begin(run.stage("deploy"), restart=True).output().source()["inputs"]) == {"train"}


def test_no_attempt_while_the_writer_lock_is_held(generate: StageDir, begin: Begin, hold: Start) -> None:
    begin(generate)
    holder = hold(generate.writer_lock_path)
    with pytest.raises(RunError, match="A process of one/generate still writes"):
        begin(generate)
    holder.kill()
    begin(generate)


@pytest.mark.parametrize("role", ["supervisor", "main", "members"])
def test_no_attempt_while_a_remembered_member_lives(generate: StageDir, begin: Begin, child: Start, role: str) -> None:
    attempt = begin(generate)
    member = child("import sys; sys.stdin.readline()")
    record = {"pid": member.process.pid, "start": process_start(member.process.pid)}
    attempt.write_state(**{role: [record] if role == "members" else record})
    begin_again = begin
    with pytest.raises(RunError, match=rf"still live \(pid {member.process.pid}\)"):
        begin_again(generate)
    member.kill()
    begin_again(generate)


def test_a_supervisor_that_has_said_how_it_ended_is_as_good_as_gone(
    generate: StageDir, begin: Begin, child: Start
) -> None:
    attempt = begin(generate)
    supervisor, member = (child("import sys; sys.stdin.readline()").process.pid for _ in range(2))
    attempt.write_state(
        supervisor={"pid": supervisor, "start": process_start(supervisor)},
        members=[{"pid": member, "start": process_start(member)}],
    )
    with pytest.raises(RunError, match="still live"):
        begin(generate)
    attempt.write_exit(reason="killed")
    with pytest.raises(RunError, match=rf"\(pid {member}\)"):
        begin(generate)
    attempt.write_state(members=[])
    begin(generate)


def test_members_of_earlier_attempts_count_too(generate: StageDir, begin: Begin, child: Start) -> None:
    member = child("import sys; sys.stdin.readline()")
    first = begin(generate)
    begin(generate)
    first.write_state(members=[{"pid": member.process.pid, "start": process_start(member.process.pid)}])
    with pytest.raises(RunError, match="still live"):
        begin(generate)


def test_a_reused_pid_or_one_of_an_earlier_life_of_the_host_is_nobody(generate: StageDir, begin: Begin) -> None:
    attempt = begin(generate)
    parent = os.getppid()
    attempt.write_state(main={"pid": parent, "start": (process_start(parent) or 0) - 1})
    assert attempt.living() == []
    attempt = begin(generate)
    attempt.write_state(main={"pid": parent, "start": process_start(parent)}, incarnation={"boot_id": "before"})
    assert attempt.living() == []
    begin(generate)


RESUME = """
import sys
from pipeline.rundir import Lock, RunDir, RunError
stage = RunDir.open(sys.argv[1]).stage("generate")
print("ready")
sys.stdin.readline()
lock = Lock.acquire(stage.make().lock_path)
if lock is None:
    print("refused")
else:
    print("attempt", stage.new_attempt().number)
sys.stdin.readline()
"""


def test_of_many_that_resume_at_once_one_wins(run: RunDir, begin: Begin, child: Start) -> None:
    save(begin(run.stage("generate")))
    for number in range(2, 8):
        racers = [child(RESUME, run.path) for _ in range(4)]
        for racer in racers:
            assert racer.hears() == "ready"
        for racer in racers:
            racer.tell()
        assert sorted(racer.hears() for racer in racers) == [f"attempt {number}"] + ["refused"] * 3
        for racer in racers:
            racer.end()
    assert run.stage("generate").attempts() == list(range(1, 8))
    assert run.stage("generate").outputs() == [1]


@pytest.mark.parametrize("restart", [False, True])
def test_killed_at_any_step_the_next_attempt_starts_all_the_same(
    tmp_path: Path, run: RunDir, begin: Begin, every_crash: Callable[..., Iterator[int]], restart: bool
) -> None:
    stage = run.stage("generate")
    save(begin(stage))
    pristine = tmp_path / "pristine"
    shutil.copytree(run.path, pristine, symlinks=True)

    def prepare() -> None:
        shutil.rmtree(run.path)
        shutil.copytree(pristine, run.path, symlinks=True)

    for _ in every_crash(prepare, lambda: begin(stage, restart=restart)):
        assert stage.current() is not None
        assert (stage.path / "out" / "0001" / "data").read_text() == "data"
        attempt = begin(stage, restart=restart)
        assert attempt.output().number == (2 if restart else 1)
        assert attempt.output().source()["plan_revision"] == 1
        assert stage.current() == attempt.output()


def test_killed_at_any_step_of_going_on_with_what_is_complete(
    tmp_path: Path,
    run: RunDir,
    begin: Begin,
    complete: Complete,
    change: Change,
    every_crash: Callable[..., Iterator[int]],
) -> None:
    stage = run.stage("generate")
    output = complete(stage)
    change(run, generate__max_samples="20000")
    pristine = tmp_path / "pristine"
    shutil.copytree(run.path, pristine, symlinks=True)

    def prepare() -> None:
        shutil.rmtree(run.path)
        shutil.copytree(pristine, run.path, symlinks=True)

    seen = set()
    for _ in every_crash(prepare, lambda: begin(stage)):
        found = status(stage)
        seen.add((str(found.state), output.complete))
        assert resume_refusal(stage) == ""
        assert begin(stage).output() == output
    # what is DONE still has its report; what lost it has an attempt that says so
    assert seen == {("DONE", True), ("LOST", False)}


def test_a_full_volume_opens_no_attempt_that_looks_started(
    run: RunDir, generate: StageDir, begin: Begin, full_after: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    save(begin(generate))
    with monkeypatch.context():
        full_after(50)
        with pytest.raises(OSError, match="No space left"):
            begin(generate)
    monkeypatch.undo()
    assert begin(generate).spec()["resumed"] is True


def test_a_folder_that_links_out_gets_no_attempt(generate: StageDir, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (generate.path / "attempts").symlink_to(tmp_path / "outside")
    with Lock.acquire(generate.lock_path), pytest.raises(RunError, match="link that leaves"):  # type: ignore[union-attr]
        generate.new_attempt()
    assert os.listdir(tmp_path / "outside") == []


def test_the_default_python_is_this_one(generate: StageDir, begin: Begin) -> None:
    assert begin(generate).spec()["argv"][0] == sys.executable


def test_a_restart_that_finds_no_room_leaves_the_complete_output_counting(
    run: RunDir,
    generate: StageDir,
    complete: Complete,
    full_after: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    complete(generate)
    with Lock.acquire(generate.lock_path):  # type: ignore[union-attr]
        attempt = generate.new_attempt(restart=True)
        with monkeypatch.context():
            full_after(0)
            with pytest.raises(OSError, match="No space left"):
                attempt.write_state(phase="starting")
        monkeypatch.undo()
    assert generate.current() == generate.output(1)
    assert (status(generate).state.value, status(generate).output) == ("DONE", 1)
    assert inputs_of(run, "extract")["generate"].number == 1


def test_killed_at_any_step_of_a_restart_what_counted_counts_or_the_stage_says_why(
    tmp_path: Path, run: RunDir, begin: Begin, complete: Complete, every_crash: Callable[..., Iterator[int]]
) -> None:
    stage = run.stage("generate")
    complete(stage)
    pristine = tmp_path / "pristine"
    shutil.copytree(run.path, pristine, symlinks=True)

    def prepare() -> None:
        shutil.rmtree(run.path)
        shutil.copytree(pristine, run.path, symlinks=True)

    seen = set()
    for _ in every_crash(prepare, lambda: begin(stage, restart=True)):
        found, counting = status(stage), stage.current()
        assert counting is not None
        seen.add((found.state.value, found.output, counting.number))
        if counting.number == 1:
            assert inputs_of(run, "extract")["generate"].number == 1
        assert begin(stage, restart=True).output().number == 2
    # a start that was cut off before its output counts has changed nothing
    assert seen == {("DONE", 1, 1), ("LOST", 2, 2)}


class TestPrompts:
    @pytest.fixture
    def prompts(self, run: RunDir, tmp_path: Path, change: Change) -> Path:
        path = tmp_path / "prompts.jsonl"
        path.write_text('{"prompt": "a"}\n')
        change(run, generate__prompts=str(path))
        return path

    def test_replaced_while_generate_runs_it_stays_stale(
        self, run: RunDir, generate: StageDir, begin: Begin, prompts: Path
    ) -> None:
        attempt = begin(generate)
        save(attempt)
        stage = StageRun(attempt, print)
        prompts.write_text('{"prompt": "other"}\n')
        assert "has changed since" in stale(run, "generate").reason
        stage.finish({"samples": 1}, "data")
        assert "has changed since" in stale(run, "generate").reason

    def test_replaced_it_is_not_gone_on_with(
        self, run: RunDir, generate: StageDir, begin: Begin, prompts: Path
    ) -> None:
        save(begin(generate))
        prompts.write_text('{"prompt": "b"}\n')
        with pytest.raises(
            RunError, match=r"the file of generate\.prompts, .* has changed since output 1 was begun"
        ) as no:
            begin(generate)
        assert no.value.remedy.startswith("`eagledeck restart one generate`")
        assert begin(generate, restart=True).output().number == 2

    def test_more_lines_may_be_gone_on_to(
        self, run: RunDir, generate: StageDir, complete: Complete, begin: Begin, prompts: Path
    ) -> None:
        complete(generate)
        text = '{"prompt": "a"}\n{"prompt": "b"}\n'
        prompts.write_text(text)
        assert stale(run, "generate").reason == f"the file of generate.prompts, {prompts}, has grown since"
        assert resume_refusal(generate) == ""
        attempt = begin(generate)
        assert attempt.output().number == 1
        StageRun(attempt, print).has_read("prompts", prompts, hashlib.sha256(text.encode()).hexdigest())
        assert stale(run, "generate").reason == ""

    def test_a_last_line_that_was_added_to_is_another_line(
        self, run: RunDir, generate: StageDir, begin: Begin, prompts: Path
    ) -> None:
        prompts.write_text('{"prompt": 1}')
        save(begin(generate))
        prompts.write_text('{"prompt": 1}}')
        assert "has changed" in resume_refusal(generate)
        prompts.write_text('{"prompt": 1}\n{}')
        assert resume_refusal(generate) == ""

    def test_what_is_recorded_is_what_the_stage_has_read(
        self, run: RunDir, generate: StageDir, begin: Begin, prompts: Path
    ) -> None:
        attempt = begin(generate)
        stage = StageRun(attempt, print)
        prompts.write_text('{"prompt": "late"}\n')
        late = hashlib.sha256(prompts.read_bytes()).hexdigest()
        stage.has_read("prompts", prompts, late)
        assert attempt.output().source()["files"]["prompts"]["sha256"] == late
        assert stale(run, "generate").reason == ""
        stage.has_read("prompts", prompts, "0" * 64)
        assert "has changed since" in stale(run, "generate").reason
        save(attempt)
        with pytest.raises(StageError, match="isn't the one that one/generate output 1 was begun with"):
            stage.has_read("prompts", prompts, "1" * 64)


def test_what_is_trained_is_not_made_less_of(run: RunDir, complete: Complete) -> None:
    for name in ("generate", "extract", "vocab", "train"):
        complete(run.stage(name))
    run.change_plan({"train.epochs": "9"}, "more")
    assert resume_refusal(run.stage("train")) == ""
    run.change_plan({"train.epochs": "2"}, "less")
    assert "less than that can't be made of it" in resume_refusal(run.stage("train"))
    run.change_plan({"generate.max_samples": "5"}, "fewer are there already")
    assert resume_refusal(run.stage("generate")) == ""
