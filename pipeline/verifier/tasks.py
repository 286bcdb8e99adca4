"""Procedural tasks of the bundled verifier, and the split of their prompts. Standard library only.

A prompt belongs to the held-out space or to the training space by a hash of its text, so no prompt is in both whatever
the seeds: the verifier is trained, and drafters are trained, on the training space; scores and acceptance length are
measured on the held-out space.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from random import Random

from pipeline.verifier.families import FAMILIES, Family, Task

SPACES = ("train", "held-out")
HELD_OUT_SHARE = 16  # one prompt in so many is held out
_TRIES = 2_000


def space_of(prompt: str) -> str:
    """The space that a prompt's text belongs to: "train" or "held-out"."""
    return SPACES[hashlib.sha256(prompt.encode()).digest()[0] % HELD_OUT_SHARE == 0]


def tasks(seed: int, count: int, space: str = "train") -> Iterator[Task]:
    """`count` tasks with different prompts of one space; family by family in turn, the same for the same seed."""
    if space not in SPACES:
        raise ValueError(f"space must be one of {', '.join(SPACES)}, not {space!r}")
    random = Random(f"{space}/{seed}")
    seen: set[bytes] = set()
    names = list(FAMILIES)
    produced = 0
    while produced < count:
        random.shuffle(names)
        for name in list(names):
            task = _fresh(FAMILIES[name], random, space, seen)
            if task is None:
                names.remove(name)
                continue
            yield task
            produced += 1
            if produced == count:
                return


def _fresh(family: Family, random: Random, space: str, seen: set[bytes]) -> Task | None:
    """A task of the space whose prompt was not seen yet; None where the family has (nearly) run out of such prompts."""
    for _ in range(_TRIES):
        task = family(random)
        key = hashlib.sha256(task.prompt.encode()).digest()
        if key not in seen and space_of(task.prompt) == space:
            seen.add(key)
            return task
    return None


def prompts(seed: int, count: int, space: str = "train") -> list[dict[str, str]]:
    """Rows {"id", "prompt", "answer", "family"} of `tasks`; ids name the space, the seed and the number."""
    return [
        {"id": f"{space}-{seed}-{i:06d}", "prompt": task.prompt, "answer": task.answer, "family": task.family}
        for i, task in enumerate(tasks(seed, count, space))
    ]
