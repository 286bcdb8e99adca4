"""A console whose terminal disappears ends by itself."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

from console.terminal import gone

ROOT = Path(__file__).resolve().parents[2]


def test_an_open_terminal_is_there_and_a_closed_one_gone() -> None:
    primary, secondary = os.openpty()
    try:
        assert not gone(secondary)
        os.close(primary)
        assert gone(secondary)
    finally:
        os.close(secondary)


def test_the_console_ends_when_its_terminal_is_closed(tmp_path: Path) -> None:
    """The console is not in the terminal's session, so that no signal tells it."""
    config = tmp_path / "eagledeck.toml"
    host = '[hosts.away]\nssh = "nobody@127.0.0.1:1"\nroot = "/nowhere"\n'
    config.write_text(host + '[runs.r1]\nhost = "away"\nverifier = "/v"\n')
    primary, secondary = os.openpty()
    fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    env = {**os.environ, "TERM": "xterm-256color", "XDG_STATE_HOME": str(tmp_path), "EAGLEDECK_CONFIG": str(config)}
    command = [str(Path(sys.executable).with_name("eagledeck")), "r1"]
    console = subprocess.Popen(
        command, cwd=ROOT, env=env, stdin=secondary, stdout=secondary, stderr=secondary, start_new_session=True
    )
    os.close(secondary)
    try:
        shown = b""
        until = time.monotonic() + 60
        while b"r1" not in shown and time.monotonic() < until:
            if select.select([primary], [], [], 1)[0]:
                shown += os.read(primary, 65536)
        assert b"r1" in shown
        os.close(primary)
        assert console.wait(60) is not None
    finally:
        if console.poll() is None:
            console.kill()
            console.wait()
