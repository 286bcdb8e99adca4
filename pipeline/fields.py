"""One value of a plan: how a dataclass field declares it, and how JSON or a typed word becomes it.

Standard library only, Python >= 3.9 (the host reads plans too). Imports nothing of ours.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

DATA, TARGET, HOW = "data", "target", "how"
"""Role of a parameter: DATA shapes the output (part of its fingerprint, fixed while it is made), TARGET says how much
(part of the fingerprint, may change when the output is continued), HOW changes nothing in the result."""


class ConfigError(Exception):
    """A plan or a value that can't be used. `key` names it as the user writes it, such as `generate.max_samples`."""

    def __init__(self, message: str, remedy: str = "", key: str = "") -> None:
        super().__init__(message, remedy, key)
        self.message, self.remedy, self.key = message, remedy, key

    def __str__(self) -> str:
        return f"{self.message}. {self.remedy}".rstrip(". ") + "."


def spec(
    default: Any,
    kind: str,
    doc: str,
    *,
    role: str = DATA,
    low: float | None = None,
    high: float | None = None,
    choices: Sequence[str] = (),
) -> Any:
    """A dataclass field: its kind, bounds (inclusive) and meaning.

    Kinds: int, float, size, str, choice, bool, flag (bool or null), words, gpus, env.
    """
    metadata = {"kind": kind, "doc": doc, "role": role, "low": low, "high": high, "choices": tuple(choices)}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=dict, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


_SIZE = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*(?:([kmgtp])(i?)b?|b)?\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes of `3TB` (decimal), `100GiB` (binary), `2_000_000_000` or `1.5 gb`. Raises ValueError."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no size")
    number, letter, binary = match.groups()
    power = " kmgtp".index(letter.lower()) if letter else 0
    value = float(number.replace("_", "")) if "." in number else int(number.replace("_", ""))
    return int(value * (1024 if binary else 1000) ** power)


def size_text(count: float) -> str:
    """`2.29 TB`, `512 bytes`: decimal units, for sentences."""
    value, units = float(count), ["bytes", "kB", "MB", "GB", "TB", "PB"]
    while abs(value) >= 999.5 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.0f} {units[0]}" if units[0] == "bytes" else f"{value:.3g} {units[0]}"


def suggest(word: str, allowed: Iterable[str]) -> str:
    """A remedy for a word that isn't among `allowed`: the nearest one, and all of them."""
    names = list(allowed)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"{hint}Allowed: {', '.join(names)}"


def show(value: object) -> str:
    """A value as it stood in the plan, short enough for a sentence."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


def expected(meta: Mapping[str, Any]) -> str:
    """What a field takes, in words."""
    low, high = meta["low"], meta["high"]
    bounds = ""
    if low is not None and high is not None:
        bounds = f" from {low:g} to {high:g}"
    elif low is not None:
        bounds = f" of at least {low:g}"
    words = {
        "int": "a whole number" + bounds,
        "float": "a number" + bounds,
        "size": "bytes, such as 2000000000, 3TB or 100GiB",
        "str": "text",
        "choice": "one of " + ", ".join(meta["choices"]),
        "bool": "true or false",
        "flag": "true, false or null",
        "words": "a list of words",
        "gpus": 'a list of GPU indexes such as [0, 1], or "all"',
        "env": "a table of NAME = text",
    }
    return words[str(meta["kind"])]


def read(meta: Mapping[str, Any], value: object, key: str) -> Any:
    """The typed value of a field from JSON. Raises ConfigError naming key, value and what is allowed."""
    result = _READERS[meta["kind"]](value)
    if result is not _WRONG and _within(meta, result):
        return result
    raise ConfigError(f"{key} = {show(value)} is not allowed", f"It takes {expected(meta)}", key)


def read_text(meta: Mapping[str, Any], text: str, key: str) -> Any:
    """The typed value of a field from one typed word (`10000`, `3TB`, `0,1`, `yes`). Raises ConfigError."""
    kind, value = meta["kind"], text.strip()
    parsed: object = text
    if kind in ("int", "float"):
        try:
            parsed = int(value) if kind == "int" else float(value)
        except ValueError:
            parsed = value
    elif kind in ("flag", "bool"):
        parsed = {"true": True, "yes": True, "false": False, "no": False, "": None, "null": None, "auto": None}.get(
            value.lower(), value
        )
    elif kind in ("words", "gpus") and value != "all":
        parsed = _json_list(value)
        if parsed is None:
            parts = [part for part in re.split(r"[\s,]+", value.strip("[]")) if part]
            parsed = [int(part) if kind == "gpus" and part.isdigit() else part.strip("\"'") for part in parts]
    elif kind in ("size", "choice", "gpus"):
        parsed = value
    try:
        return read(meta, parsed, key)
    except ConfigError:
        raise ConfigError(f"{key} = {show(text)} is not allowed", f"It takes {expected(meta)}", key) from None


def _json_list(text: str) -> object:
    """What is written as a JSON list, such as the words of a command; None for anything else."""
    try:
        found: object = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, list) else None


class _Wrong:
    pass


_WRONG = _Wrong()


def _within(meta: Mapping[str, Any], value: Any) -> bool:
    if meta["choices"] and value not in meta["choices"]:
        return False
    if meta["kind"] not in ("int", "float", "size"):
        return True
    low, high = meta["low"], meta["high"]
    return (low is None or value >= low) and (high is None or value <= high)


def _int(value: object) -> object:
    return value if isinstance(value, int) and not isinstance(value, bool) else _WRONG


def _float(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return _WRONG
    return float(value) if math.isfinite(value) else _WRONG


def _size(value: object) -> object:
    if isinstance(value, str):
        try:
            return parse_size(value)
        except ValueError:
            return _WRONG
    whole = _int(value)
    return whole if isinstance(whole, int) and whole >= 0 else _WRONG


def _str(value: object) -> object:
    return value if isinstance(value, str) and "\0" not in value else _WRONG


def _bool(value: object) -> object:
    return value if isinstance(value, bool) else _WRONG


def _flag(value: object) -> object:
    return value if value is None or isinstance(value, bool) else _WRONG


def _words(value: object) -> object:
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) and item for item in value):
        return tuple(value)
    return _WRONG


def _gpus(value: object) -> object:
    if value == "all":
        return value
    if not isinstance(value, (list, tuple)):
        return _WRONG
    whole = all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in value)
    return tuple(value) if whole and len(set(value)) == len(value) else _WRONG


def _env(value: object) -> object:
    if not isinstance(value, Mapping):
        return _WRONG
    good = all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(k)) and isinstance(v, str) for k, v in value.items())
    return dict(value) if good else _WRONG


_READERS: Mapping[str, Any] = {
    "int": _int,
    "float": _float,
    "size": _size,
    "str": _str,
    "choice": _str,
    "bool": _bool,
    "flag": _flag,
    "words": _words,
    "gpus": _gpus,
    "env": _env,
}
