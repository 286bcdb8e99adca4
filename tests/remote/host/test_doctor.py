"""What doctor finds beyond the Pythons and the volume: the container's environment, sessions, survival."""

from __future__ import annotations

import os

import pytest

from pipeline.config import Plan, set_values
from pipeline.rundir import process_start
from remote.agent import doctor


def only(found):
    (finding,) = found
    return finding


def test_what_the_container_has_and_a_session_lacks_is_named_without_values(monkeypatch):
    inside = {"PATH": "/bin", "HF_HOME": "/data/hf", "NCCL_P2P": "secret", "HERE": "1"}
    monkeypatch.setattr(doctor, "container_environment", lambda: inside)
    plan = set_values(Plan(), {"train.env_allow": "NCCL_P2P"})
    finding = only(doctor._environment(plan, {"HERE": "1"}))
    assert (finding["value"], finding["ok"]) == (["HF_HOME"], None)
    assert "HF_HOME" in finding["remedy"] and "secret" not in str(finding)
    assert "/data/hf" not in str(finding)
    assert only(doctor._environment(plan, inside))["value"] == []


@pytest.mark.parametrize(("limit", "ok"), [("10", True), ("4", True), ("1", False)])
def test_few_sessions_are_told(monkeypatch, tmp_path, limit, ok):
    sshd = tmp_path / "sshd"
    sshd.write_text(f"#!/bin/sh\necho port 22\necho maxsessions {limit}\n")
    sshd.chmod(0o755)
    monkeypatch.setattr(doctor.shutil, "which", lambda name, path: str(sshd))
    finding = only(doctor._sessions())
    assert (finding["ok"], finding["value"]) == (ok, int(limit))
    assert bool(finding["remedy"]) is not ok


def test_sessions_that_nobody_tells_are_unknown(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda name, path: "/no/such/sshd")
    assert only(doctor._sessions())["ok"] is None


def test_one_left_behind_outlives_its_agent_and_is_found_once(host):
    first = host.agent()
    left = first.ask("survivor")
    first.close()
    assert process_start(left["pid"]) == left["start"]
    second = host.agent()
    assert second.ask("survivor", **left) == {"alive": True}
    assert second.ask("survivor", pid=os.getpid(), start=1) == {"alive": False}
