"""The volume: how full it is, how fast it fills and when that ends.

Imports pipeline.volume. It is asked in a thread of its own, because a network mount can hang for hours; then the last
answer stays, with its age.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from pipeline.volume import Space, Volume, space

DEADLINE_S = 3.0
SAMPLE_S = 10.0
WINDOW_S = 600.0
LEAST_SAMPLES = 6
JUMP_BYTES = 1 << 30


class FillRate:
    """Theil–Sen slope of the used bytes over the last ten minutes: a checkpoint's sawtooth doesn't bend it."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def add(self, now: float, used: int) -> None:
        """One sample every SAMPLE_S is kept. A large drop (something was deleted) starts the window anew."""
        if self._points and now - self._points[-1][0] < SAMPLE_S * 0.9:
            return
        if self._points and self._points[-1][1] - used > max(JUMP_BYTES, 5 * self._spread()):
            self._points.clear()
        self._points.append((now, used))
        while self._points and now - self._points[0][0] > WINDOW_S:
            self._points.popleft()

    def _spread(self) -> float:
        steps = [b[1] - a[1] for a, b in zip(self._points, list(self._points)[1:])]
        if not steps:
            return 0.0
        middle = _median(steps)
        return _median(abs(step - middle) for step in steps)

    def bytes_per_s(self) -> float | None:
        """None until six samples are there."""
        points = list(self._points)
        if len(points) < LEAST_SAMPLES:
            return None
        return _median((b[1] - a[1]) / (b[0] - a[0]) for i, a in enumerate(points) for b in points[i + 1 :])


def _median(values: Iterable[float]) -> float:
    """The standard library's costs every agent and recorder 0.8 MB: it brings random and OpenSSL's hashes."""
    found = sorted(values)
    return (found[(len(found) - 1) // 2] + found[len(found) // 2]) / 2


class DiskReader:
    """``read()`` gives the volume's section of a push, within DEADLINE_S: bytes, bytes/s, seconds; None is unknown."""

    def __init__(self, volume: Volume) -> None:
        self.volume = volume
        self.rate = FillRate()
        self._asking: threading.Thread | None = None
        self._answer: Space | None = None
        self._answered = 0.0
        self._error = ""
        self._rate: float | None = None
        self._rate_at = -SAMPLE_S

    def read(self) -> dict[str, Any]:
        if self._asking is None or not self._asking.is_alive():
            self._asking = threading.Thread(target=self._ask, daemon=True)
            self._asking.start()
            self._asking.join(DEADLINE_S)
        now = time.monotonic()
        if self._asking.is_alive():
            error = (
                f"the volume hasn't answered for {now - self._answered:.0f} s" if self._answered else "no answer yet"
            )
        else:
            error = self._error
        seen, volume = self._answer, self.volume
        if seen is None:
            unknown = dict.fromkeys(("total", "used", "free", "inodes_free", "fill_rate_bps", "eta_s"))
            return {"path": str(volume.path), "capacity": volume.capacity or None, **unknown, "error": error}
        if now - self._rate_at >= SAMPLE_S:
            self._rate, self._rate_at = self.rate.bytes_per_s(), now
        left = max(0, seen.free - volume.reserve)
        return {
            "path": str(volume.path),
            "total": seen.total,
            "used": seen.used,
            "free": seen.free,
            "capacity": seen.capacity,
            "reserve": volume.reserve,
            "inodes_free": seen.inodes_free,
            "fill_rate_bps": None if self._rate is None else round(self._rate),
            "eta_s": round(left / self._rate) if self._rate and self._rate > 0 else None,
            "error": "the volume is read-only" if seen.read_only else error,
        }

    def seed(self, used: list[tuple[float, int]]) -> None:
        """Earlier samples of the same volume, (seconds ago, used bytes), oldest first: the rate is there at once."""
        now = time.monotonic()
        for ago, count in used:
            self.rate.add(now - ago, count)

    def _ask(self) -> None:
        try:
            seen = space(self.volume)
        except OSError as error:
            self._error = f"{self.volume.path}: {error.strerror}"
            return
        self._answer, self._answered, self._error = seen, time.monotonic(), ""
        if seen.used is not None:
            self.rate.add(time.monotonic(), seen.used)
