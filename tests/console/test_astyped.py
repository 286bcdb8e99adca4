"""Commands that are printed work as they stand, whatever was named on the command line."""

from __future__ import annotations

import argparse

import pytest

from console.command.astyped import as_typed


@pytest.mark.parametrize(
    ("config", "run", "text", "becomes"),
    [
        (None, "r1", "`eagledeck stop r1` ends it", "`eagledeck stop r1` ends it"),
        ("a.toml", "r1", "`eagledeck stop r1` ends it", "`eagledeck --config a.toml stop r1` ends it"),
        ("a b.toml", None, "`eagledeck demo`", "`eagledeck --config 'a b.toml' demo`"),
        (None, "box:r1", "`eagledeck stop r1 train` ends it", "`eagledeck stop box:r1 train` ends it"),
        (None, "box:train", "`eagledeck resume train train`", "`eagledeck resume box:train train`"),
        (None, "box:r1", "`eagledeck stop r2`, `eagledeck stop r10`", "`eagledeck stop r2`, `eagledeck stop r10`"),
        (None, "box:r1", "`eagledeck service stop r1 vllm --yes`", "`eagledeck service stop box:r1 vllm --yes`"),
        ("a.toml", "box:r1", "`eagledeck service r1`", "`eagledeck --config a.toml service box:r1`"),
        ("a.toml", "box:r1", "`eagledeck open box:r1`", "`eagledeck --config a.toml open box:r1`"),
        ("a.toml", None, "`eagledeck --config b.toml status`", "`eagledeck --config b.toml status`"),
        ("a.toml", None, "`ssh eagledeck true`, `pip install .`", "`ssh eagledeck true`, `pip install .`"),
    ],
)
def test_the_commands_of_a_text(config: str | None, run: str | None, text: str, becomes: str) -> None:
    assert as_typed(text, argparse.Namespace(config=config, run=run)) == becomes
