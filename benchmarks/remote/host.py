"""The host of the measurements: Debian's sshd on this machine, in a network of its own where root may make one.

The laptop's end (this process and its children) then has a namespace too, and a veth pair in between that can be cut.
Both vanish with their processes. Without root the sshd listens on the loopback, and nothing can be cut.
"""

from __future__ import annotations

import ctypes
import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.remote.footprint import family
from pipeline.rundir import process_start
from remote.hostkeys import HostKey, HostKeyStore
from remote.resolve import HostSpec

SSHD = "/usr/sbin/sshd"
CLONE_NEWNET = 0x40000000
LAPTOP, HOST = "10.99.0.1", "10.99.0.2"
MARK = "EAGLEDECK_BENCHMARK"
START_S = 15.0


class Unmeasurable(Exception):
    """What is missing for any measurement at all, in a sentence."""


class Host:
    """``with Host(folder) as host``. ``cuttable``: whether ``cut`` and ``join`` work. Raises Unmeasurable."""

    def __init__(self, folder: Path) -> None:
        for program in (SSHD, "ssh", "ssh-keygen"):
            if shutil.which(program) is None:
                raise Unmeasurable(f"{program} is missing: apt-get install openssh-server openssh-client")
        self.folder = folder
        self.root = folder / "volume" / "eagledeck"
        self.root.mkdir(parents=True)
        self.cuttable = _own_network()
        self._token = secrets.token_hex(8)
        for name in ("host_key", "id"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        self.address = HOST if self.cuttable else "127.0.0.1"
        self.port = 22 if self.cuttable else _free_port()
        self.hostkeys = HostKeyStore(folder / "state")
        self.hostkeys.pin("box", HostKey.parse((folder / "host_key.pub").read_text().strip()))
        (folder / "known_hosts").write_text(f"* {(folder / 'host_key.pub').read_text()}")

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _start(self) -> None:
        folder, home = self.folder, self.folder / "home"
        home.mkdir()
        gpus = compile_nvml(folder)
        environment = [f"HOME={home}", f"{MARK}={self._token}", *([f"LD_LIBRARY_PATH={gpus}"] if gpus else [])]
        (folder / "sshd_config").write_text(
            f"Port {self.port}\nListenAddress {'0.0.0.0' if self.cuttable else self.address}\n"
            f"HostKey {folder}/host_key\nAuthorizedKeysFile {folder}/id.pub\nStrictModes no\nUsePAM no\nPidFile none\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n"
            f"SetEnv {' '.join(environment)}\n"
        )
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd started by root insists
        self.gpus = 8 if gpus else 0
        inside = ["unshare", "--net"] if self.cuttable else []
        with (folder / "sshd.log").open("ab") as log:
            self._sshd = subprocess.Popen([*inside, SSHD, "-D", "-e", "-f", folder / "sshd_config"], stderr=log)
        if self.cuttable:
            self._wire()
        end = time.monotonic() + START_S
        while not self._answers():
            if self._sshd.poll() is not None or time.monotonic() > end:
                raise Unmeasurable("sshd does not start: " + (folder / "sshd.log").read_text()[-300:])
            time.sleep(0.05)

    def _wire(self) -> None:
        pid, ours = self._sshd.pid, os.readlink("/proc/self/ns/net")
        while os.readlink(f"/proc/{pid}/ns/net") == ours:
            time.sleep(0.01)
        for words in (
            ["ip", "link", "set", "lo", "up"],
            ["ip", "link", "add", "laptop", "type", "veth", "peer", "name", "host", "netns", str(pid)],
            ["ip", "addr", "add", f"{LAPTOP}/24", "dev", "laptop"],
            ["ip", "link", "set", "laptop", "up"],
        ):
            _run(words)
        self._inside("ip", "addr", "add", f"{HOST}/24", "dev", "host")
        self._inside("ip", "link", "set", "lo", "up")
        self.join()

    def _inside(self, *words: str) -> None:
        _run(["nsenter", "--net", "--target", str(self._sshd.pid), *words])

    def cut(self) -> None:
        """Nothing gets through any more, and nobody is told."""
        self._inside("ip", "link", "set", "host", "down")

    def join(self) -> None:
        """The network is back."""
        self._inside("ip", "link", "set", "host", "up")

    def _answers(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1.0)
            return probe.connect_ex((self.address, self.port)) == 0

    # ------------------------------------------------------------ how it is spoken to

    def spec(self, root: Path | None = None) -> HostSpec:
        """As eagledeck.toml would describe it; the Python of the agent is looked for."""
        return HostSpec(
            "box",
            f"{self.address}:{self.port}",
            str(root or self.root),
            user=pwd.getpwuid(os.getuid()).pw_name,
            identity_files=(str(self.folder / "id"),),
            ssh_config=False,
        )

    def ssh(self, command: str) -> list[str]:
        """The command line of OpenSSH's own client for the same login."""
        options = {"UserKnownHostsFile": self.folder / "known_hosts", "IdentityFile": self.folder / "id"}
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        words += ["-o", "BatchMode=yes", "-o", "GlobalKnownHostsFile=none", "-o", "IdentitiesOnly=yes"]
        user = pwd.getpwuid(os.getuid()).pw_name
        return ["ssh", "-F", "none", *words, "-p", str(self.port), f"{user}@{self.address}", command]

    # ------------------------------------------------------------ what runs there

    def processes(self) -> dict[int, list[str]]:
        """Everything that came from a session of this host, stages apart: pid -> command line."""
        mark, found = f"{MARK}={self._token}".encode(), {}
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                with suppress(OSError):
                    if mark in Path(f"/proc/{entry.name}/environ").read_bytes().split(b"\0"):
                        words = Path(f"/proc/{entry.name}/cmdline").read_bytes().split(b"\0")[:-1]
                        found[int(entry.name)] = [os.fsdecode(word) for word in words]
        return found

    def subcommand(self, name: str) -> list[int]:
        """The processes of one subcommand of the agent's package."""
        return [pid for pid, line in self.processes().items() if "remote.agent" in line and name in line]

    def close(self) -> None:
        """Ends every process of the host; the namespaces go with the last of them."""
        left = list({one for pid in self.processes() for one in family(pid)})
        if hasattr(self, "_sshd"):
            self._sshd.kill()
            self._sshd.wait()
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + 10
        while any(process_start(pid) is not None for pid in left) and time.monotonic() < end:
            time.sleep(0.05)


def compile_nvml(folder: Path) -> Path | None:
    """The folder with the library of eight made-up cards; None where a real one is, or no compiler."""
    compiler = shutil.which("cc")
    if Path("/dev/nvidiactl").exists() or compiler is None:
        return None
    library = folder / "gpus" / "libnvidia-ml.so.1"
    library.parent.mkdir()
    source = Path(__file__).with_name("nvml.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    return library.parent


def _own_network() -> bool:
    """Moves this process, which has one thread yet, into a network namespace of its own. False where it may not."""
    if os.geteuid() != 0 or any(shutil.which(tool) is None for tool in ("ip", "unshare", "nsenter")):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.unshare(CLONE_NEWNET) == 0)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _run(words: list[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise Unmeasurable(f"`{' '.join(words)}` failed: {done.stderr.strip()}")


STAGE = '''#!{python}
"""Called like a Python: a stage that counts. Train never ends, and floods its log on demand."""
import os, sys, threading, time
sys.path.insert(0, os.getcwd())
from pipeline.stage import Stopped, run_stage
name = next(word for word in sys.argv if word.startswith("pipeline.")).split(".")[1]
LINE = b"step 000000 loss 1.2345 lr 3.0e-05 grad 0.98 tokens/s 51234 " + b"." * 59 + b"\\n"
BLOCK = LINE * (500_000 // len(LINE))
def flood(run):
    wanted, due = run.run.path / "flood", time.monotonic()
    while True:
        if wanted.exists():
            os.write(1, BLOCK)
            due = max(due + 0.01, time.monotonic() - 0.1)
        else:
            due = time.monotonic() + 0.1
        time.sleep(max(0.0, due - time.monotonic()))
def body(run):
    endless = name == "train"
    if endless:
        threading.Thread(target=flood, args=(run,), daemon=True).start()
    step = 0
    while endless or step < 3:
        if run.stopping():
            raise Stopped()
        step += 1
        names = ("loss", "lr", "grad_norm", "accuracy_0", "accuracy_1", "accuracy_2", "tokens_per_s")
        run.metric(step, values={{f"train/{{name}}": 1 / (step + at) for at, name in enumerate(names)}})
        run.progress(step, 45_000, "steps", counts={{"tokens": step * 2048}})
        run.log(f"step {{step}} loss {{1 / step:.4f}}")
        time.sleep(0.2 if endless else 0.01)
    run.finish({{"samples": step, "tokens": step * 10}}, f"{{name}}-{{step}}")
sys.exit(run_stage(name, body, sys.argv[sys.argv.index("--run"):]))
'''


def write_stage(folder: Path) -> Path:
    """The program that stands in for the Python of every stage."""
    path = folder / "stage"
    path.write_text(STAGE.format(python=sys.executable))
    path.chmod(0o755)
    return path


def write_verifier(folder: Path) -> Path:
    """A verifier as far as the budget wants to know it."""
    path = folder / "verifier"
    path.mkdir()
    config: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 4, "vocab_size": 512, "num_attention_heads": 4}
    config |= {"intermediate_size": 128, "num_key_value_heads": 2, "model_type": "llama"}
    (path / "config.json").write_text(json.dumps(config))
    return path
