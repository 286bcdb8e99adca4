"""A laptop and a host with a wire between them that can be cut: a network namespace, a veth pair, Debian's sshd.

    this process 10.X.Y.1 ── veth ── namespace "ed…" 10.X.Y.2, sshd on port 22

Everything is named after this process, so that several suites may run at once, and is gone after ``close``. Faults are
made in the namespace alone: nothing of the machine's own network is touched. Needs root, nft and iproute2.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import asyncssh

from pipeline.rundir import process_start
from remote.hostkeys import HostKey, HostKeyStore
from remote.resolve import HostSpec

TOOLS = ("ip", "tc", "nft", "ssh-keygen", "unshare", "nsenter")
_numbers = itertools.count()


@functools.cache
def missing() -> str:
    """Why none of this can be made here; "" when it can, which is tried."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    gone = [tool for tool in TOOLS if shutil.which(tool) is None]
    gone += ["sshd"] if not os.path.exists("/usr/sbin/sshd") else []
    if gone:
        return f"{', '.join(gone)} is not installed here (tests/real/install.sh installs it)"
    try:
        sh("unshare", "--pid", "--fork", "--mount-proc", "true")
        wire = Wire()
        try:
            wire.blackhole()
            wire.slow("64kbit")
        finally:
            wire.close()
    except AssertionError as error:
        return f"this kernel or container makes no such network: {str(error).strip()}"
    return ""


def sh(*words: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert not check or done.returncode == 0, f"{' '.join(map(str, words))}: {done.stderr}{done.stdout}"
    return done


class Wire:
    """The namespace and the link to it. ``here`` and ``there`` are the two addresses."""

    def __init__(self) -> None:
        number = next(_numbers)
        if number == 0:
            sweep()
        self.name = f"ed{os.getpid()}-{number}"
        self._ends = f"e{os.getpid()}x{number}a", f"e{os.getpid()}x{number}b"
        sh("ip", "netns", "add", self.name)
        try:
            for guess in range(os.getpid() * 8 + number, 1 << 30):
                net = guess % (1 << 14)
                self.here, self.there = (f"10.99.{net >> 6}.{(net & 63) * 4 + host}" for host in (1, 2))
                if f" {self.here}/" not in sh("ip", "-o", "addr").stdout:
                    break
            sh("ip", "link", "add", self._ends[0], "type", "veth", "peer", self._ends[1], "netns", self.name)
            sh("ip", "addr", "add", f"{self.here}/30", "dev", self._ends[0])
            sh("ip", "link", "set", self._ends[0], "up")
            sh("ip", "-n", self.name, "addr", "add", f"{self.there}/30", "dev", self._ends[1])
            for device in (self._ends[1], "lo"):
                sh("ip", "-n", self.name, "link", "set", device, "up")
        except BaseException:
            self.close()
            raise

    def inside(self, *words: object) -> list[str]:
        """The command line that runs ``words`` on the host."""
        return ["ip", "netns", "exec", self.name, *map(str, words)]

    # ------------------------------------------------------------ faults

    def _rules(self, *chains: str, what: str) -> None:
        self.heal()
        script = "add table inet fault\n"
        for chain in chains:
            script += f"add chain inet fault {chain} {{ type filter hook {chain} priority 0; }}\n"
            script += f"add rule inet fault {chain} meta iif != lo {what}\n" if chain == "input" else ""
            script += f"add rule inet fault {chain} meta oif != lo {what}\n" if chain == "output" else ""
        done = subprocess.run(self.inside("nft", "-f", "-"), input=script, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr

    def blackhole(self, *ways: str) -> None:
        """Swallows what comes ``in`` to the host, what goes ``out`` of it, or (by default) both."""
        self._rules(*({"in": "input", "out": "output"}[way] for way in ways or ("in", "out")), what="drop")

    def reset(self) -> None:
        """Answers every packet of a connection with RST, as a firewall does that has forgotten it."""
        self._rules("input", what="meta l4proto tcp reject with tcp reset")

    def heal(self) -> None:
        sh(*self.inside("nft", "delete", "table", "inet", "fault"), check=False)

    def slow(self, rate: str) -> None:
        """``64kbit`` each way, with room for a packet or two; what does not fit waits in the senders."""
        for command in ([], ["ip", "netns", "exec", self.name]):
            device = self._ends[1] if command else self._ends[0]
            sh(*command, "tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate, "burst", "4kb",
               "latency", "400ms")  # fmt: skip

    def fast(self) -> None:
        for command in ([], ["ip", "netns", "exec", self.name]):
            sh(*command, "tc", "qdisc", "del", "dev", self._ends[1] if command else self._ends[0], "root", check=False)

    # ------------------------------------------------------------ what is there

    def pids(self) -> list[int]:
        """Every process of the host."""
        return [int(pid) for pid in sh("ip", "netns", "pids", self.name, check=False).stdout.split()]

    def processes(self, *words: str) -> list[int]:
        """Those whose command line has all of ``words`` among its own."""
        found = []
        for pid in self.pids():
            with contextlib.suppress(OSError):
                argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if all(word.encode() in argv for word in words):
                    found.append(pid)
        return found

    def agents(self) -> list[int]:
        """The agents that speak to somebody, without their NVML children."""
        return self.processes("remote.agent", "serve")

    def established(self) -> int:
        """Connections to the host's sshd that stand, as this end sees it."""
        far = "".join(f"{int(part):02X}" for part in reversed(self.there.split("."))) + ":0016"
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return sum(row[2] == far and row[3] == "01" for row in rows)

    def close(self) -> None:
        remove(self.name)
        sh("ip", "link", "del", self._ends[0], check=False)


def remove(name: str) -> None:
    """A namespace of ours, and every process in it. Its end of the wire goes with it."""
    end = time.monotonic() + 15
    while (pids := sh("ip", "netns", "pids", name, check=False).stdout.split()) and time.monotonic() < end:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.02)
    sh("ip", "netns", "del", name, check=False)


def sweep() -> None:
    """Removes what a suite left that was killed itself."""
    for line in sh("ip", "netns").stdout.splitlines():
        match = re.match(r"ed(\d+)-\d+\b", line)
        if match and not os.path.exists(f"/proc/{match[1]}"):
            remove(match[0])


def keypair(path: Path) -> Path:
    key = asyncssh.generate_private_key("ssh-ed25519")
    path.touch(mode=0o600)
    key.write_private_key(path)
    key.write_public_key(path.with_suffix(".pub"))
    return path


class Gpu:
    """The host: a wire, and sshd at its far end for an account with a home and a login shell of its own.

    ``container``: sshd is the first process of a pid namespace, and everything ends with it. ``shell`` is the login
    shell; ``settings`` are lines of sshd_config that come before ours; ``mounts`` is a command of sh that mounts what
    the host alone is to see, with its folders in $HOME and $ROOT.
    """

    def __init__(
        self, folder: Path, shell: str = "/bin/bash", settings: str = "", container: bool = False, mounts: str = "true"
    ) -> None:
        self.folder, self.container, self.mounts = folder, container, mounts
        self.home, self.root = folder / "home", folder / "root"
        for path in (folder, self.home, self.root):
            path.mkdir(exist_ok=True)
        self.user = "deck"
        self.hostkey = keypair(folder / "host_key")
        self.identity = keypair(folder / "id")
        self.authorized = folder / "authorized"
        shutil.copy(folder / "id.pub", self.authorized)
        self.passwd = folder / "passwd"
        self.set_shell(shell)
        self.config = folder / "sshd_config"
        self.log = folder / "sshd.log"
        self.configure(settings)
        self._probes = 0
        self.wire = Wire()
        try:
            self.start()
        except BaseException:
            self.wire.close()
            raise

    def set_shell(self, shell: str) -> None:
        lines = Path("/etc/passwd").read_text().splitlines()
        account = f"{self.user}:x:0:0::{self.home}:{shell}"
        # written in place: it lies over /etc/passwd of the running sshd
        self.passwd.write_text("\n".join([account, *lines]) + "\n")

    def configure(self, settings: str) -> None:
        self.config.write_text(
            f"{settings}\nPort 22\nHostKey {self.hostkey}\nAuthorizedKeysFile {self.authorized}\nStrictModes no\n"
            "UsePAM no\nPidFile none\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nUseDNS no\n"
            "PermitRootLogin prohibit-password\nLogLevel VERBOSE\n"
        )

    def start(self) -> None:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        # the mounts are those of the namespace that `ip netns exec` has made for this command
        script = f"HOME={self.home} ROOT={self.root}; {self.mounts} && mount --bind {self.passwd} /etc/passwd"
        script += f" && exec /usr/sbin/sshd -D -e -f {self.config}"
        own = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"] if self.container else []
        with self.log.open("ab") as log:
            argv = self.wire.inside(*own, "/bin/sh", "-c", script)
            self.process = subprocess.Popen(argv, stderr=log, stdout=log, stdin=subprocess.DEVNULL)
        while True:
            with socket.socket() as probe:
                probe.settimeout(1.0)
                if probe.connect_ex((self.wire.there, 22)) == 0:
                    self._probes += 1
                    return
            assert self.process.poll() is None, self.log.read_text()[-400:]
            time.sleep(0.02)

    @property
    def listener(self) -> int:
        """The sshd that listens. In a container it is the first process there."""
        if not self.container:
            return self.process.pid
        (child,) = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(child)

    def enter(self, *words: object) -> subprocess.CompletedProcess[str]:
        """Runs a command in the container, with its view of the processes."""
        return sh("nsenter", "-t", self.listener, "-m", "-n", "-p", *words)

    def stop(self) -> None:
        """Kills the listening sshd; in a container, with everything in it."""
        if self.process.poll() is None:
            os.kill(self.listener, signal.SIGKILL)
        self.process.wait()

    def sessions(self) -> list[int]:
        """The sshd processes that serve a connection."""
        return [pid for pid in self.wire.pids() if pid != self.listener and _name(pid) == "sshd"]

    def spec(self, **changes: object) -> HostSpec:
        values: dict[str, object] = {
            "alias": "gpu",
            "ssh": f"{self.user}@{self.wire.there}:22",
            "root": str(self.root),
            "python": sys.executable,
            "identity_files": (str(self.identity),),
            "ssh_config": False,
        }
        return HostSpec(**{**values, **changes})  # type: ignore[arg-type]

    def hostkeys(self, name: str = "state") -> HostKeyStore:
        """A laptop's store that trusts the host."""
        store = HostKeyStore(self.folder / name)
        if store.get("gpu") is None:
            store.pin("gpu", HostKey.parse(self.hostkey.with_suffix(".pub").read_text()))
        return store

    def logins(self) -> list[str]:
        """What sshd said about who tried to log in."""
        words = ("Accepted ", "Failed ", "Connection closed by authenticating", "Disconnected from authenticating")
        return [line for line in self.log.read_text("utf-8", "replace").splitlines() if line.startswith(words)]

    def accepted(self) -> int:
        """Connections that sshd has seen, less the probes of ``start``."""
        return self.log.read_text("utf-8", "replace").count("Connection from ") - self._probes

    def close(self) -> None:
        self.wire.close()
        with contextlib.suppress(Exception):
            self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def gpu_host(folder: Path, **how: object) -> Iterator[Gpu]:
    host = Gpu(folder, **how)  # type: ignore[arg-type]
    try:
        yield host
    finally:
        host.close()


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def alive(pid: int) -> bool:
    return process_start(pid) is not None
