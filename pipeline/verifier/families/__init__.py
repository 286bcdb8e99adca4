"""All task families by name. Standard library only; adding a family means retraining the bundled verifier."""

from __future__ import annotations

from pipeline.verifier.families import arithmetic, chat, dates, lists, stories, text
from pipeline.verifier.families.task import Family, Task

FAMILIES: dict[str, Family] = {
    family.__name__: family
    for family in (
        arithmetic.addition,
        arithmetic.subtraction,
        arithmetic.multiplication,
        arithmetic.division,
        arithmetic.comparison,
        arithmetic.total,
        arithmetic.sequence,
        lists.sort_numbers,
        lists.sort_words,
        lists.parity,
        lists.threshold,
        lists.extreme,
        lists.reverse_list,
        lists.pick_item,
        lists.category,
        lists.in_both,
        text.reverse_letters,
        text.count_letter,
        text.initials,
        text.longest_word,
        text.replace_word,
        text.remove_word,
        text.swap_ends,
        text.count_words,
        text.who_does_what,
        dates.weekday,
        dates.date,
        dates.clock,
        dates.conversion,
        stories.gains_and_losses,
        stories.shopping,
        stories.ages,
        stories.possessions,
        stories.queue,
        stories.introductions,
        chat.talk,
    )
}

__all__ = ["FAMILIES", "Family", "Task"]
