"""Services: readiness, failures before and after it, sharing between runs, restarts, giving back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.config import Plan, set_values
from pipeline.rundir import RunDir, RunError, StageState, held, process_start, status
from remote.agent import keeper, services
from remote.agent.attempts import ServiceDir
from remote.agent.conducted import conductor_view
from remote.agent.service_view import allowed_through, define, needed, users, view
from remote.agent.starting import start_conductor

SERVER = """
import http.server, sys, time
port, wait, life = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
print("loading", flush=True)
if wait < 0:
    sys.exit("CUDA out of memory")
time.sleep(wait)
end = None  # its life begins with the first answer
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global end
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
        end = end or time.monotonic() + life
    def log_message(self, *words): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
server.timeout = 0.1
while end is None or time.monotonic() < end:
    server.handle_request()
sys.exit("it fell over")
"""


TAKE_PORT = """
import os, signal, socket, sys
port, server = int(sys.argv[1]), int(sys.argv[2])
os.kill(server, signal.SIGKILL)
while True:
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken.bind(("127.0.0.1", port))
        break
    except OSError:
        taken.close()
taken.listen()
print("taken", flush=True)
while True:
    taken.accept()[0].close()
"""


def server(host, wait=0.0, life=600.0):
    path = host.root.parent / "server.py"
    path.write_text(SERVER)
    return [sys.executable, str(path), "{port}", str(wait), str(life)]


def with_service(plan, command, **more):
    raw = plan.to_json()
    raw["services"]["engine"] = {"command": command, "port": 0, "ready_timeout_s": 30, **more}
    raw["stages"]["generate"]["services"] = ["engine"]
    return Plan.from_json(raw)


def make(host, name="r1", command=None, more=None, **how):
    return RunDir.create(host.root, name, with_service(host.plan(**how), command or server(host), **(more or {})))


def ensure(run, stage="generate", cancelled=lambda: False):
    return services.ensure(run, run.plan(), "engine", stage, cancelled, lambda message: None)


def service_pid(host):
    return ServiceDir.of(host.root, "engine").latest().state()["main"]["pid"]


def test_a_stage_gets_a_service_that_is_ready_and_gives_it_back(host, wait_for):
    run = make(host, command=server(host, wait=0.5))
    start_conductor(run.path, {"through": "extract"})
    wait_for(lambda: not held(run.path / "conductor" / "lock"), 60)
    assert [status(run.stage(stage)).state for stage in ("generate", "extract")] == [StageState.DONE] * 2
    url = view(host.root, "engine").url
    assert url.startswith("http://127.0.0.1:") and not url.endswith(":0")
    assert f"service {url}" in run.stage("generate").attempt(1).file("stage.log").read_text()
    assert "service none" in run.stage("extract").attempt(1).file("stage.log").read_text()
    assert view(host.root, "engine").state == "STOPPED"
    assert process_start(service_pid(host)) is None
    assert ServiceDir.of(host.root, "engine").attempts() == [1]


def test_one_that_crashes_at_its_start_halts_the_run_with_its_last_line(host, wait_for):
    run = make(host, command=server(host, wait=-1))
    start_conductor(run.path, {})
    wait_for(lambda: not held(run.path / "conductor" / "lock"), 60)
    seen = conductor_view(run)
    assert seen["state"] == "halted"
    assert "service engine ended before it was ready" in seen["message"] and "CUDA out of memory" in seen["message"]
    assert "stage.log" in seen["remedy"]
    assert status(run.stage("generate")).state is StageState.PENDING


def test_one_that_is_not_ready_in_time(host):
    run = make(host, command=server(host, wait=60), more={"ready_timeout_s": 1})
    with pytest.raises(RunError, match="not ready within 1 s; its last line: 'loading'"):
        ensure(run)


def test_a_wait_can_be_cancelled(host):
    run = make(host, command=server(host, wait=60))
    with pytest.raises(RunError, match="cancelled"):
        ensure(run, cancelled=lambda: True)


def test_runs_share_it_and_the_last_one_stops_it(host, wait_for):
    one, two = make(host, "one"), make(host, "two")
    for run in (one, two):
        (run.path / "conductor").mkdir()
    from pipeline.rundir import Lock

    first, second = (Lock.acquire(run.path / "conductor" / "lock") for run in (one, two))
    url = ensure(one)
    pid = service_pid(host)
    assert ensure(two) == url
    assert service_pid(host) == pid
    assert users(host.root, "engine") == ["one", "two"]
    assert services.release(one, "engine", keep=services.kept_by(one, "engine")) is False
    assert process_start(pid) is not None
    other = RunDir.create(host.root, "three", with_service(host.plan(), server(host, life=599)))
    with pytest.raises(RunError, match="another definition and two uses it"):
        ensure(other)
    second.release()
    first.release()
    assert services.release(two, "engine", keep=services.kept_by(two, "engine")) is True
    assert process_start(pid) is None


def test_a_changed_definition_starts_it_anew(host):
    run = make(host)
    ensure(run)
    pid = service_pid(host)
    run.change_plan({"services.engine.gpus": "0"}, "")
    ensure(run)
    assert service_pid(host) != pid
    assert process_start(pid) is None


def ended_attempts(host):
    service = ServiceDir.of(host.root, "engine")
    return [number for number in service.attempts() if service.attempt(number).exit()]


@pytest.mark.real
def test_a_failure_after_it_was_ready_is_restarted_a_few_times_while_nobody_watches(host, wait_for):
    run = make(host, command=server(host, life=0.7))
    ensure(run)
    service = ServiceDir.of(host.root, "engine")
    wait_for(lambda: not held(service.keeper_lock_path))
    assert ended_attempts(host) == [1, 2, 3, 4]
    assert [service.attempt(n).spec()["restarts"] for n in (1, 2, 3, 4)] == [0, 1, 2, 3]
    assert "it fell over" in view(host.root, "engine").message
    assert "3 restarts didn't help" in keeper.news(host.root, "engine")


def test_one_on_any_free_port_comes_back_where_the_stage_asks_it(host, wait_for):
    run = make(host)
    url, pid = ensure(run), service_pid(host)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: view(host.root, "engine").state == "READY" and view(host.root, "engine").attempt == 2)
    assert view(host.root, "engine").url == url
    assert service_pid(host) != pid
    assert "is restarted, 1 of 3: attempt 2" in keeper.news(host.root, "engine")


def test_a_keeper_that_was_killed_is_started_again_by_whoever_uses_the_service(host, wait_for):
    run = make(host)
    ensure(run)
    path = ServiceDir.of(host.root, "engine").path
    for pid in host.ours():
        if f"keep\0--service\0{path}".encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not held(path / "keeper.lock"))
    os.kill(service_pid(host), signal.SIGKILL)
    wait_for(lambda: view(host.root, "engine").state == "FAILED")
    assert keeper.news(host.root, "engine") == ""
    wait_for(lambda: view(host.root, "engine").attempt == 2)


def test_a_failed_one_that_nobody_needs_is_not_restarted(host, wait_for):
    run = make(host)
    ensure(run)
    os.kill(service_pid(host), signal.SIGKILL)
    wait_for(lambda: view(host.root, "engine").state == "FAILED")
    services.release(run, "engine", keep=services.kept_by(run, "engine"))
    wait_for(lambda: not held(ServiceDir.of(host.root, "engine").keeper_lock_path))
    assert ServiceDir.of(host.root, "engine").attempts() == [1]


def test_one_that_is_not_ready_in_time_is_stopped_without_anyone_waiting(host, wait_for):
    run = make(host, command=server(host, wait=60), more={"ready_timeout_s": 1})
    services.start(host.root, define(run, run.plan(), "engine"), by="a person")
    wait_for(lambda: view(host.root, "engine").state == "FAILED")
    assert view(host.root, "engine").message == "it was not ready within 1 s"
    wait_for(lambda: not held(ServiceDir.of(host.root, "engine").keeper_lock_path))
    assert ServiceDir.of(host.root, "engine").attempts() == [1]


def test_a_stage_whose_service_lost_its_port_is_stopped_and_told(host, wait_for):
    run = make(host, generate={"steps": 10_000, "pause": 0.02})
    start_conductor(run.path, {})
    stage = run.stage("generate")
    wait_for(lambda: stage.latest() is not None and stage.latest().progress())
    port = int(view(host.root, "engine").url.rsplit(":", 1)[1])
    argv = [sys.executable, "-c", TAKE_PORT, str(port), str(service_pid(host))]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as squatter:
        try:
            assert squatter.stdout.readline() == b"taken\n"
            wait_for(lambda: not held(run.path / "conductor" / "lock"), 60)
        finally:
            squatter.kill()
    seen = conductor_view(run)
    assert seen["state"] == "halted"
    assert f"something else listens on its port {port} by now" in seen["message"]
    assert "start the run again" in seen["remedy"]
    assert status(stage).state is StageState.STOPPED
    assert status(stage).resumable
    assert ServiceDir.of(host.root, "engine").attempts() == [1]


def test_never_restarted_when_the_plan_says_so(host, wait_for):
    run = make(host, command=server(host, life=0.5), more={"restart": "never"})
    ensure(run)
    wait_for(lambda: view(host.root, "engine").state == "FAILED")
    wait_for(lambda: not held(ServiceDir.of(host.root, "engine").keeper_lock_path))
    assert ServiceDir.of(host.root, "engine").attempts() == [1]


def test_a_kept_service_stays(host):
    run = make(host, more={"keep": True})
    ensure(run)
    assert services.release(run, "engine", keep=services.kept_by(run, "engine")) is False
    assert view(host.root, "engine").state == "READY"


def test_a_taken_port_is_named(host):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        run = make(host, more={"port": taken.getsockname()[1]})
        with pytest.raises(RunError, match="something else listens there"):
            ensure(run)


def test_one_that_lost_its_supervisor_is_supervised_again_and_stopped(host, wait_for):
    run = make(host)
    ensure(run)
    service, pid = ServiceDir.of(host.root, "engine"), service_pid(host)
    killed = service.latest().state()["supervisor"]["pid"]
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: service.latest().state()["supervisor"]["pid"] != killed)
    ensure(run)
    assert service_pid(host) == pid
    assert view(host.root, "engine").state == "READY"
    assert services.release(run, "engine", keep=services.kept_by(run, "engine")) is True
    assert process_start(pid) is None


def test_what_a_stage_needs():
    plan = Plan.from_json({"services": {"a": {"command": ["x"], "port": 1}, "b": {"command": ["x"], "port": 2}}})
    plan = set_values(plan, {"generate.service": "b", "generate.services": "a,b", "deploy.engine": "a"})
    assert needed(plan, "generate") == ("b", "a")
    assert needed(plan, "deploy") == ()  # it starts its engine itself
    assert needed(plan, "train") == ()
    plan = set_values(plan, {"services.a.env_allow": "HF_TOKEN"})
    assert allowed_through(plan, "deploy") == ("HF_TOKEN",)
    assert allowed_through(plan, "train") == ()


def test_placeholders_leave_other_braces_alone(host):
    run = make(host, command=["{python}", "--port={port}", "{verifier}", '{"method": "eagle3"}', "{host}:{port}"])
    words = define(run, run.plan(), "engine").command("8123")
    assert words == [sys.executable, "--port=8123", str(host.verifier), '{"method": "eagle3"}', "127.0.0.1:8123"]


def test_a_service_outside_deploy_runs_without_a_drafter(host):
    run = make(host, command=["x", "--drafter", "{drafter}", "--k=3", "--spec={drafter}", "y"])
    assert define(run, run.plan(), "engine").command("1") == ["x", "--k=3", "y"]
    words = ["x", "{drafted}", "--algorithm", "EAGLE3", "{/drafted}", "--steps", "{k}", "y"]
    run = make(host, "grouped", command=words)
    assert define(run, run.plan(), "engine").command("1") == ["x", "y"]


def test_one_that_a_stage_uses_is_stopped_only_by_who_knows_of_it(host, wait_for):
    run = make(host, generate={"steps": 10_000, "pause": 0.02})
    make(host, "r2")
    start_conductor(run.path, {})
    wait_for(lambda: run.stage("generate").latest() is not None and run.stage("generate").latest().progress())
    agent = host.agent()
    assert agent.ask("services", run="r2")["services"]["engine"]["uses"] == ["r1/generate"]
    for despite in ([], ["r2/generate"]):
        refused = agent.refused("service_stop", run="r2", service="engine", despite=despite)
        assert "r1/generate uses it" in refused.message
        assert "`eagledeck stop r1` saves and ends generate first" in refused.remedy
    assert view(host.root, "engine").state == "READY"
    stopped = agent.ask("service_stop", run="r2", service="engine", despite=["r1/generate"])
    assert stopped == {"before": "READY"}
    wait_for(lambda: view(host.root, "engine").state == "STOPPED")
    assert ServiceDir.of(host.root, "engine").attempts() == [1]


def test_a_stage_that_outlives_its_conductor_keeps_its_service(host, wait_for):
    run = make(host, generate={"steps": 10_000, "pause": 0.02})
    pid = start_conductor(run.path, {})["pid"]
    stage = run.stage("generate")
    wait_for(lambda: stage.latest() is not None and stage.latest().progress())
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not held(run.path / "conductor" / "lock"))
    assert services.release(run, "engine", keep=services.kept_by(run, "engine")) is False
    assert view(host.root, "engine").state == "READY"
    stage.latest().request("kill", "the test")
    wait_for(lambda: not held(stage.lock_path))
    assert services.release(run, "engine", keep=services.kept_by(run, "engine")) is True


def test_one_is_started_and_stopped_without_a_stage(host, wait_for):
    make(host)
    agent = host.agent()
    assert agent.ask("services", run="r1")["services"]["engine"]["state"] == "IDLE"
    started = agent.ask("service_start", run="r1", service="engine")
    assert (started["already"], started["url"][:17]) == (False, "http://127.0.0.1:")
    assert agent.ask("service_start", run="r1", service="engine")["already"] is True
    wait_for(lambda: view(host.root, "engine").state == "READY")
    agent.ask("set", run="r1", changes={"services.engine.gpus": "0"})
    assert "another definition" in agent.refused("service_start", run="r1", service="engine").message
    assert agent.ask("service_stop", run="r1", service="engine") == {"before": "READY"}
    wait_for(lambda: view(host.root, "engine").state == "STOPPED")
    assert agent.ask("service_stop", run="r1", service="engine") == {"before": "STOPPED"}
    assert "its services: engine" in agent.refused("service_stop", run="r1", service="vllm").remedy
    assert agent.refused("service_start", run="r1", service="../r1").code == "refused"


def test_two_consoles_that_start_it_at_once_start_one(host, wait_for):
    make(host)
    agents = [host.agent(), host.agent()]
    for _ in range(3):
        before = ServiceDir.of(host.root, "engine").attempts()
        numbers = [agent.post("service_start", run="r1", service="engine") for agent in agents]
        results = [agent.answer(number).result for agent, number in zip(agents, numbers)]
        assert sorted(result["already"] for result in results) == [False, True]
        assert len({result["url"] for result in results}) == 1
        assert len(ServiceDir.of(host.root, "engine").attempts()) == len(before) + 1
        agents[0].ask("service_stop", run="r1", service="engine")
        wait_for(lambda: view(host.root, "engine").state == "STOPPED")
