"""The words of a service's command that belong to drafting: deploy starts the service without them and with them.

Between the words `{drafted}` and `{/drafted}` stands what only an engine with a drafter is given. A single word that
holds {drafter}, {k} or {k+1} needs no such group. Standard library only (Python >= 3.9); imports nothing of ours.
"""

from __future__ import annotations

from collections.abc import Sequence

OPEN, CLOSE = "{drafted}", "{/drafted}"
DRAFTING = ("{drafter}", "{k}", "{k+1}")
"""Filled in only where there is a drafter: its folder, the tokens drafted per verification, and one more (SGLang
counts the verifier's own token: --speculative-num-draft-tokens)."""


def words(command: Sequence[str], drafted: bool) -> list[str]:
    """argv with its placeholders, as an engine with a drafter or one without is given it.

    Without one, a word for drafting outside a group goes too, and the option before it where the word is its value.
    """
    kept: list[str] = []
    inside = False
    for word in command:
        if word in (OPEN, CLOSE):
            inside = word == OPEN
        elif drafted or (not inside and not drafting(word)):
            kept.append(word)
        elif not inside and not word.startswith("-") and kept and kept[-1].startswith("-") and "=" not in kept[-1]:
            kept.pop()
    return kept


def drafting(word: str) -> bool:
    return any(place in word for place in DRAFTING)


def flaw(command: Sequence[str]) -> str:
    """What is wrong with the groups of a command; "" where nothing is."""
    inside = False
    for word in command:
        if word in (OPEN, CLOSE) and (word == OPEN) == inside:
            return f"{word} stands where a group is {'open already' if inside else 'not open'}"
        inside = (inside or word == OPEN) and word != CLOSE
    return f"{OPEN} has no {CLOSE}" if inside else ""


def left_over(command: Sequence[str]) -> list[str]:
    """Options of speculation, in SGLang's and vLLM's names, that an engine without a drafter would still be given."""
    return [word for word in words(command, drafted=False) if word.startswith("--speculative")]
