"""Seconds from the command to the first frame of the console, in a real pseudo-terminal, against a bare Textual app.

Both are started as a new Python process, in turn. The console is the real command on a run whose host can't be reached:
interpreter, command line, configuration, link, collector, overview. The bare app shows one word, so that the difference
is ours. The claim is a first frame within one second.

    python -m benchmarks.first_paint [--rounds 7] [--size 80x24] [--json]
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import select
import signal
import socket
import statistics
import struct
import sys
import tempfile
import termios
import time
from pathlib import Path

LIMIT_S = 1.0
GIVE_UP_S = 30.0

BARE = """
from textual.app import App
from textual.widgets import Static

class Bare(App):
    def compose(self):
        yield Static("first-frame-of-the-bare-app")

Bare().run()
"""
CONSOLE = "import sys; from console.command import main; sys.exit(main(sys.argv[1:]))"
CONFIG = """
version = 1
[hosts.nowhere]
ssh = "nobody@127.0.0.1:{port}"
root = "/nowhere"
volume = "/nowhere"
[runs.first-paint]
host = "nowhere"
verifier = "/nowhere/verifier"
"""
MARKS = {"bare": b"first-frame-of-the-bare-app", "console": b"first-paint"}


def closed_port() -> int:
    """A port of this machine on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def seconds_to(mark: bytes, argv: list[str], cwd: Path, env: dict[str, str], size: tuple[int, int]) -> float:
    """Start `argv` in a pseudo-terminal of columns x rows; seconds until `mark` is on it. RuntimeError without one."""
    began = time.perf_counter()
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.execve(argv[0], argv, env)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    seen = b""
    try:
        while time.perf_counter() - began < GIVE_UP_S:
            if not select.select([terminal], [], [], 0.5)[0]:
                continue
            try:
                seen += os.read(terminal, 65_536)
            except OSError:
                break
            if mark in seen:
                return time.perf_counter() - began
        raise RuntimeError(f"no first frame; the terminal shows: {seen[-400:]!r}")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


def measure(rounds: int, size: tuple[int, int]) -> dict[str, list[float]]:
    """Seconds by program, in the order of the rounds; a first round, which fills the file cache, does not count."""
    repository = Path(__file__).resolve().parent.parent
    with tempfile.TemporaryDirectory(prefix="first-paint-") as folder:
        config = Path(folder) / "eagledeck.toml"
        config.write_text(CONFIG.format(port=closed_port()), "utf-8")
        env = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "TEXTUAL_THEME"}}
        env |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", "XDG_STATE_HOME": folder}
        programs = {
            "bare": [sys.executable, "-c", BARE],
            "console": [sys.executable, "-c", CONSOLE, "--config", str(config), "first-paint"],
        }
        taken: dict[str, list[float]] = {name: [] for name in programs}
        for number in range(rounds + 1):
            for name, argv in programs.items():
                seconds = seconds_to(MARKS[name], argv, repository, env, size)
                if number:
                    taken[name].append(seconds)
        return taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="measured starts of each program")
    parser.add_argument("--size", default="80x24", help="columns x rows of the terminal")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    columns, _, rows = args.size.partition("x")
    taken = measure(max(1, args.rounds), (int(columns), int(rows)))
    medians = {name: statistics.median(seconds) for name, seconds in taken.items()}
    ratio = medians["console"] / medians["bare"]
    if args.json:
        found = {f"{name}_s": {"median": medians[name], "all": seconds} for name, seconds in taken.items()}
        print(json.dumps({**found, "size": args.size, "ratio": ratio, "limit_s": LIMIT_S}))
    else:
        print(f"first frame at {args.size}, {len(taken['console'])} starts each, seconds")
        print(f"{'':<18}{'median':>8}{'least':>8}{'most':>8}")
        for name, label in (("bare", "bare Textual app"), ("console", "eagledeck")):
            print(f"{label:<18}{medians[name]:>8.3f}{min(taken[name]):>8.3f}{max(taken[name]):>8.3f}")
        print(f"{'ratio':<18}{ratio:>8.2f}")
    return 0 if medians["console"] <= LIMIT_S else 1


if __name__ == "__main__":
    sys.exit(main())
