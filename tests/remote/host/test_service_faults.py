"""Services whose server hangs, and services whose keeper was killed: real processes, stopped and killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path

import pytest

from pipeline.config import Plan
from pipeline.rundir import RunDir, RunError, held, process_start
from remote.agent import keeper, services, starting
from remote.agent.attempts import ServiceDir
from remote.agent.conducted import conductor_view
from remote.agent.health import Probe, free_port
from remote.agent.members import read_process
from remote.agent.service_view import describe, view
from remote.agent.starting import start_conductor

SERVER = """
import http.server, os, sys, time
port, folder = int(sys.argv[1]), sys.argv[2]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print("asked", flush=True)
        for how in os.listdir(folder):
            if how == "mute":
                time.sleep(3600)
            self.send_response(int(how))
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        if os.path.exists(folder + ".once"):
            open(folder + "/mute", "w").close()
    def log_message(self, *words): pass
for how in os.listdir(folder):
    os.unlink(os.path.join(folder, how))
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
"""Answers as a file in its folder says: `mute` takes connections and never answers. It begins healthy."""


class Engine:
    """The service of a run whose generate needs it, and what is done to it."""

    def __init__(self, host, wait_for, **more):
        self.host, self.wait_for = host, wait_for
        self.how = host.root.parent / "how"
        self.how.mkdir()
        program = host.root.parent / "server.py"
        program.write_text(SERVER)
        raw = host.plan(generate={"steps": 100_000, "pause": 0.02}).to_json()
        command = [sys.executable, str(program), "{port}", str(self.how)]
        raw["services"]["engine"] = {"command": command, "port": 0, "ready_timeout_s": 30, **more}
        raw["stages"]["generate"]["services"] = ["engine"]
        self.run = RunDir.create(host.root, "r1", Plan.from_json(raw))
        self.service = ServiceDir.of(host.root, "engine")
        self.said = []

    def ensure(self, cancelled=lambda: False):
        return services.ensure(self.run, self.run.plan(), "engine", "generate", cancelled, self.said.append)

    def conduct(self):
        """The conductor's pid, once generate is at work."""
        pid = start_conductor(self.run.path, {})["pid"]
        stage = self.run.stage("generate")
        self.wait_for(lambda: stage.latest() is not None and stage.latest().progress())
        return pid

    def view(self):
        return view(self.host.root, "engine")

    def state(self):
        return self.view().state

    @property
    def pid(self):
        return self.service.latest().state()["main"]["pid"]

    def keepers(self):
        words = f"keep\0--service\0{self.service.path}".encode()
        return [pid for pid in self.host.ours() if words in cmdline(pid)]

    def kill_keeper(self):
        self.wait_for(lambda: len(self.keepers()) == 1)
        for pid in self.keepers():
            os.kill(pid, signal.SIGKILL)
        self.wait_for(lambda: not set(self.keepers()) & {pid})

    def notes(self):
        lines = (self.run.path / "conductor" / "events.jsonl").read_text().splitlines()
        return [note["message"] for note in map(json.loads, lines) if note["kind"] == "service"]

    def log(self):
        return (self.service.path / "keeper.log").read_text()


def cmdline(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_stopped_server_is_told_of_killed_and_started_again_where_the_stage_asks_it(host, wait_for):
    engine = Engine(host, wait_for, answer_timeout_s=10)
    engine.conduct()
    url, pid = engine.view().url, engine.pid
    os.kill(pid, signal.SIGSTOP)
    seen = wait_for(lambda: (seen := engine.view()).state == "SILENT" and seen)
    assert seen.message == "no answer within 1 s"
    assert isinstance(describe(seen)["since"], float)
    wait_for(lambda: engine.state() == "READY" and engine.view().attempt == 2)
    assert (engine.view().url, process_start(pid)) == (url, None)
    wait_for(lambda: "service engine answers again" in engine.notes())
    why = "it had stopped answering: no answer within 1 s"
    told = ["isn't answering: no answer within 1 s", f"failed ({why}) and is restarted, 1 of 3: attempt 2", "again"]
    assert [word for word in told if not any(word in note for note in engine.notes())] == []
    for line in ("attempt 1: it is not answering", "attempt 1: it is killed: not answering for 10 s", why):
        assert line in engine.log()
    assert conductor_view(engine.run)["state"] == "running"


def test_one_that_answers_is_asked_on_and_nothing_is_told(host, wait_for):
    engine = Engine(host, wait_for, answer_timeout_s=10)
    engine.ensure()
    log = engine.service.latest().file("stage.log")
    wait_for(lambda: log.read_text().count("asked") >= 5)
    assert (engine.state(), engine.service.attempts(), engine.log()) == ("READY", [1], "")


def test_one_that_is_only_busy_for_a_while_is_told_of_and_left_alone(host, wait_for):
    engine = Engine(host, wait_for, answer_timeout_s=60)
    engine.conduct()
    pid = engine.pid
    (engine.how / "503").touch()
    wait_for(lambda: engine.state() == "SILENT")
    assert engine.view().message == "it answers 503"
    wait_for(lambda: engine.notes()[-1:] == ["service engine isn't answering: it answers 503"])
    (engine.how / "503").unlink()
    wait_for(lambda: engine.state() == "READY")
    wait_for(lambda: engine.notes()[-1:] == ["service engine answers again"])
    assert (engine.pid, engine.service.attempts()) == (pid, [1])
    assert "attempt 1: it answers again" in engine.log()


@pytest.mark.real
def test_one_that_takes_connections_and_never_answers_is_restarted_a_few_times(host, wait_for):
    engine = Engine(host, wait_for, answer_timeout_s=2)
    engine.how.with_suffix(".once").touch()
    engine.ensure()
    wait_for(lambda: not held(engine.service.keeper_lock_path), 120)
    assert [engine.service.attempt(n).spec()["restarts"] for n in engine.service.attempts()] == [0, 1, 2, 3]
    assert all(engine.service.attempt(n).hung for n in (1, 2, 3, 4))
    assert "3 restarts didn't help" in keeper.news(host.root, "engine")
    assert (engine.state(), engine.view().message[:26]) == ("FAILED", "it had stopped answering: ")
    assert not engine.service.unkept()


def test_one_that_is_never_restarted_is_told_of_and_left_as_it_is(host, wait_for):
    engine = Engine(host, wait_for, answer_timeout_s=1, restart="never")
    engine.ensure()
    pid = engine.pid
    (engine.how / "mute").touch()
    wait_for(lambda: engine.state() == "SILENT")
    with pytest.raises(RunError, match=r"isn't answering .* by its plan it is never restarted"):
        engine.ensure()
    assert (engine.pid, process_start(pid) is not None, engine.state()) == (pid, True, "SILENT")


def test_a_stage_waits_for_one_that_is_silent_and_gets_the_one_in_its_place(host, wait_for):
    engine = Engine(host, wait_for, answer_timeout_s=10)
    url = engine.ensure()
    os.kill(engine.pid, signal.SIGSTOP)
    wait_for(lambda: engine.state() == "SILENT")
    engine.ensure()
    assert [said for said in engine.said if "is waited for: it isn't answering (no answer within 1 s)" in said]
    assert (engine.state(), engine.view().attempt) == ("READY", 2)
    assert engine.view().url.startswith(url.rpartition(":")[0])


def test_a_silent_one_that_a_person_stops_stays_stopped(host, wait_for):
    engine = Engine(host, wait_for, answer_timeout_s=300)
    services.start_alone(engine.run, "engine", "a person")
    wait_for(lambda: engine.state() == "READY")
    attempt = engine.service.latest()
    attempt.request("kill", "not answering")
    assert services.stop(host.root, "engine") in ("STOPPING", "FAILED")
    wait_for(lambda: engine.state() == "STOPPED")
    wait_for(lambda: not held(engine.service.keeper_lock_path))
    assert engine.service.attempts() == [1]


def test_a_killed_keeper_comes_back_while_nobody_is_there_and_takes_the_server_as_it_is(host, wait_for):
    engine = Engine(host, wait_for)
    services.start_alone(engine.run, "engine", "a person")
    wait_for(lambda: engine.state() == "READY")
    pid = engine.pid
    engine.kill_keeper()
    wait_for(lambda: held(engine.service.keeper_lock_path))
    assert (engine.pid, engine.state(), engine.service.attempts()) == (pid, "READY", [1])
    # it looks after the server as the one before did
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: engine.state() == "READY" and engine.view().attempt == 2)


def test_a_running_stage_has_its_service_kept_when_all_that_kept_it_were_killed(host, wait_for):
    engine = Engine(host, wait_for)
    conductor = engine.conduct()
    stage, pid = engine.run.stage("generate").latest(), engine.pid
    wait_for(lambda: len(engine.keepers()) == 1)
    everyone = [conductor, engine.service.latest().state()["supervisor"]["pid"], *engine.keepers()]
    for victim in everyone:
        os.kill(victim, signal.SIGKILL)
    wait_for(lambda: not any(map(process_start, everyone)))
    wait_for(lambda: held(engine.service.keeper_lock_path))
    wait_for(lambda: engine.state() == "READY")
    assert (engine.pid, engine.service.attempts(), len(engine.keepers())) == (pid, [1], 1)
    notes = [json.loads(line) for line in stage.file("supervision.jsonl").read_text().splitlines()]
    assert [note["message"] for note in notes if note["kind"] == "keeper"] == [
        "service engine had lost its keeper and got another"
    ]
    # neither of them belongs to the stage: they outlive its being killed
    stage.request("kill", "the test")
    wait_for(stage.exit)
    wait_for(lambda: not held(engine.run.stage("generate").lock_path))
    assert (engine.pid, engine.state(), len(engine.keepers())) == (pid, "READY", 1)


def test_one_that_failed_while_it_had_no_keeper_is_restarted_under_a_running_stage(host, wait_for):
    engine = Engine(host, wait_for)
    conductor = engine.conduct()
    wait_for(lambda: len(engine.keepers()) == 1)
    supervisor, server = engine.service.latest().state()["supervisor"]["pid"], engine.pid
    for victim in (conductor, *engine.keepers(), supervisor, server):
        os.kill(victim, signal.SIGKILL)
    wait_for(lambda: engine.state() == "READY" and engine.view().attempt == 2)
    assert len(engine.keepers()) == 1


def test_of_many_keepers_that_are_started_at_once_one_stays(host, wait_for):
    engine = Engine(host, wait_for)
    engine.ensure()
    engine.kill_keeper()
    threads = [threading.Thread(target=starting.start_keeper, args=(engine.service.path,)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_for(lambda: len(engine.keepers()) == 1)
    assert held(engine.service.keeper_lock_path)
    assert read_process(engine.keepers()[0]).session != os.getsid(0)


def test_nothing_is_started_for_one_that_has_nothing_left_to_keep(host, wait_for):
    engine = Engine(host, wait_for, restart="never")
    assert not engine.service.unkept()
    engine.ensure()
    os.kill(engine.pid, signal.SIGKILL)
    wait_for(lambda: engine.state() == "FAILED")
    wait_for(lambda: not held(engine.service.keeper_lock_path))
    assert not engine.service.unkept()
    assert keeper.news(host.root, "engine") == ""
    assert not held(engine.service.keeper_lock_path)


def asked(port, timeout=5.0):
    probe = Probe(port, "/health", timeout)
    while (said := probe.look(0.1)) is None:
        pass
    return said


def test_a_probe_tells_what_a_server_does_instead_of_answering():
    assert "it takes no connection" in asked(free_port())
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        assert asked(port, 0.2) == "no answer within 0.2 s"
        listening.accept()[0].close()
        said = {
            b"": "it ends the connection without an answer",
            b"HTTP/1.1 200 OK\r\n": "",
            b"HTTP/1.1 503 Service Unavailable\r\n": "it answers 503",
            b"SSH-2.0-OpenSSH_9.2\r\n": "it doesn't answer in HTTP",
        }

        def answer(words):
            link = listening.accept()[0]
            link.recv(4096)
            for byte in words:
                link.send(bytes([byte]))
            link.close()

        for words, what in said.items():
            thread = threading.Thread(target=answer, args=(words,))
            thread.start()
            assert asked(port) == what
            thread.join()
