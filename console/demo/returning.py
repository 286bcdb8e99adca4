"""How a person comes back to a demo: the commands, as they work in the shell that this one was given in."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from console.command.files import DRAFTER
from console.demo.prepare import Demo
from console.demo.settings import RECIPES, default_place


def again(demo: Demo) -> str:
    """The command that opens the demo's console: `eagledeck demo --keep DIR`."""
    verifier = next(name for name, recipe in RECIPES.items() if recipe is demo.choice.recipe)
    words = [_program(), "demo"]
    if verifier != next(iter(RECIPES)):
        words += ["--verifier", verifier]
    if demo.place != default_place():
        words += ["--keep", _short(demo.place.folder)]
    return shlex.join(words)


def asked(demo: Demo) -> str:
    """A command about the demo's run, with the configuration that any other command takes too."""
    return shlex.join([_program(), "--config", _short(demo.place.config), "status", demo.choice.run])


def ways_back(demo: Demo) -> list[str]:
    """What is said when a demo is left that is still there."""
    return [
        f"`{again(demo)}` comes back to it; with --fresh it makes a new run.",
        f"The command line works with it too: `{asked(demo)}`",
    ]


def what_is_kept(demo: Demo) -> list[str]:
    """Where the things of a finished demo are, and how to come back to them."""
    run = demo.place.root / demo.choice.run
    return [f"The run is in {run}, its drafter in {run / DRAFTER}.", *ways_back(demo)]


def _program() -> str:
    """`eagledeck`, or its path where the shell doesn't find this one by its name."""
    own, found = Path(sys.executable).with_name("eagledeck"), shutil.which("eagledeck")
    if not own.is_file() or (found and own.samefile(found)):
        return "eagledeck"
    return _short(own)


def _short(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
