"""How fast a stage goes and when it will be there, from what it did lately. Imports nothing of ours."""

from __future__ import annotations

from collections import deque

WINDOW_S = 60.0


class Rate:
    """Units per second over the last `window_s` seconds: the present pace, also after a resume or a pause."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self.window_s = window_s
        self._seen: deque[tuple[float, float]] = deque()

    def restart(self) -> None:
        """Forget the past: another phase begins."""
        self._seen.clear()

    def add(self, now: float, done: float) -> float | None:
        """Note that `done` units were reached at `now` (monotonic seconds); returns units per second, None: unknown.

        A `done` below the last one starts the window anew.
        """
        if self._seen and done < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((now, done))
        # the newest entry at or before the window's start stays: the rate always spans the whole window
        while len(self._seen) > 2 and self._seen[1][0] <= now - self.window_s:
            self._seen.popleft()
        first_at, first_done = self._seen[0]
        return (done - first_done) / (now - first_at) if now > first_at else None


def eta_s(done: float, total: float | None, rate: float | None) -> float | None:
    """Seconds until `total`; 0 when it is reached, None when it can't be said."""
    if total is None:
        return None
    if done >= total:
        return 0.0
    return (total - done) / rate if rate else None
