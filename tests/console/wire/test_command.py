"""The command line as processes, against a real agent over the embedded SSH server."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest


def test_a_run_from_init_to_fetch(container: Any, wait_for: Callable[..., Any], tmp_path: Path) -> None:
    container.configure(deploy={"report": {"acceptance_length": 2.5}})
    assert container.json("init", "r1") == {"created": "r1", "host": "box"}
    before = container.json("status", "r1")
    assert [stage["state"] for stage in before["stages"]] == ["PENDING"] * 5
    assert before["samples_target"] == 100
    changed = container.json("set", "r1", "generate.max_samples=50", "--note", "fewer")
    assert {**changed["effect"], "budget": None} == {"stale": [], "no_longer_stale": [], "live": [], "budget": None}
    assert changed["effect"]["budget"]["fits"] is True
    assert (changed["revision"], changed["stages"]["generate"]["params"]["max_samples"]) == (2, 50)
    assert container.eagledeck("start", "r1").stdout.startswith("Started r1 on box")
    wait_for(lambda: set(container.state().values()) == {"DONE"})
    for words in ((), ("--rerun-stale",), ("--from", "train")):
        said = container.eagledeck("start", "r1", *words).stdout
        assert said.startswith(f"Nothing to start: every stage {'from train ' if words[1:] else ''}up to deploy of r1")
        assert "`eagledeck restart r1 STAGE`" in said
    assert container.rundir().stage("deploy").attempts() == [1]
    after = container.json("status", "r1")
    assert [stage["state"] for stage in after["stages"]] == ["DONE"] * 5
    assert (after["samples"], after["tokens"], after["plan_revision"]) == (3, 30, 2)
    assert after["acceptance_length"] == 2.5
    assert after["metrics"]["train/loss"] == pytest.approx(1 / 3, rel=1e-5)
    assert after["link"]["state"] == "LIVE"
    said = container.eagledeck("status", "r1").stdout
    assert "generate  DONE" in said
    assert "no GPU" in said or "GPU 0" in said
    assert container.json("status")["runs"][0]["name"] == "r1"
    said = container.eagledeck("set", "r1", "train.lr=3e-5").stdout
    assert "Becomes STALE: train, deploy.\n`eagledeck start r1 --rerun-stale`" in said
    assert "It fits." in said
    home = container.folder / "home"
    (container.root / "r1" / "deploy" / "current" / "drafter-eagle3").mkdir()
    (container.root / "r1" / "deploy" / "current" / "drafter-eagle3" / "config.json").write_text("{}")
    fetched = container.eagledeck("fetch", "r1", "--to", str(home))
    assert "This drafter is STALE: its input train is stale: train.lr is 3e-05 now, was 0.0001. It is" in fetched.stderr
    assert "`eagledeck start r1 --rerun-stale`" in fetched.stderr
    assert (home / "drafter-eagle3" / "config.json").exists()
    assert "acceptance length 2.500 (STALE)" in container.eagledeck("status", "r1").stdout
    assert container.json("set", "r1", "vocab.size=100")["effect"]["stale"] == ["vocab"]  # the others were already
    back = container.json("set", "r1", "train.lr=1e-4", "vocab.size=32000")["effect"]
    assert (back["stale"], back["no_longer_stale"]) == ([], ["vocab", "train", "deploy"])
    assert "STALE" not in container.eagledeck("fetch", "r1", "--to", str(home)).stderr
    assert "No output becomes STALE." in container.eagledeck("set", "r1", "generate.concurrency=3").stdout
    container.eagledeck("set", "r1", "generate.max_samples=2")
    assert "samples 3 (the plan asks for 2)" in container.eagledeck("status", "r1").stdout


def test_a_change_that_a_running_stage_takes_up_says_so(container: Any, wait_for: Callable[..., Any]) -> None:
    container.configure(generate={"steps": 100_000})
    container.eagledeck("init", "r1")
    container.eagledeck("start", "r1", "--through", "generate")
    wait_for(lambda: container.state()["generate"] == "RUNNING")
    said = container.eagledeck("set", "r1", "generate.max_samples=90").stdout
    assert "Taken up at once by the running stage: generate.max_samples." in said
    assert "No output becomes STALE." in said
    container.eagledeck("kill", "r1", "--yes")
    wait_for(lambda: container.state()["generate"] in ("KILLED", "STOPPED"))


def test_a_change_of_a_stage_before_the_one_at_work_says_when_it_counts(
    container: Any, wait_for: Callable[..., Any]
) -> None:
    container.configure(train={"steps": 100_000})
    container.eagledeck("init", "r1")
    container.eagledeck("start", "r1")
    wait_for(lambda: container.state()["train"] == "RUNNING")
    said = container.eagledeck("set", "r1", "generate.max_samples=90").stdout
    assert "Taken up" not in said
    assert (
        "Becomes STALE: generate, extract, vocab, train.\ntrain goes on as it was begun. Once the run rests, " in said
    )
    assert "`eagledeck start r1 --rerun-stale` brings it up to date" in said
    said = container.eagledeck("set", "r1", "generate.max_samples=100").stdout
    assert "No longer STALE: generate, extract, vocab, train." in said
    assert "Becomes STALE" not in said
    container.eagledeck("kill", "r1", "--yes")
    wait_for(lambda: container.state()["train"] in ("KILLED", "STOPPED"))


def test_a_measurement_is_not_taken_for_that_of_the_drafter_in_the_making(
    container: Any, wait_for: Callable[..., Any]
) -> None:
    container.configure(deploy={"report": {"acceptance_length": 2.5}})
    container.eagledeck("init", "r1")
    container.eagledeck("start", "r1")
    wait_for(lambda: set(container.state().values()) == {"DONE"})
    assert "acceptance length 2.500 (measured)" in container.eagledeck("status", "r1").stdout
    container.eagledeck("set", "r1", 'train.env.DOUBLE={"steps": 100000, "pause": 0.5}')
    container.eagledeck("restart", "r1", "train", "--yes", "--rerun-stale")
    wait_for(lambda: container.state()["train"] == "RUNNING")
    assert "acceptance length 2.500 (older drafter)" in container.eagledeck("status", "r1").stdout
    container.eagledeck("kill", "r1", "--yes")
    wait_for(lambda: container.state()["train"] in ("KILLED", "STOPPED"))


def test_what_a_run_does_not_plan_is_not_pending(container: Any, wait_for: Callable[..., Any]) -> None:
    container.eagledeck("init", "r1")
    container.eagledeck("set", "r1", "through=extract")
    container.eagledeck("start", "r1")
    wait_for(lambda: container.state()["extract"] == "DONE")
    wait_for(lambda: container.json("status")["runs"][0]["state"] == "DONE")
    assert "PENDING" not in container.eagledeck("status").stdout
    said = container.eagledeck("status", "r1").stdout
    assert "PENDING" not in said
    assert "train     not planned" in said
    assert [stage["planned"] for stage in container.json("status", "r1")["stages"]] == [True] * 2 + [False] * 3
    assert "every stage up to extract of r1 on box is DONE" in container.eagledeck("start", "r1").stdout


def test_what_goes_with_a_change_is_said(container: Any) -> None:
    container.eagledeck("init", "r1")
    container.eagledeck("set", "r1", "services.vllm.command=vllm serve", "generate.service=vllm")
    said = container.eagledeck("set", "r1", "generate.service=").stdout
    assert "No stage uses service vllm any more. It stays in the plan, and is not started" in said
    assert "an empty services.vllm.command takes it out" in said
    assert "any more" not in container.eagledeck("set", "r1", "services.vllm.command=").stdout
    assert container.rundir().plan().services == {}
    container.eagledeck("set", "r1", "extract.length=2048", "train.length=2048")
    assert "With it goes train.length = 512." in container.eagledeck("set", "r1", "extract.length=512").stdout
    assert container.rundir().plan().params("train").length == 512


def test_a_second_stop_says_that_it_was_asked_before(container: Any, wait_for: Callable[..., Any]) -> None:
    container.configure(generate={"steps": 100_000, "deaf": True})
    container.eagledeck("init", "r1")
    container.eagledeck("set", "r1", "generate.grace_s=300")
    container.eagledeck("start", "r1", "--through", "generate")
    wait_for(lambda: list((container.root / "r1" / "generate").glob("out/*/counts.txt")))
    assert "was asked to save and stop" in container.eagledeck("stop", "r1").stdout
    for words in (("r1",), ("r1", "generate")):
        said = container.eagledeck("stop", *words).stdout
        assert said.startswith("generate on box is stopping already: it was asked ")
        assert "is ended by force 5m00s after that. `eagledeck kill r1` ends it at once" in said
    container.eagledeck("kill", "r1", "--yes")
    wait_for(lambda: container.state()["generate"] in ("KILLED", "STOPPED"))


def test_logs_are_sanitised_and_bounded(container: Any, wait_for: Callable[..., Any]) -> None:
    container.configure(generate={"steps": 30})
    container.eagledeck("init", "r1")
    assert "has run yet" in container.eagledeck("logs", "r1", status=1).stderr
    container.eagledeck("start", "r1", "--through", "generate")
    wait_for(lambda: container.state()["generate"] == "DONE")
    lines = container.eagledeck("logs", "r1", "-n", "4").stdout.splitlines()
    assert len(lines) == 4
    assert "step 30" in lines
    named = container.eagledeck("logs", "r1", "--stage", "generate", "-n", "1000").stdout
    assert "\x1b" not in named
    assert [line for line in named.splitlines() if line.startswith("step ")] == [f"step {n}" for n in range(1, 31)]


def test_what_has_no_log_is_named(container: Any, wait_for: Callable[..., Any]) -> None:
    container.eagledeck("init", "r1")
    assert (
        "r1 has no service vllm. Its services: none."
        in container.eagledeck("logs", "r1", "--service", "vllm", status=1).stderr
    )
    container.eagledeck("start", "r1", "--through", "generate")
    wait_for(lambda: container.state()["generate"] == "DONE")
    for words in ((), ("--stage", "generate")):
        said = container.eagledeck("logs", "r1", "--attempt", "9", *words, status=1).stderr
        assert "generate of r1 has no attempt 9. Its newest is 1" in said


def test_stop_and_resume_lose_and_double_nothing(container: Any, wait_for: Callable[..., Any]) -> None:
    container.configure(generate={"steps": 100_000})
    container.eagledeck("init", "r1")
    assert "runs" in container.eagledeck("stop", "r1", status=1).stderr
    container.eagledeck("start", "r1", "--through", "generate")
    wait_for(lambda: container.state()["generate"] == "RUNNING")
    assert "already" in container.eagledeck("start", "r1").stdout
    container.eagledeck("stop", "r1")
    wait_for(lambda: container.state()["generate"] == "STOPPED")
    counted = container.rundir().stage("generate").current().path / "counts.txt"
    assert len(counted.read_text().split()) < 100_000
    container.eagledeck("resume", "r1", "generate")
    wait_for(lambda: container.state()["generate"] == "RUNNING")
    assert "--yes" in container.eagledeck("kill", "r1", status=1).stderr
    container.eagledeck("kill", "r1", "--yes")
    wait_for(lambda: container.state()["generate"] in ("KILLED", "STOPPED"))
    numbers = counted.read_text().split()
    assert numbers == [str(n) for n in range(1, len(numbers) + 1)]
    assert "stays on disk" in container.eagledeck("restart", "r1", "generate", status=1).stderr
    assert "begins a new output" in container.eagledeck("restart", "r1", "generate", "--yes").stdout
    wait_for(lambda: container.state()["generate"] == "RUNNING")
    assert container.rundir().stage("generate").outputs() == [1, 2]
    container.eagledeck("kill", "r1", "--yes")
    wait_for(lambda: container.state()["generate"] in ("KILLED", "STOPPED"))


def test_a_following_log_goes_through_stages_and_ends_quietly(container: Any, wait_for: Callable[..., Any]) -> None:
    container.configure(generate={"steps": 5}, extract={"steps": 4})
    container.eagledeck("init", "r1")
    child = container.process("logs", "r1", "-f", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    wait_for(container.agents)  # it is connected, and waits for the first stage
    container.eagledeck("start", "r1", "--through", "extract")
    seen: list[str] = []
    while "==> extract <==" not in seen or "step 4" not in seen[seen.index("==> extract <==") :]:
        line = child.stdout.readline()
        assert line, seen
        seen.append(line.rstrip("\n"))
    assert seen.count("step 5") == 1
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=20)
    assert (child.returncode, errors) == (130, "")


def test_put_and_fetch(container: Any, tmp_path: Path) -> None:
    container.eagledeck("init", "r1")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "two and two"}\n')
    put = container.json("put", "r1", str(prompts), "--as", "generate.prompts")
    landed = Path(put["files"][0]["path"])
    said = container.eagledeck("put", "r1", str(prompts), "other.jsonl", "--as", "generate.nope", status=1).stderr
    assert "generate.nope" in said
    assert not (container.root / "other.jsonl").exists()
    said = container.eagledeck("put", "r1", str(prompts), "new.jsonl", "--as", "generate.system").stdout
    assert f"generate.system = {container.root}/new.jsonl (plan 3).\nNo output becomes STALE." in said
    assert landed.read_bytes() == prompts.read_bytes()
    assert container.rundir().plan().params("generate").prompts == str(landed)
    assert "drafter" in container.eagledeck("fetch", "r1", status=1).stderr
    folder = container.root / "r1" / "deploy" / "out" / "0001" / "drafter-eagle3"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"\0" * 70_000)
    (container.root / "r1" / "deploy" / "current").symlink_to("out/0001")
    home = tmp_path / "home"
    said = container.eagledeck("fetch", "r1", "--to", str(home)).stdout.splitlines()
    assert said == [f"{home}/drafter-eagle3  2 files, 70.0 kB", "  config.json  2 B", "  model.safetensors  70.0 kB"]
    fetched = container.json("fetch", "r1", "--to", str(home))
    assert sorted(file["path"] for file in fetched["files"]) == [
        str(home / "drafter-eagle3" / name) for name in ("config.json", "model.safetensors")
    ]
    assert (home / "drafter-eagle3" / "model.safetensors").stat().st_size == 70_000
    assert "can't be a folder" in container.eagledeck("fetch", "r1", "--to", str(prompts), status=1).stderr
    single = container.eagledeck("fetch", "box", "files/prompts.jsonl", "--to", str(home)).stdout
    assert single == f"{home}/prompts.jsonl  26 B\n"
    assert (home / "prompts.jsonl").read_bytes() == prompts.read_bytes()
    assert "outside" in container.eagledeck("fetch", "box", "/etc/hostname", status=1).stderr


def test_an_unknown_host_key_is_refused_until_its_fingerprint_is_given(container: Any) -> None:
    (container.folder / "host_keys").unlink()
    fingerprint = container.address["host_key_fingerprint"]
    assert fingerprint in container.eagledeck("status", status=1).stdout
    said = container.eagledeck("init", "r1", status=1).stderr
    assert f"--accept-host-key {fingerprint}" in said
    wrong = "SHA256:" + "A" * 43
    assert wrong in container.eagledeck("init", "r1", "--accept-host-key", wrong, status=1).stderr
    assert not (container.folder / "host_keys").exists()
    container.eagledeck("init", "r1", "--accept-host-key", fingerprint)
    container.eagledeck("status", "r1")


@pytest.mark.parametrize(("typed", "status"), [("yes", 0), ("y", 1)])
def test_a_new_host_key_is_trusted_when_a_person_types_yes(container: Any, typed: str, status: int) -> None:
    (container.folder / "host_keys").unlink()
    primary, secondary = os.openpty()
    child = container.process("status", stdin=secondary, stdout=subprocess.DEVNULL, stderr=secondary)
    os.close(secondary)
    asked = b""
    while b"Type yes" not in asked:
        asked += os.read(primary, 4096)
    assert container.address["host_key_fingerprint"].encode() in asked
    os.write(primary, typed.encode() + b"\n")
    assert child.wait(30) == status
    os.close(primary)
    assert (container.folder / "host_keys").exists() is (status == 0)


def test_what_a_host_refuses_is_one_sentence(container: Any) -> None:
    said = container.eagledeck("status", "r1", status=1).stderr
    assert said.startswith("eagledeck: ")
    assert said == "eagledeck: There is no run r1 on box yet. `eagledeck init r1` makes it.\n"
    said = container.eagledeck("status", "box:other", status=1).stderr
    assert "`eagledeck status --host box` lists" in said
    container.eagledeck("init", "r1")
    said = container.eagledeck("set", "r1", "generate.max_smaples=3", status=1).stderr
    assert "max_samples" in said
    said = container.eagledeck("init", "r1", status=1).stderr
    assert "r1" in said
    assert len(said.strip().splitlines()) == 1


def test_an_unreachable_host_is_one_sentence(container: Any) -> None:
    text = container.path.read_text().replace(f":{container.address['port']}", ":1")
    container.path.write_text(text)
    said = container.eagledeck("status", "r1", status=1).stderr
    assert said.startswith("eagledeck: ")
    assert len(said.strip().splitlines()) == 1
    listing = json.loads(container.eagledeck("status", "--json", status=1).stdout)
    assert listing["runs"] == []
    assert listing["unreachable"][0]["host"] == "box"


def test_a_budget_of_a_run_comes_from_its_host(container: Any) -> None:
    container.eagledeck("init", "r1")
    budget = container.json("budget", "r1")
    assert budget["fits"] is True
    assert budget["bytes_per_token"] == 4 * 64 * 2
    said = container.eagledeck("set", "r1", "volume.capacity_bytes=3MB", "volume.reserve_bytes=2MB").stdout
    assert "It DOES NOT FIT: `eagledeck budget r1` says what helps." in said
    assert "Does not fit" in container.eagledeck("budget", "r1", status=1).stdout
    refused = container.eagledeck("start", "r1", status=1).stderr
    assert "fit" in refused
    assert set(container.state().values()) == {"PENDING"}


def test_killing_the_console_stops_nothing_and_reopening_shows_everything(
    container: Any, wait_for: Callable[..., Any]
) -> None:
    container.configure(train={"steps": 60, "pause": 0.05})
    container.eagledeck("init", "r1")
    container.eagledeck("start", "r1")
    wait_for(lambda: container.state()["train"] == "RUNNING")
    primary, secondary = os.openpty()
    terminal = {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    console = container.process(
        "r1", env=terminal, stdin=secondary, stdout=secondary, stderr=secondary, start_new_session=True
    )
    os.close(secondary)
    drawn = b""
    while b"train" not in drawn or b"RUNNING" not in drawn:
        drawn += os.read(primary, 65536)
    console.kill()
    console.wait(10)
    os.close(primary)
    assert container.state()["train"] in ("RUNNING", "DONE")
    wait_for(lambda: set(container.state().values()) == {"DONE"})
    after = container.json("status", "r1")
    assert after["metrics"]["train/loss"] == pytest.approx(1 / 60, rel=1e-5)
    train = next(stage for stage in after["stages"] if stage["name"] == "train")
    assert (train["attempt"], train["done"]) == (1, 60)


def other_pin(container: Any) -> str:
    """Pins another key for the host; its fingerprint."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    line = key.export_public_key().decode().split(" ", 2)
    (container.folder / "host_keys").write_text(f"box {line[0]} {line[1].strip()}\n")
    return str(key.get_fingerprint())


def test_a_changed_host_key_is_refused_without_a_terminal(container: Any) -> None:
    old = other_pin(container)
    said = container.eagledeck("init", "r1", status=1).stderr
    assert "HAS CHANGED" in said
    assert old in said
    assert container.address["host_key_fingerprint"] in said
    assert "in a terminal" in said


@pytest.mark.parametrize(("typed", "status"), [("box", 0), ("yes", 1)])
def test_a_changed_host_key_is_replaced_when_a_person_types_the_hosts_name(
    container: Any, typed: str, status: int
) -> None:
    other_pin(container)
    before = (container.folder / "host_keys").read_text()
    primary, secondary = os.openpty()
    child = container.process("status", stdin=secondary, stdout=subprocess.DEVNULL, stderr=secondary)
    os.close(secondary)
    asked = b""
    while b"Type box" not in asked:
        asked += os.read(primary, 4096)
    os.write(primary, typed.encode() + b"\n")
    assert child.wait(30) == status
    os.close(primary)
    assert ((container.folder / "host_keys").read_text() == before) == bool(status)


@pytest.fixture
def locked(container: Any, tmp_path: Path) -> Iterator[Path]:
    """The identity file with a passphrase, and the configuration that names it."""
    identity = container.address["identity"]
    path = tmp_path / "locked"
    path.touch(mode=0o600)
    asyncssh.read_private_key(identity).write_private_key(path, passphrase="secret")
    container.address["identity"] = str(path)
    container.configure()
    yield path
    container.address["identity"] = identity
    container.configure()


@pytest.mark.parametrize(
    ("typed", "said"), [("secret", ""), ("wrong", "not the right one"), ("", "refused to log us in")]
)
def test_a_passphrase_is_asked_once_and_kept_nowhere(container: Any, locked: Path, typed: str, said: str) -> None:
    before = {path: path.read_bytes() for path in container.folder.glob("*") if path.is_file()}
    assert f"ssh-add {locked}" in container.eagledeck("status", status=1).stdout  # no terminal: nothing is asked
    primary, secondary = os.openpty()
    child = container.process("status", stdin=secondary, stdout=secondary, stderr=secondary, start_new_session=True)
    os.close(secondary)
    asked = b""
    while b"Passphrase of" not in asked:
        asked += os.read(primary, 4096)
    os.write(primary, typed.encode() + b"\n")
    told = b""
    with contextlib.suppress(OSError):  # the terminal is gone with the command
        while piece := os.read(primary, 4096):
            told += piece
    assert child.wait(30) == (0 if typed == "secret" else 1)
    os.close(primary)
    assert said in asked.decode() + told.decode() and b"secret" not in told and b"Passphrase" not in told
    assert {path: path.read_bytes() for path in container.folder.glob("*") if path.is_file()} == before


def test_commands_that_are_printed_work_as_they_stand(container: Any, tmp_path: Path) -> None:
    named = str(container.path)
    said = container.eagledeck("--config", named, "init", "r1").stdout
    assert f"`eagledeck --config {named} start r1` starts it" in said
    said = container.eagledeck("--config", named, "stop", "box:r1", status=1).stderr
    assert said == f"eagledeck: nothing of r1 runs. `eagledeck --config {named} start box:r1` starts it.\n"
    (command,) = [piece for piece in said.split("`") if piece.startswith("eagledeck ")]
    assert container.eagledeck(*command.split()[1:]).stdout.startswith("Started r1 on box")
