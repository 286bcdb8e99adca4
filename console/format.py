"""Numbers as people read them: bytes, counts, durations, rates, ages. Unknown is `—`.

Pure functions over numbers; standard library only.
"""

from __future__ import annotations

import math

UNKNOWN = "—"

_SI = ("B", "kB", "MB", "GB", "TB", "PB")
_IEC = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SHORT = ("", "k", "M", "B", "T")


def known(value: float | None) -> bool:
    """True for a finite number; None, NaN and the infinities are unknown."""
    return value is not None and math.isfinite(value)


def _scaled(value: float, base: float, units: tuple[str, ...], digits: int) -> str:
    size = abs(value)
    index = 0
    # The limit is where rounding to `digits` significant places would show the next unit's 1.
    while index < len(units) - 1 and size >= base - 0.5 * 10 ** (3 - digits):
        size /= base
        index += 1
    if index == 0:
        text = f"{size:.0f}"
    else:
        whole = len(str(int(size)))
        text = f"{size:.{max(0, digits - whole)}f}"
    return f"{'-' if value < 0 else ''}{text} {units[index]}".rstrip()


def si_bytes(value: float | None) -> str:
    """`2.29 TB`: decimal units, the ones disks are sold in and volumes are planned in."""
    if value is None or not known(value):
        return UNKNOWN
    return _scaled(value, 1000.0, _SI, 3)


def iec_bytes(value: float | None) -> str:
    """`2.09 TiB`: binary units, the ones `df -h` and GPU memory are reported in."""
    if value is None or not known(value):
        return UNKNOWN
    return _scaled(value, 1024.0, _IEC, 3)


def both_bytes(value: float | None) -> str:
    """`2.29 TB (2.09 TiB)`: both, because mistaking one for the other has cost a plan before."""
    if value is None or not known(value):
        return UNKNOWN
    return f"{si_bytes(value)} ({iec_bytes(value)})"


def full_count(value: float | None) -> str:
    """`21,033,536`."""
    if value is None or not known(value):
        return UNKNOWN
    return f"{round(value):,}"


def short_count(value: float | None) -> str:
    """`21.0M`; below ten thousand the number itself."""
    if value is None or not known(value):
        return UNKNOWN
    if abs(value) < 10_000:
        return f"{round(value):,}"
    return _scaled(value, 1000.0, _SHORT, 3).replace(" ", "")


def number(value: float | None, digits: int = 3) -> str:
    """A measured value with a fixed number of decimals: `1.842`."""
    if value is None or not known(value):
        return UNKNOWN
    return f"{value:.{digits}f}"


def percent(part: float | None, whole: float | None = 100.0) -> str:
    """`41%` of `whole`; never rounds an unfinished part up to 100%."""
    if part is None or whole is None or not known(part) or not known(whole) or whole <= 0:
        return UNKNOWN
    share = 100.0 * part / whole
    return f"{99 if 99.0 <= share < 100.0 else round(share)}%"


def duration(seconds: float | None) -> str:
    """`8.4s`, `3m07s`, `4h12m`, `2d03h`."""
    if seconds is None or not known(seconds):
        return UNKNOWN
    if seconds < 0:
        return "-" + duration(-seconds)
    if round(seconds, 1) < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02d}h"


def rate(per_second: float | None, unit: str) -> str:
    """`182k tokens/s`; slow work is shown a minute or an hour: `4.2 samples/min`."""
    if per_second is None or not known(per_second):
        return UNKNOWN
    if per_second == 0 or abs(per_second) >= 1:
        value, per = per_second, "s"
    elif abs(per_second) * 60 >= 1:
        value, per = per_second * 60, "min"
    else:
        value, per = per_second * 3600, "h"
    text = short_count(value) if abs(value) >= 100 else f"{value:.1f}"
    return f"{text} {unit}/{per}"


def byte_rate(per_second: float | None) -> str:
    """`+38.0 GB/h`: the hour is the scale on which a volume fills."""
    if per_second is None or not known(per_second):
        return UNKNOWN
    return f"{'+' if per_second > 0 else ''}{si_bytes(per_second * 3600)}/h"


def age(seconds: float | None) -> str:
    """`0.4s ago`."""
    if seconds is None or not known(seconds):
        return UNKNOWN
    return f"{duration(max(0.0, seconds))} ago"


def sentence(message: str, remedy: str) -> str:
    """A message and what to do about it as sentences: rooms differ in whether they bring the full stop."""
    first, then = message.strip(), remedy.strip()
    parts = [first, then[:1].upper() + then[1:]]  # the message may begin with a file's or a run's name
    return " ".join(part if part.endswith((".", "!", "?", ":")) else f"{part}." for part in parts if part)
