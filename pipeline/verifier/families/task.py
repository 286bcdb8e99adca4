"""A task: a prompt with its worked reasoning, its answer and the check of an answer. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class Task:
    """One small task of a family.

    `answer` ends with `key`, the part that must be right (a number, a word, a list); `reasoning` works it out.
    """

    family: str
    prompt: str
    reasoning: str
    answer: str
    key: str

    def check(self, content: str) -> bool:
        """Whether `content` (an answer without its reasoning) ends with the key and nothing after it.

        A key that follows a colon in `answer` must follow one in `content` too: a list with surplus items fails.
        """
        after_colon = self.answer.endswith((": " + self.key, ": " + self.key + "."))
        before = r"(?:^|: )" if after_colon else r"(?:^|\s)"
        return re.search(before + re.escape(self.key) + r"[.!?]?\Z", content.strip()) is not None


Family = Callable[[Random], Task]


def choose(random: Random, words: tuple[str, ...] | list[str], count: int) -> list[str]:
    """`count` different words in random order."""
    return random.sample(words, count)


def listed(items: list[str] | list[int]) -> str:
    """The items separated by a comma and a space."""
    return ", ".join(str(item) for item in items)


def plural(noun: str, count: int) -> str:
    """The noun in the form that goes with the count."""
    if count == 1:
        return noun
    return noun + ("es" if noun.endswith(("s", "x", "sh", "ch")) else "s")


def article(noun: str) -> str:
    """The noun with its indefinite article."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
