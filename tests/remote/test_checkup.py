"""What only both ends can tell of a host, against the embedded server and real sshds, a mean one among them."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from remote.checkup import Finding, check_wire, clock
from remote.hostkeys import HostKeyStore
from remote.resolve import HostSpec

KILLER = f"""#!{sys.executable}
import ctypes, os, signal, subprocess
ctypes.CDLL(None).prctl(36, 1)  # what is left behind becomes its child
status = subprocess.call(["/bin/sh", "-c", os.environ.get("SSH_ORIGINAL_COMMAND", "")])
me = str(os.getpid())
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        stat = open(f"/proc/{{pid}}/stat").read().rpartition(")")[2].split()
    except OSError:
        continue
    if stat[1] == me:
        os.kill(int(pid), signal.SIGKILL)
os._exit(status if status >= 0 else 255)
"""


async def by_name(spec: HostSpec, hostkeys: HostKeyStore) -> dict[str, Finding]:
    return {one.name: one for one in await check_wire(spec, hostkeys)}


@pytest.mark.usefixtures("shared_code")
async def test_a_host_as_it_should_be(host) -> None:
    found = await by_name(host.spec, host.hostkeys)
    assert (found["sessions"].state, found["sessions"].value) == ("ok", 4)
    assert found["survival"].state == "ok"


@pytest.mark.usefixtures("shared_code")
@pytest.mark.parametrize(("sshd", "state"), [("MaxSessions 1", "bad"), ("MaxSessions 2", "note")], indirect=["sshd"])
async def test_sessions_are_counted_by_opening_them(real, sshd, state: str) -> None:
    found = await by_name(real.spec, real.hostkeys)
    assert found["sessions"].state == state
    assert found["sessions"].value == int(sshd.config.read_text().split()[1])
    assert "MaxSessions" in found["sessions"].remedy
    assert found["survival"].state == "ok"  # told apart all the same


@pytest.mark.usefixtures("shared_code")
async def test_a_host_that_kills_what_is_left_at_logout_is_found_out(sshd, real, tmp_path: Path) -> None:
    killer = tmp_path / "killer"
    killer.write_text(KILLER)
    killer.chmod(killer.stat().st_mode | stat.S_IXUSR)
    sshd.stop()
    sshd.config.write_text(f"ForceCommand {killer}\n{sshd.config.read_text()}")
    sshd.start()
    found = await by_name(real.spec, real.hostkeys)
    assert found["survival"].state == "bad"
    assert "stages would die" in found["survival"].message
    assert "KillUserProcesses=no" in found["survival"].remedy


async def test_a_connection_that_cannot_be_made_again_is_a_finding(embedded, loopback) -> None:
    await loopback.close()
    (found,) = await check_wire(embedded.spec, embedded.hostkeys)
    assert (found.name, found.state) == ("connection", "bad")
    assert "refuses connections" in found.message
    assert "sshd runs there" in found.remedy


@pytest.mark.parametrize(
    ("skew", "state", "says"),
    [
        (None, "note", "could not be compared"),
        (0.4, "ok", "agrees"),
        (-7.2, "note", "7 s behind ours"),
        (86_400.0, "bad", "86,400 s ahead of ours"),
    ],
)
def test_clocks(skew: float | None, state: str, says: str) -> None:
    found = clock(skew)
    assert found.state == state
    assert says in found.message
    assert bool(found.remedy) == (skew is not None and state != "ok")


def test_a_finding_from_the_wire_is_taken_as_it_is_meant() -> None:
    found = Finding.of_wire({"name": "locks", "ok": False, "value": {"work": False}, "message": "m", "remedy": "r"})
    assert found == Finding("locks", False, "m", "r", {"work": False})
    assert Finding.of_wire({"ok": "yes"}) == Finding("", None, "")
