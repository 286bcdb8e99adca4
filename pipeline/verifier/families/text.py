"""Task families about letters and sentences: spell, count, replace, remove, swap. Standard library only."""

from __future__ import annotations

from random import Random

from pipeline.verifier.families.task import Task, article, choose, listed
from pipeline.verifier.wordlists import ADJECTIVES, ANIMALS, COLOURS, PLACES, THINGS, VERBS, WORDS


def _sentence(random: Random) -> list[str]:
    """Six to nine words: 'the old fox follows a tiny crab near the mill'."""
    first, second = choose(random, ANIMALS, 2)
    trait, other_trait = choose(random, ADJECTIVES + COLOURS, 2)
    target = random.choice([second, random.choice(THINGS)])
    words = [
        "the",
        trait,
        first,
        random.choice(VERBS),
        *random.choice([article(other_trait), f"the {other_trait}"]).split(),
        target,
    ]
    if random.random() < 0.5:
        words += [random.choice(["near", "in", "behind", "at"]), "the", random.choice(PLACES)]
    return words


def reverse_letters(random: Random) -> Task:
    """A word spelled backwards, with dashes."""
    style = random.randrange(3)
    word = random.choice(WORDS)
    prompt = (
        f"Spell {word} backwards with dashes.",
        f"Write the letters of {word} in reverse order.",
        f"What is the word {word} spelled from the end?",
    )[style]
    key = "-".join(reversed(word))
    letters, backwards = ", ".join(word), ", ".join(reversed(word))
    reasoning = f"The letters of {word} are {letters}. There are {len(word)}. From the end: {backwards}."
    return Task("reverse_letters", prompt, reasoning, f"{word} backwards is {key}", key)


def count_letter(random: Random) -> Task:
    """How often a letter occurs in two words."""
    style = random.randrange(3)
    words = choose(random, WORDS, random.randint(2, 3))
    letter = random.choice(words[0])
    shown = " ".join(words)
    prompt = (
        f"How many times is the letter {letter} in '{shown}'?",
        f"Count the letter {letter} in '{shown}'.",
        f"How often do you see {letter} in the words '{shown}'?",
    )[style]
    count, steps = 0, []
    for word in words:
        marks = []
        for character in word:
            count += character == letter
            marks.append(f"{character} {count}" if character == letter else character)
        steps.append(f"{word}: {', '.join(marks)}")
    return Task(
        "count_letter",
        prompt,
        f"{'. '.join(steps)}. In all {count}.",
        f"The letter {letter} appears this often: {count}",
        str(count),
    )


def initials(random: Random) -> Task:
    """The first letters of words, joined by dashes."""
    style = random.randrange(3)
    words = choose(random, WORDS, random.randint(6, 9))
    shown = " ".join(words)
    prompt = (
        f"Take the first letter of each word: {shown}",
        f"What are the initials of {shown}?",
        f"Make an acronym from '{shown}'.",
    )[style]
    key = "-".join(word[0] for word in words)
    return Task(
        "initials", prompt, f"{listed([f'{word} gives {word[0]}' for word in words])}.", f"The initials are {key}", key
    )


def longest_word(random: Random) -> Task:
    """The longest word of a few, by counting letters."""
    style = random.randrange(2)
    while True:
        words = choose(random, WORDS, random.randint(3, 4))
        lengths = sorted(len(word) for word in words)
        if lengths[-1] > lengths[-2]:
            break
    shown = listed(words)
    prompt = f"Which word is the longest: {shown}?" if style == 0 else f"Find the longest word in {shown}."
    key = max(words, key=len)
    steps = ". ".join(f"{word}: {', '.join(word)} makes {len(word)}" for word in words)
    return Task("longest_word", prompt, f"{steps}. The most is {len(key)}.", f"The longest word is {key}", key)


def replace_word(random: Random) -> Task:
    """A sentence with one word replaced by another."""
    style = random.randrange(3)
    words = _sentence(random)
    position = random.choice([1, 2, 3, 5, 6])
    old, new = words[position], random.choice([word for word in WORDS if word not in words])
    shown = " ".join(words)
    prompt = (
        f"Replace {old} with {new} in: {shown}",
        f"In the sentence '{shown}' change {old} to {new}.",
        f"Write '{shown}' with {new} instead of {old}.",
    )[style]
    words[position] = new
    before, after = " ".join(words[:position]), " ".join(words[position + 1 :])
    key = " ".join(words)
    reasoning = (
        f"The sentence is {shown}. Before {old} comes '{before}', after it '{after}'. Now {new} goes between them."
    )
    return Task("replace_word", prompt, reasoning, f"New sentence: {key}", key)


def remove_word(random: Random) -> Task:
    """A sentence without one of its words."""
    style = random.randrange(3)
    words = _sentence(random)
    position = random.choice([1, 2, 5, 6])
    gone = words[position]
    shown = " ".join(words)
    prompt = (
        f"Remove the word {gone} from: {shown}",
        f"Write '{shown}' without the word {gone}.",
        f"Delete {gone} in this sentence: {shown}",
    )[style]
    kept = words[:position] + words[position + 1 :]
    steps = listed([f"{word} {'out' if i == position else 'in'}" for i, word in enumerate(words)])
    key = " ".join(kept)
    return Task(
        "remove_word",
        prompt,
        f"Word by word: {steps}. That leaves {len(kept)} words: {key}.",
        f"Without {gone}: {key}",
        key,
    )


def swap_ends(random: Random) -> Task:
    """A list of words with its first and last exchanged."""
    style = random.randrange(2)
    words = choose(random, WORDS, random.randint(6, 9))
    shown = " ".join(words)
    prompt = (
        f"Swap the first and the last word: {shown}" if style == 0 else f"Exchange the outer two words of '{shown}'."
    )
    middle = words[1:-1]
    key = " ".join([words[-1], *middle, words[0]])
    reasoning = (
        f"The words are {shown}. First is {words[0]}, last is {words[-1]}, between them {listed(middle)}. "
        f"So {words[-1]} leads and {words[0]} ends."
    )
    return Task("swap_ends", prompt, reasoning, f"Swapped: {key}", key)


def count_words(random: Random) -> Task:
    """How many words a sentence has."""
    style = random.randrange(2)
    words = _sentence(random)
    shown = " ".join(words)
    prompt = f"How many words are in '{shown}'?" if style == 0 else f"Count the words of this sentence: {shown}"
    steps = listed([f"{i + 1} {word}" for i, word in enumerate(words)])
    return Task(
        "count_words",
        prompt,
        f"The sentence is {shown}. Counting: {steps}.",
        f"Number of words: {len(words)}",
        str(len(words)),
    )


def who_does_what(random: Random) -> Task:
    """A question about the parts of a sentence."""
    style = random.randrange(3)
    words = _sentence(random)
    shown = " ".join(words)
    subject, verb, target = " ".join(words[:3]), words[3], " ".join(words[4:7])
    question = (f"Who {verb} {target}?", f"What does {subject} do?", f"Which word comes after {words[5]}?")[style]
    key = (subject, f"{verb} {target}", words[6])[style]
    numbered = listed([f"{i + 1} {word}" for i, word in enumerate(words)])
    about = ("the start", verb, words[5])[style]
    reasoning = (
        f"Words: {numbered}. It starts with {subject}. Then {verb}. Then {target}. The question is about {about}."
    )
    return Task(
        "who_does_what",
        f"Read this: {shown}. {question}",
        reasoning,
        f"It is {key}" if style != 1 else f"It {key}",
        key,
    )
