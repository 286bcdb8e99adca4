"""From the demo's folder to a run on its host: which run it is, its configuration, its prompts, and its making.

Uses the wire for everything that lands on the host.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from console.command.refusal import Refusal
from console.command.session import require_live
from console.config import Config, RunConfig, load_config
from console.demo.prompts import write_prompts
from console.demo.server import free_port
from console.demo.settings import RECIPES, Choice, Place, config_text
from remote.errors import RemoteError

if TYPE_CHECKING:
    from remote.link import Link

NEEDED = ("torch", "transformers", "safetensors", "openai")


@dataclass(frozen=True)
class Demo:
    """One demo: its place, what was chosen, and the checked configuration that says so."""

    place: Place
    choice: Choice
    config: Config

    @property
    def run(self) -> RunConfig:
        return self.config.runs[self.choice.run]


def check_installed() -> None:
    """Raises Refusal when the pipeline, which this machine runs as the host, isn't installed."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise Refusal(
            f"The demo runs the pipeline on this machine, and {', '.join(missing)} is missing here.",
            "Install it: `pip install '.[pipeline]'` in a clone of Eagledeck",
        )


def set_up(place: Place, verifier: str, samples: int | None, fresh: bool) -> Demo:
    """The demo of a folder: the run it had, or the first or next one. Writes its configuration.

    Another number of samples than the run was made with makes the next one.
    """
    place.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    place.volume.mkdir(exist_ok=True)
    memory = _read(place)
    recipe = RECIPES[verifier]
    known = memory.get("runs")
    runs: dict[str, Any] = known if isinstance(known, dict) else {}
    run = str(runs.get(verifier) or recipe.run)
    made = _samples(memory).get(run, recipe.samples)
    if verifier in runs and (fresh or samples not in (None, made)):
        run, made = _next_name(run), recipe.samples
    port = memory.get("ssh_port")
    choice = Choice(
        recipe=recipe,
        run=run,
        samples=samples or made,
        verifier=str(_verifier_folder(verifier)),
        python=sys.executable,
        user=_user(),
        ssh_port=free_port(port if isinstance(port, int) else 0),
    )
    return _remembered(place, verifier, choice, memory)


def another(demo: Demo) -> Demo:
    """The same demo with a new run."""
    verifier = next(name for name, recipe in RECIPES.items() if recipe is demo.choice.recipe)
    choice = replace(demo.choice, run=_next_name(demo.choice.run))
    return _remembered(demo.place, verifier, choice, _read(demo.place))


def _remembered(place: Place, verifier: str, choice: Choice, memory: dict[str, Any]) -> Demo:
    runs = memory.get("runs")
    memory = {
        "runs": {**(runs if isinstance(runs, dict) else {}), verifier: choice.run},
        "samples": {**_samples(memory), choice.run: choice.samples},
        "ssh_port": choice.ssh_port,
    }
    _replace(place.memory, json.dumps(memory, indent=2))
    _replace(place.config, config_text(place, choice))
    return Demo(place, choice, load_config(place.config))


def _samples(memory: dict[str, Any]) -> dict[str, int]:
    """What each run of a demo was made with."""
    found = memory.get("samples")
    return {name: count for name, count in found.items() if isinstance(count, int)} if isinstance(found, dict) else {}


async def make_run(link: Link, demo: Demo) -> bool:
    """Puts the prompts up and creates the run, unless it is there. True when it was made. Raises RemoteError."""
    from remote.transfer import put

    await require_live(link)
    rows = await link.request("runs")
    if any(row.get("name") == demo.choice.run for row in rows):
        return False
    with tempfile.TemporaryDirectory(prefix="eagledeck-prompts-") as folder:
        for local in write_prompts(Path(folder), demo.choice):
            await put(link, local, f"files/{local.name}")
    try:
        await link.request("create", name=demo.choice.run, plan=demo.run.plan.to_json())
    except RemoteError:
        rows = await link.request("runs")
        if not any(row.get("name") == demo.choice.run for row in rows):  # made meanwhile by another console: fine
            raise
    return True


async def is_finished(link: Link, demo: Demo) -> bool:
    """Whether every stage of the demo's run is DONE."""
    rows = await link.request("runs")
    return any(row.get("name") == demo.choice.run and row.get("state") == "DONE" for row in rows)


def _verifier_folder(verifier: str) -> Path:
    if verifier == "bundled":
        from pipeline.verifier import bundled_path

        return bundled_path()
    from pipeline.verifier.smollm2 import smollm2_path

    return smollm2_path()


def _user() -> str:
    import getpass

    return getpass.getuser()


def _next_name(run: str) -> str:
    match = re.fullmatch(r"(.*?)-(\d+)", run)
    return f"{match[1]}-{int(match[2]) + 1}" if match else f"{run}-2"


def _read(place: Place) -> dict[str, Any]:
    try:
        memory = json.loads(place.memory.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return memory if isinstance(memory, dict) else {}


def _replace(path: Path, content: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(content, "utf-8")
    os.replace(temporary, path)
