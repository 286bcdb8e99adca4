"""The `eagledeck` command: parses the arguments, runs the verb, and says every failure in one sentence.

Importing this loads argparse and nothing heavier; a verb's module is imported when the verb is used.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from console.command.parser import parse

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 1 refused or failed, 2 wrong usage, 130 interrupted."""
    args = parse(sys.argv[1:] if argv is None else argv)
    module, _, function = args.handler.partition(":")
    try:
        status: int = getattr(importlib.import_module(module), function)(args)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `eagledeck logs RUN | head`: nobody reads any more
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        from console.command.astyped import as_typed

        print(f"eagledeck: {as_typed(_sentence(error), args)}", file=sys.stderr)
        return int(getattr(error, "status", 1))


def _sentence(error: Exception) -> str:
    """What the rooms refuse carries `message` and `remedy`; anything else is a fault of ours, whose trace is kept."""
    message, remedy = getattr(error, "message", None), getattr(error, "remedy", None)
    if isinstance(message, str) and isinstance(remedy, str):
        from console.format import sentence

        return sentence(message, remedy)
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    try:
        return f"unexpected error: {said}. The details are in {_save_trace()}."
    except OSError as cause:
        return f"unexpected error: {said}. The details could not be saved: {cause}."


def _save_trace() -> Path:
    from console.config import state_folder

    folder = state_folder() / "traces"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / time.strftime("%Y%m%d-%H%M%S.txt")
    path.write_text(traceback.format_exc(), "utf-8")
    return path
