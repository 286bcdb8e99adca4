"""What holds for all tests: signals as in a terminal, wherever the suite was started, and no skip that was promised.

`make test-real` sets EAGLEDECK_PROMISED=1: a test that can't run there fails.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from typing import Any

import pytest

# Ignored signals are inherited by every process that a test starts: nohup ignores SIGHUP, a shell's `&` ignores SIGINT.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("EAGLEDECK_PROMISED") == "1":
        where, line, reason = report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{where}:{line}: this was promised to run, and was not. {reason}"
    return report
