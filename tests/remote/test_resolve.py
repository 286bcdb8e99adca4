"""Hosts: what people write, what `ssh -G` makes of it, jump chains, refusals."""

from __future__ import annotations

import getpass
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from remote import resolve as module
from remote.errors import HostConfigError
from remote.resolve import HostSpec, Resolved, from_settings, parse_settings, resolve, split_target

SPEC = HostSpec("box", "gpu", "/data/eagledeck")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu", ("", "gpu", 0)),
        ("root@10.0.0.5:2222", ("root", "10.0.0.5", 2222)),
        ("root@gpu-1.example.com", ("root", "gpu-1.example.com", 0)),
        ("user@corp@gpu:22", ("user@corp", "gpu", 22)),
        ("[::1]:2222", ("", "::1", 2222)),
        ("me@[fe80::1%eth0]", ("me", "fe80::1%eth0", 0)),
        ("::1", ("", "::1", 0)),
    ],
)
def test_the_forms_a_host_is_written_in(text: str, expected: tuple[str, str, int]) -> None:
    assert split_target(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-oProxyCommand=evil",
        "x@-oProxyCommand=evil",
        "a b",
        "gpu;id",
        "$(id)",
        "`id`@gpu",
        "gpu:99999",
        "@gpu\n",
        "a'b",
    ],
)
def test_what_ssh_or_a_shell_would_take_for_more_is_refused(text: str) -> None:
    with pytest.raises(HostConfigError):
        split_target(text)


@pytest.mark.parametrize("root", ["", "data", "../x", "~root/x", "/data\n/x"])
async def test_a_root_that_is_not_absolute_is_refused(root: str) -> None:
    with pytest.raises(HostConfigError):
        await resolve(replace(SPEC, root=root, ssh_config=False))


@pytest.fixture
def ssh_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration file that the real `ssh` reads instead of the account's own."""
    real = shutil.which("ssh")
    if real is None:
        pytest.skip("there is no ssh here")
    config, wrapper = tmp_path / "config", tmp_path / "bin" / "ssh"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nshift\nexec {real} -F {config} -G "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", str(wrapper.parent), prepend=":")
    config.write_text("")
    return config


async def test_an_alias_is_resolved_by_openssh(ssh_config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    ssh_config.write_text(
        "Host gpu   # a comment that a lesser parser stumbles over\n HostName 10.1.2.3\n Port 2200\n User trainer\n"
        " IdentityFile ~/.ssh/id_%h\n IdentityFile /keys/second\n IdentitiesOnly yes\n ConnectTimeout 20s\n"
        " StrictHostKeyChecking no\n ForwardAgent yes\n CertificateFile /keys/cert.pub\n"
    )
    found = await resolve(SPEC)
    assert (found.name, found.host, found.port, found.user) == ("box", "10.1.2.3", 2200, "trainer")
    assert found.identity_files == (str(Path.home() / ".ssh/id_10.1.2.3"), "/keys/second")
    assert found.certificate_files == ("/keys/cert.pub",)
    assert found.identities_only and found.agent_path == "/run/agent" and found.connect_timeout_s == 20
    assert len(found.notes) == 2 and "StrictHostKeyChecking" in found.notes[0]


async def test_the_description_wins_over_the_configuration(ssh_config: Path) -> None:
    ssh_config.write_text("Host gpu\n Port 2200\n User trainer\n IdentityFile /keys/a\n")
    found = await resolve(replace(SPEC, user="me", port=7, identity_files=("/keys/mine",)))
    assert (found.user, found.port, found.identity_files, found.identities_only) == ("me", 7, ("/keys/mine",), True)
    assert (await resolve(replace(SPEC, ssh="you@gpu:8"))).address == "you@gpu:8"


@pytest.mark.parametrize(
    ("setting", "expected"),
    [("none", ""), ("$MY_AGENT", "/run/mine"), ("SSH_AUTH_SOCK", "/run/agent"), ("/run/%r.sock", "/run/trainer.sock")],
)
async def test_the_agent_that_is_named(
    ssh_config: Path, monkeypatch: pytest.MonkeyPatch, setting: str, expected: str
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    monkeypatch.setenv("MY_AGENT", "/run/mine")
    ssh_config.write_text(f"Host gpu\n User trainer\n IdentityAgent {setting}\n")
    assert (await resolve(SPEC)).agent_path == expected


async def test_jumps_are_resolved_each_by_its_own_settings(ssh_config: Path) -> None:
    ssh_config.write_text(
        "Host gpu\n HostName 10.0.0.9\n ProxyJump inner,last@middle:33\n"
        "Host inner\n HostName 10.0.0.1\n ProxyJump outer\n"
        "Host middle\n HostName 10.0.0.2\n User ignored\n ProxyJump nowhere\n"
        "Host outer\n HostName bastion.example\n Port 2222\n User jumper\n"
    )
    found = await resolve(SPEC)
    assert [hop.address for hop in found.jumps] == [
        "jumper@bastion.example:2222", f"{getpass.getuser()}@10.0.0.1:22", "last@10.0.0.2:33",
    ]  # fmt: skip
    assert found.jumps[0].name == "jump:bastion.example:2222"
    assert all(hop.jumps == () for hop in found.jumps)


@pytest.mark.parametrize(
    "config",
    ["Host *\n ProxyJump bastion\n", "Host gpu\n ProxyJump a\nHost a\n ProxyJump b\nHost b\n ProxyJump a\n"],
)
async def test_a_loop_of_jump_hosts_is_refused(ssh_config: Path, config: str) -> None:
    ssh_config.write_text(config)
    with pytest.raises(HostConfigError, match=r"loop|behind more than"):
        await resolve(SPEC)


async def test_a_proxy_command_gets_its_tokens(ssh_config: Path) -> None:
    ssh_config.write_text("Host gpu\n HostName real\n User u\n ProxyCommand nc %h %p %r %n 100%%\n")
    assert (await resolve(SPEC)).proxy_command == "nc real 22 u gpu 100%"


async def test_what_only_the_system_ssh_can_do_is_noted(
    ssh_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KRB5CCNAME", raising=False)
    ssh_config.write_text("Host *\n GSSAPIAuthentication yes\n")
    assert (await resolve(SPEC)).beyond == ()  # some distributions set it for everyone
    monkeypatch.setenv("KRB5CCNAME", "KEYRING:x")
    assert (await resolve(SPEC)).beyond == ("GSSAPIAuthentication",)
    ssh_config.write_text("Host gpu\n PKCS11Provider /usr/lib/opensc-pkcs11.so\n SecurityKeyProvider /lib/mine.so\n")
    found = await resolve(replace(SPEC, backend="openssh"))
    assert found.beyond == ("PKCS11Provider", "SecurityKeyProvider") and found.backend == "openssh"
    assert ("pkcs11provider", "/usr/lib/opensc-pkcs11.so") in found.ssh_settings


async def test_the_known_hosts_files_are_those_of_the_configuration(ssh_config: Path) -> None:
    ssh_config.write_text(
        'Host gpu\n UserKnownHostsFile "~/my hosts" /b\n GlobalKnownHostsFile none\n HostKeyAlias theirs\n'
    )
    found = await resolve(SPEC)
    assert found.known_hosts_files[-1] == "/b" and found.host_key_alias == "theirs"


async def test_the_backend_and_the_keyring_are_those_of_the_description_on_every_hop(ssh_config: Path) -> None:
    ssh_config.write_text("Host gpu\n ProxyJump a,b\n")
    spec = replace(SPEC, backend="openssh")
    found = await resolve(spec)
    assert {(hop.backend, id(hop.keyring)) for hop in (found, *found.jumps)} == {("openssh", id(spec.keyring))}


async def test_a_broken_configuration_is_quoted(ssh_config: Path) -> None:
    ssh_config.write_text("Host gpu\n Nonsense yes\n")
    with pytest.raises(HostConfigError, match=r"(?i)bad configuration|terminating") as caught:
        await resolve(SPEC)
    assert caught.value.blocks


async def test_a_match_exec_that_hangs_is_given_up(ssh_config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SSH_G_TIMEOUT_S", 0.3)
    ssh_config.write_text('Match exec "exec sleep 3"\n Port 1\n')
    with pytest.raises(HostConfigError, match="did not answer"):
        await resolve(SPEC)


async def test_without_ssh_only_the_plain_form_is_understood(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    found = await resolve(replace(SPEC, ssh="root@10.0.0.5:2222"))
    assert (found.address, found.agent_path) == ("root@10.0.0.5:2222", "/run/agent")
    assert found.identity_files[0].endswith("/.ssh/id_ed25519") and "no ssh command" in found.notes[0]
    assert (await resolve(replace(SPEC, ssh_config=False))).notes == ()


def test_settings_keep_repeated_keywords_in_order() -> None:
    settings = parse_settings("identityfile /a\nIdentityFile /b c\nport 22\nproxyjump none\n")
    assert settings == {"identityfile": ["/a", "/b c"], "port": ["22"], "proxyjump": ["none"]}
    assert from_settings("n", "h", settings) == replace(
        Resolved("n", "h", 22, getpass.getuser(), ("/a", "/b c")), agent_path=from_settings("n", "h", {}).agent_path
    )
