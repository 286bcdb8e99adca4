"""Makes text that came from a host safe to put on a terminal. Imports the standard library only.

A remote log line may hold terminal commands (write the clipboard, set the title, ask for the cursor) or characters
that reorder or hide what is read. They are taken out here, at the boundary, once.
"""

from __future__ import annotations

import re
from typing import Any

LINE_CAP = 4096
"""Characters of one log line."""
KEY_CAP = 256

_ESCAPES = re.compile(
    "\x1b(?:"
    r"\[[0-?]*[ -/]*[@-~]"  # CSI
    "|[\\]PX^_].*?(?:\x07|\x1b\\\\|\x9c|$)"  # OSC, DCS, SOS, PM, APC, also unterminated
    "|[ -/]*[0-~])"
    "|[\x90\x98\x9d-\x9f].*?(?:\x9c|\x07|$)|\x9b[0-?]*[ -/]*[@-~]",
    re.DOTALL,
)
# Unicode's Cf, Zl and Zp less the few that are seen, and lone surrogates
_INVISIBLE = (
    "\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f"
)
_CONTROLS = re.compile(f"[\x00-\x08\x0a-\x1f\x7f-\x9f{_INVISIBLE}]")
_CONTROLS_BUT_NEWLINE = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_INVISIBLE}]")


def clean(data: bytes, cap: int = LINE_CAP) -> str:
    """One log line as shown: UTF-8 (bad bytes become U+FFFD), escapes gone, tabs expanded, at most ``cap`` characters.

    Of a line that was rewritten with carriage returns (a progress bar), the last version is kept.
    """
    text = data[: cap * 4].decode("utf-8", "replace").rstrip("\r\n").rsplit("\r", 1)[-1]
    return _CONTROLS.sub("\ufffd", _ESCAPES.sub("", text)).expandtabs(8)[:cap]


def clean_text(text: str) -> str:
    """A text of several lines: as ``clean``, but newlines and tabs stay and nothing is cut."""
    if text.isascii() and text.isprintable():
        return text
    return _CONTROLS_BUT_NEWLINE.sub("\ufffd", _ESCAPES.sub("", text.replace("\r\n", "\n")))


def scrub(value: Any) -> Any:
    """A JSON value with every string in it, keys included, passed through ``clean_text``."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, list):
        return [scrub(item) for item in value]
    if isinstance(value, dict):
        return {clean_text(key)[:KEY_CAP]: scrub(item) for key, item in value.items()}
    return value
