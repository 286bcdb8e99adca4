"""What doctor says of one thing. Imports nothing."""

from __future__ import annotations

from typing import Any


def finding(name: str, ok: bool | None, value: Any, message: str, remedy: str = "") -> dict[str, Any]:
    """``ok``: True, False (something must be done), or None (worth knowing)."""
    return {"name": name, "ok": ok, "value": value, "message": message, "remedy": remedy}
