"""Training conversations: a task, sometimes with a system prompt, earlier turns or thinking off.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from pipeline.verifier.families import FAMILIES, Task
from pipeline.verifier.tasks import space_of

SYSTEM_SHARE, EARLIER_TURN_SHARE, WITHOUT_THINKING_SHARE = 0.15, 0.05, 0.04

_SYSTEM = (
    "You are a helpful assistant.",
    "You are Eagledeck, a small model.",
    "Think first, then answer.",
    "Answer the question of the user.",
    "Be brief and exact.",
    "You solve small tasks step by step.",
)


@dataclass(frozen=True)
class Conversation:
    """Messages up to the last user's turn, and what the model should go on with."""

    family: str
    messages: tuple[dict[str, str], ...]
    thinking: bool
    reasoning: str
    answer: str


def _training_task(random: Random) -> Task:
    while True:
        task = FAMILIES[random.choice(_NAMES)](random)
        if space_of(task.prompt) == "train":
            return task


_NAMES = list(FAMILIES)


def conversations(seed: int | str, count: int) -> Iterator[Conversation]:
    """`count` conversations of the training space; the same for the same seed."""
    random = Random(f"conversations/{seed}")
    for _ in range(count):
        messages: list[dict[str, str]] = []
        if random.random() < SYSTEM_SHARE:
            messages.append({"role": "system", "content": random.choice(_SYSTEM)})
        if random.random() < EARLIER_TURN_SHARE:
            earlier = _training_task(random)
            messages += [{"role": "user", "content": earlier.prompt}, {"role": "assistant", "content": earlier.answer}]
        task = _training_task(random)
        messages.append({"role": "user", "content": task.prompt})
        thinking = random.random() >= WITHOUT_THINKING_SHARE
        yield Conversation(task.family, tuple(messages), thinking, task.reasoning, task.answer)
