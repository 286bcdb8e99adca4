"""eagledeck.toml: what is read, and that every refusal names key, line, value and what is allowed."""

from __future__ import annotations

import random
import tomllib
from pathlib import Path

import pytest

from console.command.init import TEMPLATE
from console.config import ConfigFileError, find_config, load_config, parse_config
from console.toml_lines import key_lines

GOOD = """\
version = 1

[hosts.gpu]   # the container
ssh = "root@203.0.113.7:40022"
volume = "/data"
capacity = "3TB"
identity = "~/.ssh/id_ed25519"

[services.vllm]
command = [
  "vllm", "serve",  # a ] in a comment, and a "quote"
  "{verifier}",
]
port = 8000

[runs.kimi]
verifier = "/data/Kimi-K2.5"
reasoning = true
generate = { max_samples = 10_000, service = "vllm", services = ["vllm"] }

[runs.kimi.train]
epochs = 5
gpus = [0, 1]
"""
PATH = Path("eagledeck.toml")


def refusal(content: str) -> ConfigFileError:
    with pytest.raises(ConfigFileError) as caught:
        parse_config(content, PATH)
    return caught.value


def changed(old: str, new: str) -> str:
    assert GOOD.count(old) == 1
    return GOOD.replace(old, new)


def test_a_good_file_becomes_hosts_and_plans() -> None:
    config = parse_config(GOOD, PATH)
    spec = config.hosts["gpu"].to_spec()
    assert (spec.ssh, spec.root, spec.volume) == ("root@203.0.113.7:40022", "/data/eagledeck", "/data")
    assert spec.identity_files == ("~/.ssh/id_ed25519",)
    assert spec.backend == "asyncssh"
    openssh = parse_config(changed('capacity = "3TB"', 'backend = "openssh"'), PATH)
    assert openssh.hosts["gpu"].to_spec().backend == "openssh"
    assert "asyncssh, openssh" in str(refusal(changed('capacity = "3TB"', 'backend = "paramiko"')))
    run = config.runs["kimi"]
    assert run.host == "gpu"
    assert run.plan.verifier.path == "/data/Kimi-K2.5"
    assert run.plan.verifier.name == "Kimi-K2.5"
    assert run.plan.verifier.reasoning is True
    assert run.plan.volume.capacity_bytes == 3_000_000_000_000
    assert run.plan.stages["generate"].params.max_samples == 10_000
    assert run.plan.stages["generate"].services == ("vllm",)
    assert run.plan.stages["train"].gpus == (0, 1)
    assert run.plan.services["vllm"].command == ("vllm", "serve", "{verifier}")


def test_only_the_services_that_a_run_names_go_into_its_plan() -> None:
    other = GOOD + '\n[services.sglang]\ncommand = ["sglang"]\nport = 9000\n'
    assert list(parse_config(other, PATH).runs["kimi"].plan.services) == ["vllm"]


def test_the_template_that_init_writes_is_a_good_file() -> None:
    config = parse_config(TEMPLATE, PATH)
    assert list(config.runs) == ["first"]
    assert config.runs["first"].plan.params("generate").max_samples == 10_000


@pytest.mark.parametrize(
    ("content", "line", "names"),
    [
        (changed("epochs = 5", "epoch = 5"), 22, ["runs.kimi.train.epoch = 5", "Did you mean epochs?", "max_steps"]),
        (changed("epochs = 5", 'epochs = "5"'), 22, ['runs.kimi.train.epochs = "5"', "a whole number"]),
        (changed("epochs = 5", "epochs = true"), 22, ["runs.kimi.train.epochs = true", "a whole number"]),
        (changed("epochs = 5", "epochs = 0"), 22, ["runs.kimi.train.epochs = 0", "at least 1"]),
        (changed("gpus = [0, 1]", 'gpus = "some"'), 23, ["runs.kimi.train.gpus", '"all"']),
        (changed('"3TB"', '"3XB"'), 6, ['hosts.gpu.capacity = "3XB"', "3TB"]),
        (changed("ssh = ", "shs = "), 4, ["hosts.gpu.shs", "Did you mean ssh?"]),
        (changed('ssh = "root@203.0.113.7:40022"\n', ""), 3, ["hosts.gpu has no ssh"]),
        (changed(":40022", ":99999"), 4, ["hosts.gpu.ssh: 'root@203.0.113.7:99999' has the port 99999", "1 to 65535"]),
        (changed(":40022", ":0"), 4, ["has the port 0", "1 to 65535"]),
        (changed("root@203.0.113.7:40022", "-oProxyCommand=x"), 4, ["hosts.gpu.ssh", "starts with '-'"]),
        (changed('"/data"', '"data"'), 5, ['hosts.gpu.volume = "data"', "from / or ~/"]),
        (changed("[hosts.gpu]", "[host.gpu]"), 3, ["host = ", "Did you mean hosts?"]),
        (changed("[hosts.gpu]", '[hosts."GPU 1"]'), 3, ['"GPU 1"', "a-z"]),
        (changed("port = 8000", "port = 80_000"), 14, ["services.vllm.port = 80000", "65535"]),
        (
            changed("port = 8000", 'port = 8000\nrestart = "allways"'),
            15,
            ["services.vllm.restart", "on-failure, never"],
        ),
        (changed('service = "vllm"', 'service = "vlm"'), 19, ['generate.service = "vlm"', "Did you mean vllm?"]),
        (changed("max_samples = 10_000", "max_smaples = 9"), 19, ["generate.max_smaples", "Did you mean max_samples?"]),
        (changed("reasoning = true", 'reasoning = true\nhost = "gpo"'), 19, ['runs.kimi.host = "gpo"', "gpu"]),
        (changed("reasoning = true", 'through = "trian"'), 18, ['runs.kimi.through = "trian"', "generate, extract"]),
        (changed('verifier = "/data/Kimi-K2.5"\n', ""), 16, ["runs.kimi has no verifier"]),
        (changed("epochs = 5", "length = 4096"), 22, ["train.length = 4096", "extract.length"]),
        (GOOD + "\n[runs.kimi.tarin]\n", 25, ["runs.kimi.tarin", "Did you mean train?"]),
        (GOOD + "\n[[runs.other]]\n", 25, ["runs.other", "a table"]),
        (changed("version = 1", 'version = "1"'), 1, ['version = "1"', "It takes 1"]),
        (changed("version = 1", "version = 1\nstate = 7"), 2, ["state = 7", "folder"]),
    ],
)
def test_a_refusal_names_key_line_value_and_what_is_allowed(content: str, line: int, names: list[str]) -> None:
    said = str(refusal(content))
    assert said.startswith(f"eagledeck.toml, line {line}: "), said
    assert [name for name in names if name not in said] == [], said
    assert "\n" not in said


def test_a_newer_version_is_refused_before_its_unknown_keys() -> None:
    said = str(refusal("version = 2\n[clusters.x]\n"))
    assert "line 1" in said
    assert "newer Eagledeck" in said
    assert "clusters" not in said


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (changed("epochs = 5", "epochs = "), "line 22, column 10"),
        (GOOD + '\nx = """', "the end of the file"),
        (GOOD + "\n[runs.kimi.train]\n", "[runs.kimi.train]"),
        ("a = 1\na = 2\n", "line 2"),
    ],
)
def test_broken_toml_is_one_sentence_with_its_place(content: str, where: str) -> None:
    said = str(refusal(content))
    assert where in said
    assert said.startswith("eagledeck.toml, line ")
    assert "\n" not in said


def test_text_that_is_not_utf8_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "eagledeck.toml"
    path.write_bytes(b"version = 1\n# caf\xe9\n")
    with pytest.raises(ConfigFileError, match="line 2: this is no UTF-8"):
        load_config(path)


def test_without_a_file_there_is_an_empty_configuration() -> None:
    assert (load_config(None).hosts, load_config(None).runs) == ({}, {})


def test_the_file_is_looked_for_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = tmp_path / "user" / "eagledeck" / "eagledeck.toml"
    here, named, given = (tmp_path / name for name in ("eagledeck.toml", "named.toml", "given.toml"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    monkeypatch.delenv("EAGLEDECK_CONFIG", raising=False)
    assert find_config() is None
    user.parent.mkdir(parents=True)
    user.write_text("")
    assert find_config() == user
    here.write_text("")
    assert find_config() == Path("eagledeck.toml")
    monkeypatch.setenv("EAGLEDECK_CONFIG", str(named))
    with pytest.raises(ConfigFileError, match="EAGLEDECK_CONFIG"):
        find_config()
    named.write_text("")
    assert find_config() == named
    given.write_text("")
    assert find_config(str(given)) == given
    with pytest.raises(ConfigFileError, match="--config"):
        find_config(str(tmp_path / "absent.toml"))


def test_lines_are_found_through_every_kind_of_value() -> None:
    content = '''\
a = "x # = [" # c
b.c = \'''
d = 1
\'\'\'
"q.r" = { s = [1, 2,
  3], t = """
u = 1 \\"""" }
[v."w x".y]
z = [ { k = 1 }, # ]
  "]" ]
'''.replace("\\'", "'")
    tomllib.loads(content)
    found = key_lines(content)
    assert found[("a",)] == 1
    assert found[("b", "c")] == 2
    assert found[("q.r",)] == 5
    assert found[("q.r", "s")] == 5
    assert found[("q.r", "t")] == 6
    assert found[("v", "w x", "y")] == 8
    assert found[("v", "w x", "y", "z")] == 9
    assert ("d",) not in found
    assert ("u",) not in found


def test_every_key_of_random_files_has_its_line() -> None:
    random_numbers = random.Random(7)
    values = ["1", '"a#b"', "[1, # x\n 2]", "'''\n\n'''", '{ i = "}", j = [{ k = 2 }] }', "2026-01-01", '"""a\n"b\n"""']
    for _ in range(200):
        lines: list[str] = []
        expected: dict[tuple[str, ...], int] = {}
        for table in range(random_numbers.randint(1, 4)):
            lines += [""] * random_numbers.randint(0, 2)
            lines.append(f"[t{table}]  # [no]")
            expected[(f"t{table}",)] = len(lines)
            for key in range(random_numbers.randint(0, 4)):
                text = f"k{key} = {random_numbers.choice(values)}"
                expected[(f"t{table}", f"k{key}")] = len(lines) + 1
                lines += text.split("\n")
        content = "\n".join(lines)
        tomllib.loads(content)
        found = key_lines(content)
        assert {path: found[path] for path in expected} == expected
