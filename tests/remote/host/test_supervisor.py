"""Real supervisors over real processes: starting, ending, stopping, killing, being killed."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

import pytest

from pipeline.config import Plan
from pipeline.rundir import Lock, RunDir, RunError, held, process_start, status
from remote.agent import starting
from remote.agent.members import process_table
from remote.agent.stagelog import LogBound

SLEEP = "import time; print('up', flush=True); time.sleep(120)"
STUBBORN = "import signal, time\nfor n in (2, 15, 1): signal.signal(n, signal.SIG_IGN)\nprint('up', flush=True)\n" + (
    "while True: time.sleep(1)"
)
OUTCOME = """
import json, os, sys, time
from pathlib import Path
def outcome(result, **more):
    folder = sorted((Path(sys.argv[1]) / "generate" / "attempts").iterdir())[-1]
    said = {"result": result, "message": "", "remedy": "", "resumable": True, "ended": time.time(), **more}
    (folder / "outcome.json").write_text(json.dumps(said))
"""


def up(stage):
    return "up" in stage.log() if stage.attempt.file("stage.log").exists() else False


def test_done_by_its_own_outcome(supervise):
    stage = supervise(OUTCOME + "print('hello'); outcome('done', resumable=False)")
    end = stage.ended()
    assert (end["reason"], end["code"], end["signal"]) == ("done", 0, None)
    assert stage.state() == "DONE"
    assert stage.log() == "hello\n"
    assert end["log_size"] == len("hello\n")


def test_failure_names_the_last_line(supervise):
    stage = supervise("import sys; print('x'); sys.exit('no such file: prompts.jsonl')")
    end = stage.ended()
    assert (end["reason"], end["code"], end["resumable"]) == ("failed", 1, True)
    assert "no such file: prompts.jsonl" in end["message"]
    assert stage.state() == "FAILED"


def test_outcome_of_a_failure_is_passed_on(supervise):
    stage = supervise(
        OUTCOME + "outcome('failed', message='disk full', remedy='free some', resumable=False); sys.exit(1)"
    )
    end = stage.ended()
    assert (end["message"], end["remedy"], end["resumable"]) == ("disk full", "free some", False)


def test_a_program_that_does_not_exist(host):
    run = RunDir.create(host.root, "r1", Plan())
    stage = run.stage("generate")
    with starting.locked(stage, "r1") as lock:
        attempt = stage.new_attempt(argv=["/no/such/python"])
        with pytest.raises(RunError, match="can't start /no/such/python: No such file"):
            starting.launch(attempt, lock, "r1")
    assert attempt.exit()["reason"] == "failed"
    assert "generate.python" in status(stage).remedy
    assert not held(stage.lock_path)


def test_killed_from_outside(supervise, wait_for):
    stage = supervise(SLEEP)
    os.kill(stage.main, signal.SIGKILL)
    end = stage.ended()
    assert (end["reason"], end["signal"]) == ("failed", 9)
    assert "SIGKILL" in end["message"]


def test_stop_by_control_file_needs_no_signal(supervise, wait_for):
    polite = OUTCOME + (
        "print('up', flush=True)\n"
        "stop = sorted((Path(sys.argv[1]) / 'generate' / 'attempts').iterdir())[-1] / 'control' / 'stop'\n"
        "while not stop.exists(): time.sleep(0.02)\n"
        "outcome('stopped', message='saved')"
    )
    stage = supervise(polite)
    wait_for(lambda: up(stage))
    assert stage.state() == "RUNNING"
    stage.attempt.request("stop", "test")
    end = stage.ended()
    assert (end["reason"], end["message"], end["signal"]) == ("stopped", "saved", None)
    assert not [note for note in stage.notes() if note["kind"] == "signal"]


def test_one_that_does_not_poll_gets_an_interrupt(supervise, wait_for):
    stage = supervise(SLEEP)
    wait_for(lambda: up(stage))
    stage.attempt.request("stop", "test")
    end = stage.ended()
    assert (end["reason"], end["signal"], end["resumable"]) == ("stopped", signal.SIGINT, True)


def test_the_ladder_goes_to_its_end(supervise, wait_for):
    stage = supervise(STUBBORN, grace_s="1")
    wait_for(lambda: up(stage))
    stage.attempt.request("stop", "test")
    wait_for(lambda: stage.state() == "STOPPING")
    end = stage.ended(60)
    assert (end["reason"], end["signal"]) == ("killed", signal.SIGKILL)
    assert "did not stop within 1 s" in end["message"]
    sent = [note["message"].split()[0] for note in stage.notes() if note["kind"] == "signal"]
    assert list(dict.fromkeys(sent)) == ["SIGINT", "SIGTERM", "SIGCONT", "SIGKILL"]
    assert stage.state() == "KILLED"


TREE = """
import os, signal, subprocess, sys, time
worker = "import signal, time\\nsignal.signal(15, signal.SIG_IGN)\\nwhile True: time.sleep(1)"
plain = [subprocess.Popen([sys.executable, "-c", worker])]
own_sessions = [subprocess.Popen([sys.executable, "-c", worker], start_new_session=True) for _ in range(3)]
if os.fork() == 0:                      # double-forked, reparented, in a session of its own, a child in yet another
    os.setsid()
    if os.fork():
        os._exit(0)
    subprocess.Popen([sys.executable, "-c", worker], start_new_session=True)
    exec(worker)
print("up", flush=True)
"""


def members_of(stage):
    return [entry["pid"] for entry in stage.attempt.state().get("members", [])]


@pytest.mark.parametrize("how", ["kill", pytest.param("main dies", marks=pytest.mark.soak), "main ends"])
def test_nothing_survives(supervise, wait_for, how):
    stage = supervise(TREE + "while not os.path.exists(sys.argv[1] + '/go'): time.sleep(0.1)", grace_s="1")
    wait_for(lambda: len(members_of(stage)) >= 7)
    pids = members_of(stage)
    if how == "main ends":
        (stage.stage.run.path / "go").touch()
    if how == "kill":
        stage.attempt.request("kill", "test")
    elif how == "main dies":
        os.kill(stage.main, signal.SIGKILL)
        stage.attempt.request("kill", "test")
    end = stage.ended(60)
    assert [pid for pid in pids if process_start(pid) is not None] == []
    assert end["reason"] == ("failed" if how == "main ends" else "killed")


def test_the_second_start_is_refused(supervise, wait_for):
    stage = supervise(SLEEP)
    with pytest.raises(RunError, match="runs already"), starting.locked(stage.stage, "again"):
        pass
    word = starting.start_detached(starting.command("supervise", "--attempt", str(stage.attempt.path)), starting.CODE)
    assert word["ok"] is False
    assert process_start(stage.main) is not None


def test_of_many_starts_one_wins(host, wait_for):
    stage = host.run(all={"steps": 500, "pause": 0.05}).stage("generate")
    won, lost = [], []

    def start():
        try:
            won.append(starting.start_stage(stage))
        except RunError as error:
            lost.append(error.message)

    threads = [threading.Thread(target=start) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(lost)) == (1, 19)
    assert stage.attempts() == [1]
    supervisors = [process for process in process_table().values() if process.pid in host.ours()]
    assert sum("supervise" in _line(process.pid) for process in supervisors) == 1


def _line(pid):
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read()
    except OSError:
        return ""


def test_supervisor_killed_then_adopted_then_stopped(supervise, wait_for):
    stage = supervise(SLEEP)
    wait_for(lambda: up(stage))
    main = stage.main
    os.kill(stage.supervisor, signal.SIGKILL)
    wait_for(lambda: stage.state() == "LOST")
    assert process_start(main) is not None
    assert not status(stage.stage).resumable
    starting.adopt(stage.attempt, "r1")
    assert stage.state() == "RUNNING"
    assert stage.main == main
    stage.attempt.request("stop", "test")
    end = stage.ended()
    assert end["reason"] == "stopped"
    assert process_start(main) is None


def test_adopted_tree_leaves_no_survivor(supervise, wait_for):
    stage = supervise(TREE + "time.sleep(120)")
    wait_for(lambda: len(members_of(stage)) >= 7)
    pids = members_of(stage)
    os.kill(stage.supervisor, signal.SIGKILL)
    wait_for(lambda: stage.state() == "LOST")
    os.kill(stage.main, signal.SIGKILL)
    starting.adopt(stage.attempt, "r1")
    stage.attempt.request("kill", "test")
    stage.ended(60)
    assert [pid for pid in pids if process_start(pid) is not None] == []


def test_done_while_lost(supervise, wait_for):
    wait = "print('up', flush=True)\nwhile not os.path.exists(sys.argv[1] + '/go'): time.sleep(0.05)\n"
    stage = supervise(OUTCOME + wait + "outcome('done', resumable=False)")
    wait_for(lambda: up(stage))
    os.kill(stage.supervisor, signal.SIGKILL)
    wait_for(lambda: stage.state() == "LOST")
    (stage.stage.run.path / "go").touch()
    wait_for(lambda: stage.state() == "DONE")


def test_a_remembered_pid_that_is_another_process_is_not_adopted(supervise, wait_for):
    stage = supervise(SLEEP)
    os.kill(stage.supervisor, signal.SIGKILL)
    wait_for(lambda: stage.state() == "LOST")
    os.kill(stage.main, signal.SIGKILL)
    wait_for(lambda: process_start(stage.main) is None)
    me = {"pid": os.getpid(), "start": 1}
    stage.attempt.write_state(main=me, members=[me])
    starting.adopt(stage.attempt, "r1")
    assert stage.ended()["reason"] == "lost"
    assert stage.state() == "LOST"
    assert status(stage.stage).resumable


def test_masks_and_dispositions_are_reset(host, wait_for):
    """Started by something that ignores and blocks signals, as nohup and some shells do."""
    stage = RunDir.create(host.root, "r1", Plan()).stage("generate")
    show = "print(open('/proc/self/status').read())"
    with starting.locked(stage, "r1") as lock:
        attempt = stage.new_attempt(argv=[sys.executable, "-S", "-c", show])
        argv = starting.command("supervise", "--attempt", str(attempt.path), "--lock-fd", str(lock.fd))
        ignoring = (
            "import os, signal, sys\n"
            "for n in (1, 2, 3, 10, 12, 13, 15): signal.signal(n, signal.SIG_IGN)\n"
            "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))\n"
            "os.execv(sys.argv[1], sys.argv[1:])"
        )
        word = starting.start_detached([sys.executable, "-c", ignoring, *argv], starting.CODE, (lock.fd,))
    assert word["ok"], word
    wait_for(attempt.exit)
    lines = dict(line.split(":\t", 1) for line in attempt.file("stage.log").read_text().splitlines() if ":\t" in line)
    assert int(lines["SigBlk"], 16) == 0
    # Python itself ignores SIGPIPE and SIGXFSZ once it runs; the rest must be as after a login.
    # Signals 32 and 33 are the C library's own: nobody can set them.
    assert int(lines["SigIgn"], 16) & 0x7FFFFFFF & ~(1 << (13 - 1) | 1 << (25 - 1)) == 0


def test_the_environment_is_the_allowed_one(supervise, monkeypatch):
    monkeypatch.setenv("EAGLE_TOKEN", "secret")
    monkeypatch.setenv("EAGLE_SHOWN", "yes")
    stage = supervise(
        "import json, os; print(json.dumps(dict(os.environ)))",
        env_allow="EAGLE_SHOWN",
        gpus="0,2",
        **{"env.MODE": "fast"},
    )
    stage.ended()
    seen = json.loads(stage.log().splitlines()[0])
    assert "EAGLE_TOKEN" not in seen
    assert (seen["EAGLE_SHOWN"], seen["MODE"], seen["CUDA_VISIBLE_DEVICES"]) == ("yes", "fast", "0,2")
    assert seen["PYTHONUNBUFFERED"] == "1"


def test_the_stage_holds_the_writer_lock_and_the_supervisor_does_not(supervise, wait_for):
    stage = supervise(SLEEP)
    wait_for(lambda: up(stage))
    assert held(stage.stage.writer_lock_path)
    os.kill(stage.main, signal.SIGKILL)
    stage.ended()
    lock = Lock.acquire(stage.stage.writer_lock_path)
    assert lock is not None
    lock.release()


def test_a_log_is_bounded_and_its_offsets_stay(tmp_path):
    path = tmp_path / "stage.log"
    line = b"x" * 1023 + b"\n"
    path.write_bytes(line * 4096 + b"the end\n")
    bound = LogBound(path, limit=1 << 20)
    assert bound.check() > 0
    size = path.stat().st_size
    assert size == 4096 * 1024 + 8
    assert path.stat().st_blocks * 512 <= 1 << 20
    assert path.read_bytes().endswith(b"x\nthe end\n")
    assert bound.check() == 0
