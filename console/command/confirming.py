"""What is typed before something is lost."""

from __future__ import annotations

import sys

from console.command.refusal import Refusal


def confirm(what: str, loss: str, milder: str, done: str) -> None:
    """Has `what` typed on a terminal. Raises Refusal when it isn't, or where nobody can type."""
    if not sys.stdin.isatty():
        raise Refusal(loss, f"Repeat with --yes; {milder}")
    print(f"{loss} Type {what} to go on: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != what:
        raise Refusal(f"Nothing was {done}.")
