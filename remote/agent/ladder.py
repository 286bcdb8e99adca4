"""The stop ladder: which signal goes to whom, and when. Pure; the supervisor sends what it says.

Stop: the stage is asked through its control file; a single process that doesn't poll gets SIGINT; after the grace every
member gets SIGTERM; what is left gets SIGKILL until nothing is. Kill starts at the last rung. The main process goes
first, so that an elastic agent doesn't start its workers anew. Imports the standard library only.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from remote.agent.members import Identity

Order = tuple[Identity, int]

SAVE_TIMES, SAVE_LEAST_S = 2.0, 30.0
FIRST_SAVE_S = 1800.0
"""Nobody knows how long a first checkpoint takes: while it is being written, a stop waits this long at most."""
MORE_S = 30.0


@dataclass(frozen=True)
class StopPolicy:
    """Seconds between the rungs. ``interrupt``: the main process gets SIGINT ``interrupt_after_s`` after the request.

    torchrun answers SIGINT by killing its workers 30 s later, in the middle of a long save: so it gets none.
    """

    grace_s: float = 60.0
    interrupt: bool = True
    interrupt_after_s: float = 3.0
    term_s: float = 10.0
    leftover_s: float = 10.0
    """What the main process left behind may take this long to end by itself."""


def saving_grace(progress: Mapping[str, Any], asked: float, now: float) -> float:
    """Seconds of grace that progress.json asks for: twice the last checkpoint's, at least 30; 0: none.

    The first checkpoint has MORE_S from now on, again and again while it is being written. `asked` and `now` are on
    the monotonic clock, which the host's processes share: the other one may jump in the middle of a save.
    """
    took, since = progress.get("save_s"), progress.get("saving_mono")
    if isinstance(took, (int, float)):
        return min(FIRST_SAVE_S, max(SAVE_LEAST_S, SAVE_TIMES * took))
    if isinstance(since, (int, float)) and now - since < FIRST_SAVE_S:
        return max(0.0, now - asked) + MORE_S
    return 0.0


@dataclass
class Ladder:
    policy: StopPolicy
    asked_at: float | None = None
    ended_at: float | None = None
    term_at: float | None = None
    kill_at: float | None = None
    grace_s: float = 0.0
    """The policy's, or more: see `allow`."""
    rung: str = ""
    """The highest rung used: asked, interrupted, terminated, killed; leftovers of an ended main process don't count."""
    _sent: set[tuple[Identity, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.grace_s = max(self.grace_s, self.policy.grace_s)

    def ask(self, now: float) -> None:
        """A stop was requested. Asking again changes nothing."""
        if self.asked_at is None:
            self.asked_at = now
            self.rung = self.rung or "asked"
            self._term_by(now + self.grace_s)

    def allow(self, grace_s: float) -> bool:
        """Gives a stop this long, when that is longer than it had and SIGTERM hasn't gone out. Whether it changed."""
        late = self.rung in ("terminated", "killed") or self.kill_at is not None or self.ended_at is not None
        if late or grace_s <= self.grace_s:
            return False
        self.grace_s = grace_s
        if self.asked_at is not None:
            self.term_at = self.asked_at + grace_s
        return True

    def kill(self, now: float) -> None:
        self.kill_at = now if self.kill_at is None else min(self.kill_at, now)

    def main_ended(self, now: float) -> None:
        if self.ended_at is None:
            self.ended_at = now
            self._term_by(now + self.policy.leftover_s)

    def _term_by(self, when: float) -> None:
        self.term_at = when if self.term_at is None else min(self.term_at, when)

    def orders(self, now: float, main: Identity | None, members: Iterable[Identity]) -> list[Order]:
        """Signals due now. ``main`` is None once it has ended; ``members`` are the living ones, the main included."""
        others = [member for member in members if member != main]
        everyone = [main, *others] if main else others
        if self.kill_at is not None and now >= self.kill_at:
            self._climb("killed", main)
            return [(member, signal.SIGKILL) for member in everyone]
        orders: list[Order] = []
        if self.term_at is not None and now >= self.term_at:
            self._climb("terminated", main)
            self.kill_at = self.term_at + self.policy.term_s
            for member in everyone:
                orders += self._once(member, signal.SIGTERM) + self._once(member, signal.SIGCONT)
        elif main and self._interrupt_due(now):
            self._climb("interrupted", main)
            orders += self._once(main, signal.SIGINT)
        return orders

    def _interrupt_due(self, now: float) -> bool:
        asked, policy = self.asked_at, self.policy
        return asked is not None and policy.interrupt and now >= asked + policy.interrupt_after_s

    def _climb(self, rung: str, main: Identity | None) -> None:
        if main:
            self.rung = rung

    def _once(self, member: Identity, number: int) -> list[Order]:
        if (member, number) in self._sent:
            return []
        self._sent.add((member, number))
        return [(member, number)]

    def wait_s(self, now: float, idle: float) -> float:
        """How long the supervisor may sleep: ``idle`` while nothing is due, less near a rung, 0.1 s on the last two."""
        if self.kill_at is not None or (self.term_at is not None and now >= self.term_at):
            return 0.1
        due = [at for at in (self.term_at,) if at is not None]
        if self.asked_at is not None and self.policy.interrupt and self.rung == "asked":
            due.append(self.asked_at + self.policy.interrupt_after_s)
        return max(0.0, min([idle, *(at - now for at in due)]))
