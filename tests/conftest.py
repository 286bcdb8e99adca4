"""What `make test-real` promises is kept: with EAGLEDECK_PROMISED=1 a test that can't run here fails."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("EAGLEDECK_PROMISED") == "1":
        where, line, reason = report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{where}:{line}: this was promised to run, and was not. {reason}"
    return report
