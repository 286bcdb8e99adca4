"""Who may change a run or a service now: one change at a time of each, and none waits for another's. Standard library.

That is for the requests of one agent; against those of another one the locks on the volume stand, as they do here.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class Turns:
    def __init__(self) -> None:
        self._at_work: dict[str, str] = {}
        self._change = threading.Condition()

    @contextlib.contextmanager
    def of(self, subject: str, what: str, patience_s: float) -> Iterator[str]:
        """Waits for the turn at ``subject`` and ends it behind itself: "". Else what has it after ``patience_s``."""
        with self._change:
            self._change.wait_for(lambda: subject not in self._at_work, patience_s)
            before = self._at_work.get(subject, "")
            self._at_work.setdefault(subject, what)
        try:
            yield before
        finally:
            if not before:
                with self._change:
                    del self._at_work[subject]
                    self._change.notify_all()
