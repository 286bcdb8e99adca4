"""The command line as processes where it needs no host: usage, budget, init, errors, and how little it loads."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from console.command import main
from console.config import parse_config

ROOT = Path(__file__).resolve().parents[2]
VERBS = ("demo", "init", "open", "status", "start", "stop", "resume", "kill", "restart", "set")
VERBS += ("logs", "service", "doctor", "put", "fetch", "budget")
KIMI = ("budget", "--hidden-size", "7168", "--mean-tokens", "4000", "--volume", "3TB")


class Shell:
    """Runs the command in a folder of its own, with a home of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "HOME": str(folder), "XDG_STATE_HOME": str(folder / "state"), "PYTHONPATH": str(ROOT)}
        for name in ("EAGLEDECK_CONFIG", "XDG_CONFIG_HOME"):
            self.env.pop(name, None)

    def __call__(self, *words: str, program: str = "") -> subprocess.CompletedProcess[str]:
        program = program or "import sys; from console.command import main; sys.exit(main())"
        return subprocess.run(
            [sys.executable, "-P", "-c", program, *words],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def test_help_names_every_verb_and_loads_almost_nothing(shell: Shell) -> None:
    program = (
        "import sys\n"
        "from console.command import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as end: code = end.code\n"
        "heavy = [m for m in sys.modules if m.split('.')[0] in "
        "('asyncio', 'asyncssh', 'textual', 'torch', 'numpy', 'remote', 'pipeline')]\n"
        "print(code, heavy, file=sys.stderr)"
    )
    done = shell(program=program)
    assert done.stderr.strip() == "0 []"
    for verb in VERBS:
        assert f"\n    {verb} " in done.stdout


def test_kimi_fits_with_10_000_samples_and_not_with_25_000(shell: Shell) -> None:
    fits = shell(*KIMI, "--samples", "10000", "--json")
    assert fits.returncode == 0
    numbers = json.loads(fits.stdout)
    assert numbers["bytes_per_token"] == 57_344
    assert numbers["items"][0]["bytes"] == 10_000 * 4_000 * 57_344 == 2_293_760_000_000
    too_many = shell(*KIMI, "--samples", "25000")
    assert too_many.returncode == 1
    assert "5.73 TB (5.22 TiB)" in too_many.stdout
    largest = numbers["largest_samples"]
    assert f"at most {largest:,} samples" in too_many.stdout
    assert shell(*KIMI, "--samples", str(largest)).returncode == 0
    assert shell(*KIMI, "--samples", str(largest + 1)).returncode == 1
    assert "2.29 TB (2.09 TiB)" in shell(*KIMI, "--samples", "10000").stdout


def test_a_budget_reads_a_nested_verifier_config(shell: Shell) -> None:
    text = {"hidden_size": 7168, "num_hidden_layers": 61, "vocab_size": 163_840, "num_attention_heads": 64}
    (shell.folder / "config.json").write_text(json.dumps({"model_type": "kimi_k25", "text_config": text}))
    words = ["budget", "--verifier", ".", "--samples", "10000", "--mean-tokens", "4000", "--volume", "3TB", "--json"]
    assert json.loads(shell(*words).stdout)["bytes_per_token"] == 57_344
    (shell.folder / "config.json").write_text("{}")
    said = shell(*words)
    assert said.returncode == 1
    assert "hidden_size is missing" in said.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["budget"], "--samples, --mean-tokens, --volume"),
        (["budget", "--samples", "0"], "'0' is no whole number"),
        ([*KIMI[:-1], "3XB", "--samples", "5"], "--volume 3XB is no size"),
        (["start"], "RUN"),
        (["start", "r", "--from", "nowhere"], "nowhere"),
        (["start", "r", "--rerun-stale", "--keep-stale"], "not allowed with"),
        (["set", "r"], "KEY=VALUE"),
        (["--nonsense"], "--nonsense"),
        (["demo", "--verifier", "none"], "none"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        status = main(words)
    except SystemExit as end:
        status = int(str(end.code))
    said = capsys.readouterr()
    assert (status, said.out) == (2, "")
    assert says in said.err
    assert said.err.startswith("eagledeck")
    assert len(said.err.strip().splitlines()) == 1


def test_init_writes_a_file_to_start_from_and_never_over_one(shell: Shell) -> None:
    assert json.loads(shell("init", "--json").stdout) == {"written": "eagledeck.toml"}
    again = shell("init")
    assert again.returncode == 1
    assert "is there already" in again.stderr
    elsewhere = shell("--config", "other.toml", "init")
    assert elsewhere.returncode == 0
    assert (shell.folder / "other.toml").read_text() == (shell.folder / "eagledeck.toml").read_text()


def test_a_word_that_is_neither_verb_nor_run_is_answered_with_the_nearest(shell: Shell) -> None:
    said = shell("first")
    assert said.returncode == 1
    assert "eagledeck init" in said.stderr
    shell("init")
    said = shell("fisrt")
    assert "Did you mean first?" in said.stderr
    assert "HOST:RUN" in said.stderr
    assert "no host nowhere" in shell("status", "nowhere:r1").stderr
    assert "needs a terminal" in shell("first").stderr


README = (ROOT / "README.md").read_text("utf-8")


def test_the_readme_goes_on_from_the_file_that_init_writes(shell: Shell) -> None:
    shell("init")
    written = (shell.folder / "eagledeck.toml").read_text()
    shown, *_ = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    ours, theirs = parse_config(written, Path("a")), tomllib.loads(shown)
    assert (list(theirs["hosts"]), list(theirs["runs"])) == (list(ours.hosts), list(ours.runs))
    for line in shown.splitlines():
        if line and not line.startswith("["):
            assert re.search(rf"^(# )?{line.partition(' =')[0]} =", written, re.MULTILINE), line
    host, run = *ours.hosts, *ours.runs
    for command in (f"put {host} prompts.jsonl", f"init {run}", run, f"fetch {run}"):
        assert f"\neagledeck {command} " in README


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "budget"])
def test_the_readme_names_every_option_of_a_verb(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    options = set(re.findall(r"(?<=[ \[])--[a-z-]+", capsys.readouterr().out.partition("\n\n")[0]))
    names = r"\[open\]" if verb == "open" else verb
    rows = [line for line in README.splitlines() if re.match(rf"\| `eagledeck {names}\b|\| `eagledeck {names}", line)]
    assert rows, verb
    everywhere = {"--help", "--accept-host-key"} | (set() if verb == "demo" else {"--json"})
    assert [option for option in options - everywhere if f"`{option}" not in rows[0] and option != "--lines"] == []


def test_words_that_are_nearly_a_verb_and_options_that_would_be_ignored(shell: Shell) -> None:
    shell("init")
    assert "Did you mean status?" in shell("statsu").stderr
    assert "fisrt is no run of" in shell("stop", "fisrt").stderr
    for words in (("budget", "first", "--samples", "5"), ("status", "first", "--host", "gpu")):
        said = shell(*words)
        assert (said.returncode, f"{words[-2]} " in said.stderr) == (2, True)


def test_a_verb_never_loads_textual(shell: Shell) -> None:
    modules = "console.command.set, console.command.files, console.command.status, console.demo.headless"
    done = shell(program=f"import sys, {modules}; print('textual' in sys.modules)")
    assert done.stdout == "False\n"


def test_put_looks_for_the_file_first_and_then_names_the_hosts(shell: Shell) -> None:
    shell("init")
    assert "absent.jsonl is not there" in shell("put", "nohost", "absent.jsonl").stderr
    assert ". is no file" in shell("put", "nohost", ".").stderr
    (shell.folder / "prompts.jsonl").write_text("{}\n")
    said = shell("put", "gpo", "prompts.jsonl").stderr
    assert "neither a host nor a run" in said
    for part in ("Did you mean gpu?", "Its hosts: gpu.", "Its runs: first."):
        assert part in said


def test_without_a_configuration_that_of_the_demo_is_named_where_there_is_one(shell: Shell) -> None:
    assert "`eagledeck demo` needs none" in shell("status").stderr
    demo = shell.folder / "state" / "eagledeck" / "demo" / "eagledeck.toml"
    demo.parent.mkdir(parents=True)
    demo.touch()
    assert f"--config {demo}" in shell("status").stderr


def test_a_wrong_configuration_names_its_line(shell: Shell) -> None:
    shell("init")
    path = shell.folder / "eagledeck.toml"
    path.write_text(path.read_text().replace("epochs = 5", "epoch = 5"))
    line = 1 + path.read_text().splitlines().index("epoch = 5")
    said = shell("status", "first")
    assert said.returncode == 1
    assert f"eagledeck.toml, line {line}: runs.first.train.epoch = 5" in said.stderr


@pytest.mark.parametrize("words", [("--config", "x.toml", "status", "r"), ("status", "r", "--config", "x.toml")])
def test_the_configuration_is_named_before_or_after_the_verb(shell: Shell, words: tuple[str, ...]) -> None:
    done = shell(*words)
    assert done.returncode == 1
    assert "x.toml" in done.stderr


def test_a_fault_of_ours_is_one_line_and_its_trace_is_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(_: Any) -> int:
        raise ZeroDivisionError("a fault")

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("console.command.budget.budget", broken)
    assert main(["budget"]) == 1
    said = capsys.readouterr().err
    assert len(said.strip().splitlines()) == 1
    (trace,) = (tmp_path / "eagledeck" / "traces").iterdir()
    assert str(trace) in said
    assert "ZeroDivisionError: a fault" in trace.read_text()


LOGS = """
import asyncio, gc, logging
from console.command.session import run_async

async def work():
    asyncio.create_task(fail())
    await asyncio.sleep(0.05)
    gc.collect()
    logging.getLogger("asyncssh").warning("a library's warning")

async def fail():
    raise ValueError("nobody waits for this")

run_async(work())
"""


def test_what_libraries_log_stays_off_the_terminal(shell: Shell) -> None:
    done = shell(program=LOGS)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    log = (shell.folder / "state" / "eagledeck" / "eagledeck.log").read_text("utf-8")
    assert "nobody waits for this" in log
    assert "WARNING asyncssh: a library's warning" in log


def test_a_log_that_cant_be_written_does_no_harm(shell: Shell) -> None:
    (shell.folder / "state").write_text("a file where the folder should be")
    done = shell(program=LOGS)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_output_that_nobody_reads_ends_quietly(shell: Shell) -> None:
    read, write = os.pipe()
    os.close(read)
    program = "import sys; from console.command import main; sys.exit(main())"
    child = subprocess.run(
        [sys.executable, "-P", "-c", program, *KIMI, "--samples", "5"],
        env=shell.env,
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    os.close(write)
    assert child.stderr == ""
