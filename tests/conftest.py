"""What holds for all tests: signals as in a terminal, wherever the suite was started."""

from __future__ import annotations

import signal

# Ignored signals are inherited by every process that a test starts: nohup ignores SIGHUP, a shell's `&` ignores SIGINT.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
