"""How an attempt ended, from what the stage wrote, how its main process ended and what was asked for. Pure.

Imports the standard library only. The result is what goes into exit.json.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Ending:
    """What is known when no member is left. ``code`` and ``signal`` are None when the main process was no child."""

    outcome: dict[str, Any] | None = None
    code: int | None = None
    signal: int | None = None
    asked: str = ""
    """"", "stop" or "kill": what a person wanted."""
    rung: str = ""
    """The highest rung of the ladder used while the main process lived."""
    grace_s: float = 0.0
    complete: bool = False
    """Whether this attempt has written the output's report: then the work is whole, whatever was asked or came next."""
    adopted: bool = False
    last_line: str = ""
    memory_kills: int = 0


def verdict(end: Ending) -> dict[str, Any]:
    """{"reason": done|stopped|failed|killed|lost, "code", "signal", "resumable", "message", "remedy"}."""
    result = (end.outcome or {}).get("result")
    if result == "done" or end.complete:
        return _exit(end, "done", False)
    if result in ("stopped", "failed"):
        # A failure while a kill was running is the kill's doing.
        reason = "killed" if result == "failed" and end.asked == "kill" else str(result)
        return _exit(
            end,
            reason,
            bool((end.outcome or {}).get("resumable", True)),
            str((end.outcome or {}).get("message") or ""),
            str((end.outcome or {}).get("remedy") or ""),
        )
    if end.asked == "kill":
        return _exit(end, "killed", True, "killed on request", "resume continues from what was saved last")
    if end.asked == "stop" and end.rung == "killed":
        return _exit(
            end,
            "killed",
            True,
            f"did not stop within {end.grace_s:.0f} s and was killed",
            "resume continues from what was saved last; a longer grace_s leaves time to save",
        )
    if end.asked == "stop":
        return _exit(end, "stopped", True, "stopped on request", "")
    if end.adopted and end.code is None and end.signal is None:
        return _exit(end, "lost", True, "ended while nothing watched it", "resume continues from what was saved last")
    return _failed(end)


def _failed(end: Ending) -> dict[str, Any]:
    if end.signal is not None:
        name = signal_name(end.signal)
        if end.signal == signal.SIGKILL and end.memory_kills:
            why = f"killed by the kernel ({name}): the container's memory limit was reached"
            return _exit(end, "failed", True, why, "lower batch_tokens or give the container more memory, then resume")
        if end.signal == signal.SIGKILL:
            remedy = "often the host ran out of memory: look at its memory curve, then resume"
            return _exit(end, "failed", True, f"killed from outside with {name}", remedy)
        return _exit(end, "failed", True, f"ended by {name}" + _said(end), "look into its log, then resume")
    if end.code == 127 and not end.last_line:
        return _exit(end, "failed", True, "the program could not be started", "look into its log")
    if end.code == 0:
        why = "ended without saying how (no outcome) and without a report"
        return _exit(end, "failed", True, why + _said(end), "look into its log, then resume")
    return _exit(end, "failed", True, f"ended with status {end.code}" + _said(end), "look into its log, then resume")


def _said(end: Ending) -> str:
    return f": {end.last_line}" if end.last_line else ""


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _exit(end: Ending, reason: str, resumable: bool, message: str = "", remedy: str = "") -> dict[str, Any]:
    return {
        "reason": reason,
        "code": end.code,
        "signal": end.signal,
        "resumable": resumable,
        "message": message,
        "remedy": remedy,
    }
