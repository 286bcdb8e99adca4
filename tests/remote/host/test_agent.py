"""A real agent over its pipes: operations, pushes, hostile input, liveness, and that a slow reader harms nobody."""

from __future__ import annotations

import base64
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from pipeline.rundir import JsonLines, RunDir, StageState, held, process_start, status
from remote.agent.curves import Curves
from remote.agent.outbox import Outbox
from remote.protocol import PROTOCOL, Decoder, Failure, Push, Reply, Request, Splitter, Streamer, encode


def test_hello_and_the_way_of_a_run(host, wait_for):
    agent = host.agent()
    assert (agent.hello.protocol, agent.hello.root) == (PROTOCOL, str(host.root))
    assert agent.hello.incarnation["boot_id"]
    plan = host.plan(generate={"steps": 20, "pause": 0.05}).to_json()
    made = agent.ask("create", name="r1", plan=plan)
    assert made["revision"] == 1
    assert agent.ask("set", run="r1", changes={"generate.max_samples": "10"}, note="fewer")["revision"] == 2
    assert agent.ask("plan", run="r1")["stages"]["generate"]["params"]["max_samples"] == 10
    assert [(run["name"], run["state"]) for run in agent.ask("runs")] == [("r1", "PENDING")]
    agent.ask("watch", run="r1", every_s=0.2)
    first = agent.push("run")
    assert {stage["state"] for stage in first["stages"].values()} == {"PENDING"}
    started = agent.ask("start", run="r1")
    assert agent.ask("start", run="r1") == {"pid": started["pid"], "already": True}
    running = agent.push("run", lambda data: data["stages"]["generate"]["counts"].get("samples", 0) > 2)
    assert running["stages"]["generate"]["state"] == "RUNNING"
    assert running["conductor"]["state"] == "running"
    done = agent.push("run", lambda data: data["conductor"]["state"] == "done", 60)
    assert {stage["state"] for stage in done["stages"].values()} == {"DONE"}
    assert done["counts"]["samples"] == 20 and done["counts"]["tokens"] == 200
    assert done["stages"]["train"]["report"]["counts"]["samples"] == 3
    seqs = [push.seq for push in agent.pushes]
    assert seqs == list(range(1, len(seqs) + 1))
    assert [(run["name"], run["state"]) for run in agent.ask("runs")] == [("r1", "DONE")]


def test_a_push_is_whole_and_costs_what_is_new(host):
    host.run(generate={"steps": 100_000, "pause": 0.02})
    agent = host.agent()
    agent.ask("start", run="r1")
    agent.ask("watch", run="r1", every_s=0.2)
    seen = {"host": [], "run": []}
    while min(map(len, seen.values())) < 10:
        line = agent._line()
        push = agent._decoder.decode(line)
        seen[push.name].append((len(line), push.data))
    for (first, whole), *others in seen.values():
        assert all(data.keys() == whole.keys() for _, data in others)
        assert sum(size for size, _ in others[-5:]) / 5 < 0.6 * first
    assert seen["run"][-1][1]["stages"].keys() == seen["run"][0][1]["stages"].keys()
    agent.ask("kill", run="r1")


def test_the_host_push(host):
    agent = host.agent()
    host.run()
    agent.ask("watch", run="r1", every_s=0.2)
    seen = [agent.push("host") for _ in range(3)][-1]
    assert seen["disk"]["total"] >= seen["disk"]["used"] > 0
    assert seen["mem_total"] > seen["mem_used"] > 0
    assert seen["disk"]["reserve"] == 1 << 30
    assert isinstance(seen["gpus"], list)
    assert seen["gpus"] or seen["gpu_note"]


@pytest.mark.parametrize("name", ["../etc", "a/b", "", "A", "x" * 65, "services", "nul\0", "-x", "r1 ", "télé"])
def test_names_never_leave_the_root(host, name):
    agent = host.agent()
    assert agent.refused("plan", run=name).code in ("refused", "bad-request", "not-found")
    assert agent.refused("create", name=name, plan={}).code in ("refused", "bad-request")
    assert agent.refused("tail", run=name, stage="generate").code in ("refused", "bad-request", "not-found")
    host_run = host.run()
    assert agent.refused("tail", run="r1", stage=name or "x").code in ("refused", "bad-request")
    assert host_run.path.exists()


def test_a_link_out_of_the_root_is_not_followed(host):
    agent = host.agent()
    host.run()
    os.symlink("/etc", host.root / "r1" / "etc")
    assert agent.refused("stat", path="r1/etc/passwd").code == "refused"
    assert agent.refused("stat", path="/etc/passwd").code == "refused"
    assert agent.refused("stat", path="r1/../../../etc").code == "refused"
    os.symlink("/etc", host.root / "r2")
    assert agent.refused("plan", run="r2").code in ("refused", "not-found")
    assert agent.ask("stat", path="r1/plan")["entries"] == [
        {"path": "0001.json", "size": (host.root / "r1/plan/0001.json").stat().st_size}
    ]
    assert agent.ask("stat", path="r1/nothing")["kind"] == "none"


def test_every_refusal_has_a_message_and_a_remedy(host):
    agent = host.agent()
    host.run()
    refusals = [
        agent.refused("plan", run="r9"),
        agent.refused("set", run="r1", changes={"generate.max_sample": 3}),
        agent.refused("set", run="r1", changes={"generate.max_samples": "many"}),
        agent.refused("start", run="r1", stale="perhaps"),
        agent.refused("start", run="r1", through="everything"),
        agent.refused("stop", run="r1"),
        agent.refused("kill", run="r1", stage="train"),
        agent.refused("adopt", run="r1", stage="train"),
        agent.refused("resume", run="r1", stage="train"),
        agent.refused("restart", run="r1", stage="no"),
        agent.refused("create", name="r1", plan={}),
        agent.refused("create", name="r2", plan={"schema": 99}),
        agent.refused("create", name="r2", plan={"stages": {"generate": {"params": {"x": 1}}}}),
        agent.refused("tail", run="r1", stage="train"),
        agent.refused("stat", path="/etc"),
    ]
    for refusal in refusals:
        assert refusal.message and "Traceback" not in refusal.message, refusal
        assert refusal.remedy or refusal.code == "refused", refusal
    assert "r1" in refusals[0].remedy
    assert not (host.root / "r2").exists()


HOSTILE = [
    b"\n",
    b"not json\n",
    b"[1,2,3]\n",
    b"null\n",
    b'{"id":1}\n',
    b'{"id":"x","op":"ping"}\n',
    b'{"id":1,"op":"ping","args":[]}\n',
    b'{"id":1,"op":"no such","args":{}}\n',
    b'{"id":1,"op":"plan","args":{"run":5}}\n',
    b'{"id":1,"op":"plan","args":{"run":"r1","more":1}}\n',
    b'{"id":1,"op":"ping","deadline_s":-1}\n',
    b'{"id":1e999,"op":"ping"}\n',
    b'{"id":NaN,"op":"ping"}\n',
    b'{"id":1,"op":"metrics","args":{"run":"r1","stage":"train","points":true}}\n',
    b'{"id":' + b"9" * 400 + b',"op":"ping"}\n',
    b"[" * 60000 + b"\n",
    b'{"a":' * 9000 + b"\n",
    b"\xff\xfe\x00" * 50 + b"\n",
    b"x" * 200_000 + b"\n",
    b'{"push":"run","seq":1,"data":{}}\n',
    b'{"id":1,"ok":true,"result":1}\n',
]


def test_hostile_lines_get_an_error_and_no_more(host):
    agent = host.agent()
    for line in HOSTILE:
        agent.write(line)
        found = agent.message()
        assert isinstance(found, Failure) and found.code in ("bad-frame", "bad-request"), (line[:60], found)
    rng = random.Random(7)
    for _ in range(200):
        agent.write(bytes(rng.randrange(256) for _ in range(rng.randrange(1, 200))).replace(b"\n", b" ") + b"\n")
    number = agent.post("ping")
    assert isinstance(agent.answer(number), Reply)


def test_a_request_in_pieces_and_many_in_one(host):
    agent = host.agent()
    whole = b'{"id":7,"op":"ping","args":{},"deadline_s":5}\n'
    for at in range(len(whole)):
        agent.write(whole[at : at + 1])
    assert agent.message().id == 7
    agent.write(b"".join(b'{"id":%d,"op":"ping"}\n' % number for number in range(50)))
    assert [agent.message().id for _ in range(50)] == list(range(50))


def test_it_ends_with_its_input(host):
    agent = host.agent()
    agent.process.stdin.close()
    assert agent.process.wait(15) == 0


def test_it_ends_when_a_piece_of_its_input_is_missing(host):
    agent = host.agent()
    streamer = Streamer()
    lines = [streamer.pack(encode(Request(number, "ping"))[0]) for number in range(1000, 1003)]
    agent.write(lines[0])
    assert agent.message().id == 1000
    agent.write(lines[2])
    assert agent.process.wait(15) == 0


def test_it_ends_when_nothing_is_heard_and_not_before(host):
    agent = host.agent(silence_s=1.0)
    for _ in range(6):
        agent.ask("ping")
        time.sleep(0.3)
    assert agent.process.poll() is None
    assert agent.process.wait(15) == 0


def test_it_ends_when_nobody_reads(host):
    host.run()
    agent = host.agent()
    agent.ask("watch", run="r1", every_s=0.2)
    agent.process.stdout.close()
    assert agent.process.wait(15) == 0


def test_killing_the_agent_ends_nothing(host, wait_for):
    run = host.run(generate={"steps": 60, "pause": 0.02})
    agent = host.agent()
    agent.ask("start", run="r1", through="generate")
    stage = run.stage("generate")
    wait_for(lambda: status(stage).state is StageState.RUNNING and stage.latest() and stage.latest().progress())
    agent.process.kill()
    agent.process.wait(10)
    wait_for(lambda: status(stage).state is StageState.DONE, 30)
    assert stage.attempts() == [1]


def test_stop_resume_kill_restart(host, wait_for):
    run = host.run(generate={"steps": 300, "pause": 0.05})
    stage = run.stage("generate")
    agent = host.agent()
    agent.ask("watch", run="r1", every_s=0.2)

    def counting():
        agent.ask("start", run="r1") if not held(run.path / "conductor" / "lock") else None
        agent.push("run", lambda data: data["stages"]["generate"]["progress"].get("done"))

    counting()
    assert agent.ask("stop", run="r1") == {"stages": ["generate"], "conductor": True, "services": []}
    agent.push("run", lambda data: data["stages"]["generate"]["state"] == "STOPPED")
    wait_for(lambda: not held(run.path / "conductor" / "lock"))
    assert agent.ask("resume", run="r1", stage="generate")["already"] is False
    wait_for(lambda: stage.latest().number == 2 and stage.latest().progress())
    main = stage.latest().state()["main"]["pid"]
    assert agent.ask("kill", run="r1")["stages"] == ["generate"]
    agent.push("run", lambda data: data["stages"]["generate"]["state"] == "KILLED")
    assert process_start(main) is None
    wait_for(lambda: not held(run.path / "conductor" / "lock"))
    before = (stage.current().path / "counts.txt").read_text()
    agent.ask("restart", run="r1", stage="generate")
    wait_for(lambda: stage.outputs() == [1, 2])
    assert (stage.output(1).path / "counts.txt").read_text() == before
    assert agent.refused("restart", run="r1", stage="generate").remedy


def test_what_is_not_at_work_is_answered_with_a_command(host, wait_for):
    run = host.run(generate={"steps": 3}, extract={"steps": 10_000, "pause": 0.02})
    agent = host.agent()

    def said(op, **args):
        refused = agent.refused(op, run="r1", **args)
        return refused.message, refused.remedy

    assert said("stop") == ("nothing of r1 runs", "`eagledeck start r1` starts it")
    assert said("kill", stage="generate")[1] == "`eagledeck start r1` goes from stage to stage"
    agent.ask("start", run="r1")
    extract = run.stage("extract")  # RUNNING from its lock on, a moment before it has an attempt
    wait_for(lambda: status(extract).state is StageState.RUNNING and extract.latest() and extract.latest().progress())
    at_work = "`eagledeck stop r1` stops the run, which is at extract"
    assert said("stop", stage="train") == ("nothing of train runs: it is PENDING", at_work)
    agent.ask("stop", run="r1")
    wait_for(lambda: not held(run.path / "conductor" / "lock"))
    assert said("stop")[1] == "`eagledeck resume r1 extract` goes on with it"
    assert said("stop", stage="extract")[1] == "`eagledeck resume r1 extract` goes on with it"
    done = "`eagledeck start r1` goes on after it; `eagledeck restart r1 generate` makes a new output"
    assert said("resume", stage="generate") == ("generate is DONE", done)


def test_kill_of_a_lost_stage(host, wait_for):
    run = host.run(generate={"steps": 600, "pause": 0.05})
    agent = host.agent()
    pid = agent.ask("start", run="r1")["pid"]
    stage = run.stage("generate")
    wait_for(lambda: status(stage).state is StageState.RUNNING and stage.latest() and stage.latest().progress())
    state = stage.latest().state()
    os.kill(pid, signal.SIGKILL)
    os.kill(state["supervisor"]["pid"], signal.SIGKILL)
    wait_for(lambda: status(stage).state is StageState.LOST)
    assert agent.ask("kill", run="r1", stage="generate")["stages"] == ["generate"]
    wait_for(lambda: status(stage).state is StageState.KILLED)
    assert process_start(state["main"]["pid"]) is None


def test_metrics_are_joined_cut_and_decimated(host):
    run = host.run()
    stage = run.stage("train")
    for number, (first, last, resume) in enumerate([(1, 5000, None), (4001, 9000, 4000)], 1):
        path = stage.make().path / "attempts" / f"{number:04d}"
        path.mkdir(parents=True)
        (path / "spec.json").write_text('{"output": 1}')
        with open(path / "metrics.jsonl", "w") as file:
            if resume is not None:
                file.write(json.dumps({"resume_step": resume}) + "\n")
            for step in range(first, last + 1):
                loss = 10.0 if step == 4500 and number == 1 else (99.0 if step == 777 else 1 / step)
                file.write(json.dumps({"step": step, "t": step, "epoch": step / 1000, "train/loss": loss}) + "\n")
            file.write('{"step": 9001, "torn')
    (stage.path / "out" / "0001").mkdir(parents=True)
    agent = host.agent()
    seen = agent.ask("metrics", run="r1", stage="train", output=1, points=200)
    steps, losses = seen["columns"]["step"], seen["columns"]["train/loss"]
    assert len(steps) == len(losses) <= 200
    assert steps == sorted(steps) and (steps[0], steps[-1], seen["last_step"]) == (1, 9000, 9000)
    assert max(losses) == 99.0 and losses[0] == 1.0
    assert losses[-1] == pytest.approx(1 / 9000, rel=1e-5)
    more = agent.ask("metrics", run="r1", stage="train", output=1, since_step=8990, names=["train/loss"])
    assert more["columns"]["step"] == list(range(8991, 9001))
    part = agent.ask("metrics", run="r1", stage="train", output=1, since_step=700, until_step=900, points=50)
    steps = part["columns"]["step"]
    assert (steps[0], steps[-1], part["rows"], part["last_step"]) == (701, 900, 200, 900) and len(steps) <= 50
    assert max(part["columns"]["train/loss"]) == 99.0
    with open(stage.path / "attempts" / "0002" / "metrics.jsonl", "a") as file:
        file.write('"}\n{"step": 9001, "t": 1, "train/loss": NaN, "val/loss": 2.5}\n')
    added = agent.ask("metrics", run="r1", stage="train", output=1, since_step=9000)
    assert added["columns"]["step"] == [9001]
    assert (added["columns"]["train/loss"], added["columns"]["val/loss"]) == ([None], [2.5])
    assert added["generation"] == more["generation"]


def test_curves_agree_with_the_run_directory(host):
    """The incremental join is the same as the plain one, whatever was resumed where."""
    from pipeline.rundir import joined_metrics

    run = host.run()
    stage = run.stage("train").make()
    (stage.path / "out" / "0001").mkdir(parents=True)
    rng, curves, step = random.Random(3), Curves(), 0
    for number in range(1, 8):
        path = stage.path / "attempts" / f"{number:04d}"
        path.mkdir(parents=True)
        (path / "spec.json").write_text('{"output": 1}')
        with JsonLines(path / "metrics.jsonl") as file:
            if rng.random() < 0.7:
                step = rng.randrange(0, step + 1)
                file.append({"resume_step": step})
            for _ in range(rng.randrange(0, 40)):
                step += 1
                file.append({"step": step, "train/loss": number + step / 1000})
                want = [(row["step"], row["train/loss"]) for row in joined_metrics(stage, stage.output(1))]
                got = curves.read(stage, 1, None, 5000, None)["columns"]
                assert list(zip(got.get("step", []), got.get("train/loss", []))) == want


def test_events_in_order_and_only_once(host, wait_for):
    host.run()
    agent = host.agent()
    assert agent.ask("events", run="r1")["events"] == []
    agent.ask("start", run="r1", through="vocab")
    found, cursor = [], None
    while not any(event["kind"] == "finished" for event in found):
        new = agent.ask("events", run="r1", **({"since": cursor} if cursor else {}))
        found += new["events"]
        time.sleep(0.05)
        cursor = new["cursor"]
    found += agent.ask("events", run="r1", since=cursor)["events"]
    assert len({json.dumps(event, sort_keys=True) for event in found}) == len(found)
    assert {event["stage"] for event in found} >= {"generate", "extract", "vocab"}
    counted = [event["message"] for event in found if event["kind"] == "info"]
    assert sorted(counted) == sorted(f"{stage} counted to 3" for stage in ("generate", "extract", "vocab"))
    whole = agent.ask("events", run="r1")["events"]
    assert whole == sorted(whole, key=lambda event: event["t"])


def test_events_after_a_long_absence_come_in_pieces(host):
    """Each once and each file's in its order, whatever the clock did; what was asked for at once is never exceeded."""
    run, rng = host.run(), random.Random(11)
    agent, written = host.agent(), {}
    cursor = agent.ask("events", run="r1")["cursor"]
    names = [(stage, name) for stage in ("generate", "train") for name in ("events", "supervision")]
    for stage, name in names:
        path = run.stage(stage).make().path / "attempts" / "0001"
        path.mkdir(parents=True, exist_ok=True)
        now = 1000.0
        with open(path / f"{name}.jsonl", "w") as file:
            for number in range(rng.randrange(200, 1500)):
                now += rng.uniform(-1, 3)
                message = f"{stage} {name} {number} {'x' * rng.randrange(200)}"
                written.setdefault((stage, name), []).append(message)
                file.write(json.dumps({"t": now, "kind": "info", "message": message}) + "\n")
                if rng.random() < 0.05:
                    file.write(rng.choice(["\n", "no json\n", '{"kind": "without a time"}\n', "[]\n"]))
            file.write('{"t": 1, "message": "torn')
    run.change_plan({"generate.max_samples": 7}, "while you were away")
    found, more = [], True
    while more:
        most = rng.randrange(1, 300)
        new = agent.ask("events", run="r1", since=cursor, max=most)
        assert len(new["events"]) <= most and new["events"] == sorted(new["events"], key=lambda event: event["t"])
        found += [event["message"] for event in new["events"]]
        cursor, more = new["cursor"], new["more"]
    assert agent.ask("events", run="r1", since=cursor)["events"] == []
    assert sorted(found) == sorted([*(m for messages in written.values() for m in messages), found[-1]])
    assert "while you were away" in found[-1]
    path = run.stage("train").path / "attempts" / "0001" / "events.jsonl"
    with open(path, "a") as file:
        file.write('"}\n')
    (end,) = agent.ask("events", run="r1", since=cursor)["events"]
    assert end["message"] == "torn"


def read_log(agent, offset=0, **where):
    data = b""
    while True:
        piece = agent.ask("tail", offset=offset + len(data), **where)
        data += base64.b64decode(piece["data"])
        if piece["done"]:
            return data


def test_tail_gives_the_very_bytes(host, wait_for):
    run = host.run(changes={"through": "generate"})
    agent = host.agent()
    agent.ask("start", run="r1")
    wait_for(lambda: status(run.stage("generate")).state is StageState.DONE)
    log = run.stage("generate").attempt(1).file("stage.log")
    with open(log, "ab") as file:
        file.write(bytes(range(256)) * 1000 + b"\x1b]52;c;aGk=\x07 end")
    want = log.read_bytes()
    assert read_log(agent, run="r1", stage="generate") == want
    last = agent.ask("tail", run="r1", stage="generate", offset=-10)
    assert base64.b64decode(last["data"]) == want[-10:]
    assert (last["size"], last["offset"], last["done"]) == (len(want), len(want) - 10, True)
    replaced = log.with_suffix(".new")
    replaced.write_bytes(b"short")
    os.replace(replaced, log)
    anew = agent.ask("tail", run="r1", stage="generate", offset=len(want), generation=last["generation"])
    assert (anew["offset"], base64.b64decode(anew["data"])) == (0, b"short")
    assert anew["generation"] != last["generation"]


def test_a_flood_of_log_delays_no_ping(host, wait_for):
    run = host.run()
    flood = "import os\nline = b'y' * 65535 + b'\\n'\nwhile True: os.write(1, line)"
    from remote.agent import starting

    with starting.locked(run.stage("generate"), "flood") as lock:
        attempt = run.stage("generate").new_attempt(argv=[sys.executable, "-c", flood])
        starting.launch(attempt, lock, "flood")
    agent = host.agent()
    agent.ask("watch", run="r1", every_s=0.2)
    tails = [agent.post("tail", run="r1", stage="generate", offset=-49152, max=49152) for _ in range(8)]
    slow = 0
    for _ in range(25):
        ping = agent.post("ping")
        tails.append(agent.post("tail", run="r1", stage="generate", offset=-49152, max=49152))
        while True:
            found = agent.message()
            if isinstance(found, Reply) and found.id == ping:
                break
            slow += isinstance(found, Reply)
    attempt.request("kill", "test")
    wait_for(attempt.exit)
    # Pings overtake: at most what was being written or lay in the pipe went before each.
    assert slow < 25 * 8
    assert attempt.file("stage.log").stat().st_size > 1 << 20


def test_a_slow_reader_gets_the_newest_push_and_no_queue():
    read, write = os.pipe()
    box = Outbox(write)
    body = {"n": 0, "fill": "x" * 6000}
    for number in range(500):
        box.push("host", {**body, "n": number})
        box.push("run", {**body, "n": number})
    box.answer(Reply(1, "pong"), urgent=True)
    box.close(0.2)
    splitter, decoder, found = Splitter(), Decoder(), []
    os.set_blocking(read, False)
    end = time.monotonic() + 5
    while time.monotonic() < end and sum(isinstance(one, Push) and one.data["n"] == 499 for one in found) < 2:
        try:
            data = os.read(read, 65536)
        except BlockingIOError:
            time.sleep(0.01)
            continue
        found += [message for line in splitter.feed(data) if (message := decoder.decode(line))]
    pushes = [message for message in found if isinstance(message, Push)]
    assert {push.data["n"] for push in pushes[-2:]} == {499}
    assert len(pushes) < 200
    assert [push.seq for push in pushes] == list(range(1, len(pushes) + 1))
    assert any(isinstance(message, Reply) for message in found)
    os.close(read)
    os.close(write)


def test_put_and_fetch_resume_and_check(host):
    import hashlib

    from remote.agent.starting import command

    body = os.urandom(3_000_000)
    digest = hashlib.sha256(body).hexdigest()
    take = b'{"take":100}\n{"take":3000000}\n'

    def transfer(kind, head, feed=b"", stop_after=None):
        argv = command(kind, "--root", str(host.root), "--nonce", "n1")
        child = subprocess.Popen(argv, cwd=os.getcwd(), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdout.readline() == b"n1\n"
        child.stdin.write(json.dumps(head).encode() + b"\n" + (take if kind == "send" else b""))
        child.stdin.flush()
        answer = json.loads(child.stdout.readline())
        if kind == "receive" and "offset" in answer:
            part = feed[answer["offset"] :][:stop_after]
            child.stdin.write(part)
        child.stdin.close()
        with child.stdout:
            out = child.stdout.read()
        return answer, out, child.wait(30)

    head = {"path": "prompts/a.jsonl", "size": len(body), "sha256": digest}
    answer, out, code = transfer("receive", head, body, stop_after=1_000_000)
    assert (answer, code) == ({"offset": 0}, 1) and b"repeat it" in out
    assert not (host.root / "prompts/a.jsonl").exists()
    answer, out, code = transfer("receive", head, body)
    assert answer == {"offset": 1_000_000} and code == 0
    assert json.loads(out)["done"]["sha256"] == digest
    assert (host.root / "prompts/a.jsonl").read_bytes() == body
    assert os.listdir(host.root / "prompts") == ["a.jsonl"]
    assert transfer("receive", head, b"")[0] == {"offset": len(body)}
    answer, out, code = transfer("receive", {**head, "path": "prompts/b", "size": 5, "sha256": digest}, b"12345")
    assert code == 1 and b"not the ones announced" in out and not (host.root / "prompts/b").exists()
    assert transfer("receive", {**head, "path": "r1/run.json"})[2] == 1
    (host.root / "r1").mkdir(exist_ok=True)
    (host.root / "r1/run.json").write_text("{}")
    for path in ("../x", "/etc/x", "code/x", "r1/plan/0009.json", "prompts/", "r1/generate/out/0001/x", ""):
        answer, out, code = transfer("receive", {**head, "path": path}, body)
        assert code == 1 and answer["error"]["message"], path
    answer, out, code = transfer("send", {"path": "prompts/a.jsonl", "offset": 2_000_000})
    assert (answer["size"], answer["offset"], code) == (len(body), 2_000_000, 0)
    assert out[:1_000_000] == body[2_000_000:]
    assert json.loads(out[1_000_000:]) == {"sha256": digest, "changed": False}
    for take in (b"", b'{"take":-1}\n', b'{"take":true}\n', b"[]\n", b"take\n"):
        answer, out, code = transfer("send", {"path": "prompts/a.jsonl", "offset": 0})
        assert code == 1 and json.loads(out)["error"]["message"], take
    assert transfer("send", {"path": "/etc/passwd", "offset": 0})[0]["error"]["code"] == "refused"
    assert transfer("send", {"path": "prompts/none", "offset": 0})[0]["error"]["code"] == "not-found"


def test_budget_and_what_if(host):
    run = host.run()
    agent = host.agent()
    plan = run.plan().to_json()
    fits = agent.ask("budget", run="r1")
    assert fits["fits"] and fits["bytes_per_token"] == 512 and fits["lines"]
    plan["stages"]["generate"]["params"]["max_samples"] = 10**9
    assert agent.ask("budget", run="r1", plan=plan)["fits"] is False
    assert run.plans() == [1]


def test_doctor_finds_what_is_missing(host, tmp_path):
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    bare.chmod(0o755)
    host.run(changes={f"{stage}.python": str(bare) for stage in ("generate", "extract", "vocab", "train", "deploy")})
    found = host.agent().ask("doctor", run="r1")
    by = {finding["name"]: finding for finding in found["findings"]}
    assert by["locks"]["ok"] is True
    assert by["volume"]["ok"] is True
    assert by["stage python"]["ok"] is False and "torch missing" in by["stage python"]["message"]
    assert by["stage python"]["remedy"]
    assert found["ok"] is False


def test_a_root_that_cannot_be_used_is_said_in_place_of_the_hello(host):
    from remote.agent.starting import command

    (host.root / "file").write_text("")
    argv = command("serve", "--root", str(host.root / "file" / "root"), "--nonce", "n1")
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=30)
    nonce, line = done.stdout.splitlines()
    failure = Decoder().decode(line)
    assert (nonce, done.returncode, done.stderr) == (b"n1", 1, b"")
    assert isinstance(failure, Failure) and "can't be used as the root" in failure.message and failure.remedy


def test_stop_after_the_conductor_was_killed_stops_its_services(host, wait_for):
    from pipeline.config import Plan
    from remote.agent import services
    from remote.agent.service_view import view

    server = "import http.server, sys; http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), "
    server += (
        "type('H', (http.server.BaseHTTPRequestHandler,), {'do_GET': lambda s: s.send_error(200)})).serve_forever()"
    )
    raw = host.plan().to_json()
    raw["services"]["engine"] = {"command": [sys.executable, "-c", server, "{port}"], "port": 0}
    raw["stages"]["generate"]["services"] = ["engine"]
    agent = host.agent()
    agent.ask("create", name="r1", plan=Plan.from_json(raw).to_json())
    run = RunDir.open(host.root / "r1")
    services.ensure(run, run.plan(), "engine", "generate", lambda: False, lambda message: None)
    assert agent.ask("stop", run="r1") == {"stages": [], "conductor": False, "services": ["engine"]}
    wait_for(lambda: view(host.root, "engine").state == "STOPPED")
    assert agent.refused("stop", run="r1").remedy


def test_the_first_use_of_a_root_tries_its_locks(host, wait_for):
    host.agent().ask("runs")
    tried = json.loads((host.root / "locks.json").read_text())
    assert tried["work"] is True
    host.agent().ask("runs")
    assert json.loads((host.root / "locks.json").read_text()) == tried


def test_restart_opens_a_new_output_and_says_what_it_would_leave_stale(host, wait_for):
    run = host.run(changes={"through": "extract"})
    agent = host.agent()
    agent.ask("start", run="r1")
    wait_for(lambda: status(run.stage("extract")).state.value == "DONE")
    wait_for(lambda: not held(run.path / "conductor" / "lock"))
    refused = agent.refused("restart", run="r1", stage="generate")
    assert refused.message.endswith("the run would halt there as stale")
    assert "`eagledeck restart r1 generate --rerun-stale`" in refused.remedy
    assert run.stage("generate").outputs() == [1]
    agent.ask("restart", run="r1", stage="generate", stale="rerun")
    wait_for(lambda: not held(run.path / "conductor" / "lock"))
    assert [run.stage(name).outputs() for name in ("generate", "extract")] == [[1, 2], [1, 2]]
    assert (run.stage("generate").path / "out" / "0001" / "report.json").exists()
