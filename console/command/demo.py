"""`eagledeck demo`: the whole pipeline on this machine, in the console or, without a terminal, headless."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from console.command.refusal import Refusal
from console.command.session import run_async
from console.demo.prepare import check_installed, set_up
from console.demo.settings import Place, default_place


def demo(args: argparse.Namespace) -> int:
    check_installed()
    if args.json and not os.access(Path(args.json).expanduser().absolute().parent, os.W_OK):
        raise Refusal(f"{args.json} can't be written.", "Name a file in a folder that is there and yours.", 2)
    headless = args.headless or args.json or not (sys.stdin.isatty() and sys.stdout.isatty())
    throwaway = headless and not args.keep
    if throwaway:
        place = Place(Path(tempfile.mkdtemp(prefix="eagledeck-demo-")))
    else:
        place = Place(Path(args.keep).expanduser().resolve()) if args.keep else default_place()
    prepared = set_up(place, args.verifier, args.samples, args.fresh)
    began = time.monotonic()  # what the verifier's first download took belongs to the installation
    if headless:
        from console.demo.headless import run_headless

        json_file = Path(args.json).expanduser() if args.json else None
        try:
            return run_async(run_headless(prepared, began, throwaway, json_file))
        except asyncio.CancelledError:  # SIGTERM or SIGHUP; what was at work has been ended
            return 128 + signal.SIGTERM
    gc.set_threshold(50_000, 20, 20)  # as `open` does, for the first frame
    from console.demo.interactive import run_console

    return run_async(run_console(prepared))
