"""What the demo runs: its folder, its eagledeck.toml, and parameters that fit a laptop with two cores.

Writes the configuration as text and lets console.config check it like a person's. Imports nothing heavy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from console.config import state_folder

HOST = "container"
"""What the demo's host is called on screen; it is this machine."""
QUIET = {"GOMP_SPINCOUNT": "10000"}
"""OpenMP threads that spin for long while they wait take the core that the console and the engine need, with two cores;
ones that never spin are woken for each of a small model's operations, which costs more than the work."""


@dataclass(frozen=True)
class Recipe:
    """Parameters of a verifier's demo by stage.

    `samples` is generate.max_samples unless the user names another; `prompts` says which ones: tasks or instructions.
    """

    name: str
    run: str
    samples: int
    prompts: str
    engine_options: tuple[str, ...]
    reasoning: bool
    stages: Mapping[str, Mapping[str, object]]


RECIPES: Mapping[str, Recipe] = {
    "bundled": Recipe(
        name="bundled",
        run="demo",
        samples=720,
        prompts="tasks",
        engine_options=("--reasoning-parser", "kimi", "--threads", "1"),
        reasoning=True,
        stages={
            "generate": {"max_tokens": 256, "concurrency": 64},
            "extract": {"length": 512},
            "vocab": {"size": 2048},
            "train": {
                "epochs": 4,
                "lr": 3e-3,
                "batch_tokens": 512,
                "length": 512,
                "checkpoint_every_s": 20,
                "threads": 1,  # matrices this small only wait for each other with two
            },
            "deploy": {"samples": 64, "max_tokens": 256},
        },
    ),
    "smollm2": Recipe(
        name="SmolLM2-135M-Instruct",
        run="demo-smollm2",
        samples=800,
        prompts="instructions",
        engine_options=("--reasoning-parser", "none", "--dtype", "bfloat16"),
        reasoning=False,
        stages={
            "generate": {"max_tokens": 128, "concurrency": 64, "temperature": 0.0},
            "extract": {"length": 512, "batch_tokens": 4096},
            "vocab": {"size": 4096},
            "train": {
                "epochs": 4,
                "lr": 2e-3,
                "batch_tokens": 512,
                "ttt_decay": 0.7,
                "weight_decay": 0.5,
                "length": 512,
                "checkpoint_every_s": 60,
            },
            "deploy": {"samples": 32, "max_tokens": 128},
        },
    ),
}


@dataclass(frozen=True)
class Place:
    """Where a demo keeps its things. `folder` is one of this machine; what lies under `volume` is the host's."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "eagledeck.toml"

    @property
    def memory(self) -> Path:
        """Which run this demo is at."""
        return self.folder / "demo.json"

    @property
    def server(self) -> Path:
        return self.folder / "server"

    @property
    def volume(self) -> Path:
        return self.folder / "volume"

    @property
    def root(self) -> Path:
        return self.volume / "eagledeck"


def default_place() -> Place:
    """Where the demo is unless --keep names another folder."""
    return Place(state_folder() / "demo")


@dataclass(frozen=True)
class Choice:
    """What this demo was asked for: ports and paths are those of the host."""

    recipe: Recipe
    run: str
    samples: int
    verifier: str
    python: str
    user: str
    ssh_port: int


def config_text(place: Place, choice: Choice) -> str:
    """The demo's eagledeck.toml: any command of Eagledeck works with it, `--config` given."""
    recipe = choice.recipe
    command = ["{python}", "-m", "pipeline.engine", "--model", "{verifier}", "--host", "{host}", "--port", "{port}"]
    stages: dict[str, dict[str, object]] = {name: {**values, "env": QUIET} for name, values in recipe.stages.items()}
    files = f"{place.root}/files/{choice.run}"
    stages["generate"] |= {"max_samples": choice.samples, "prompts": f"{files}-train.jsonl"}
    stages["generate"] |= {"service": "engine"}
    stages["deploy"] |= {"prompts": f"{files}-held-out.jsonl"}
    tables: dict[str, Mapping[str, object]] = {
        f"hosts.{HOST}": {
            "ssh": f"{choice.user}@127.0.0.1:{choice.ssh_port}",
            "ssh_config": False,
            "identity": str(place.server / "id_ed25519"),
            "root": str(place.root),
            "volume": str(place.volume),
            "reserve": "200MB",
            "python": choice.python,
        },
        "services.engine": {
            "command": [*command, *recipe.engine_options],
            "port": 0,
            "ready_timeout_s": 120,
        },
        f"runs.{choice.run}": {
            "host": HOST,
            "verifier": choice.verifier,
            "verifier_name": recipe.name,
            "reasoning": recipe.reasoning,
        },
        **{f"runs.{choice.run}.{name}": values for name, values in stages.items()},
    }
    lines = ["# Written by `eagledeck demo`; the port changes each time it starts.", "version = 1", 'state = "."']
    for name, values in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    """A value as TOML; text, numbers, booleans and lists look as in JSON."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)
