"""Whether the terminal is still there. A console whose terminal has gone would read its end for ever, at half a core.

A closed terminal sends SIGHUP only to the session that it controls; a console that runs in another one, or under a
wrapper that ignores the signal, has to look for itself. Standard library only.
"""

from __future__ import annotations

import os
import select
import sys

EVERY_S = 2.0
"""Seconds between two looks."""


def standard_terminal() -> int | None:
    """The descriptor of standard input if that is a terminal."""
    try:
        descriptor = sys.__stdin__.fileno() if sys.__stdin__ is not None else -1
    except (OSError, ValueError):
        return None
    return descriptor if descriptor >= 0 and os.isatty(descriptor) else None


def gone(descriptor: int) -> bool:
    """Whether the other end of a terminal has been closed."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(events & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, events in poll.poll(0))
