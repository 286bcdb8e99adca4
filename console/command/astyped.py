"""Commands in what is printed, so that they work as they stand where this one was typed.

A host knows neither which eagledeck.toml was named on the command line nor that a run was given as HOST:RUN.
"""

from __future__ import annotations

import argparse
import re
import shlex

_COMMAND = re.compile(r"`eagledeck (service (?:list|start|stop)(?= )|[a-z]+)((?: [^`]*)?)`")


def as_typed(text: str, args: argparse.Namespace) -> str:
    """``text`` with the ``--config`` of this command line, and its HOST:RUN, in each `eagledeck …` that it quotes."""
    config = getattr(args, "config", None)
    typed = str(getattr(args, "run", None) or "")
    run = typed.partition(":")[2]
    option = f" --config {shlex.quote(str(config))}" if config else ""

    def completed(found: re.Match[str]) -> str:
        verb, rest = found.groups()
        if run and rest.split()[:1] == [run]:
            rest = f" {typed}{rest[1 + len(run) :]}"
        return f"`eagledeck{option} {verb}{rest}`"

    return _COMMAND.sub(completed, text) if option or run else text
