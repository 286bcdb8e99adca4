"""Task families about lists of numbers and words: sort, filter, reverse, pick, compare. Standard library only."""

from __future__ import annotations

from random import Random

from pipeline.verifier.families.task import Task, choose, listed
from pipeline.verifier.wordlists import ANIMALS, FRUITS, THINGS, WORDS


def sort_numbers(random: Random) -> Task:
    """Four to six different numbers in rising or falling order, by repeated picking."""
    style = random.randrange(4)
    items = random.sample(range(3, 100), random.randint(4, 6))
    falling = style >= 2
    shown = listed(items)
    prompt = (
        f"Sort these numbers from small to large: {shown}",
        f"Put {shown} in rising order.",
        f"Sort these numbers from large to small: {shown}",
        f"Put {shown} in falling order.",
    )[style]
    left, steps = list(items), []
    while len(left) > 1:
        pick = max(left) if falling else min(left)
        left.remove(pick)
        steps.append(f"take {pick}, left {listed(left)}")
    reasoning = f"Look for the {'largest' if falling else 'smallest'} each time: {'; '.join(steps)}."
    key = listed(sorted(items, reverse=falling))
    return Task("sort_numbers", prompt, reasoning, f"Sorted: {key}", key)


def sort_words(random: Random) -> Task:
    """Four or five words with different first letters in alphabetical order."""
    style = random.randrange(3)
    items: list[str] = []
    size = random.randint(5, 7)
    for word in choose(random, WORDS, 60):
        if len(items) < size and all(word[0] != other[0] for other in items):
            items.append(word)
    shown = listed(items)
    prompt = (
        f"Sort these words alphabetically: {shown}",
        f"Put the words {shown} in alphabetical order.",
        f"Which order do {shown} have in a dictionary?",
    )[style]
    ordered = sorted(items)
    letters = listed([f"{word[0]} for {word}" for word in items])
    key = listed(ordered)
    reasoning = f"First letters: {letters}. In order: {', '.join(f'{word[0]} {word}' for word in ordered)}."
    return Task("sort_words", prompt, reasoning, f"Alphabetically: {key}", key)


def parity(random: Random) -> Task:
    """The even or the odd numbers of a list, each looked at in turn."""
    style = random.randrange(4)
    items = random.sample(range(2, 100), random.randint(5, 7))
    want = style % 2
    if not any(item % 2 == want for item in items):
        items[0] = items[0] ^ 1 if (items[0] ^ 1) not in items else 98 + want
    name = "odd" if want else "even"
    shown = listed(items)
    prompt = (
        f"Keep only the even numbers: {shown}",
        f"Keep only the odd numbers: {shown}",
        f"Which of {shown} are even?",
        f"Which of {shown} are odd?",
    )[style]
    steps = [f"{item} {'odd' if item % 2 else 'even'} {'keep' if item % 2 == want else 'drop'}" for item in items]
    key = listed([item for item in items if item % 2 == want])
    return Task("parity", prompt, f"Check each last digit: {listed(steps)}.", f"The {name} numbers are {key}", key)


def threshold(random: Random) -> Task:
    """The numbers of a list above or below a limit."""
    style = random.randrange(4)
    items = random.sample(range(2, 100), random.randint(5, 7))
    above = style % 2 == 0
    limit = sorted(items)[random.randint(1, len(items) - 2)] + (-1 if above else 1)
    shown = listed(items)
    prompt = (
        f"Which of these are above {limit}: {shown}?",
        f"Which of these are below {limit}: {shown}?",
        f"From {shown} keep the numbers above {limit}.",
        f"From {shown} keep the numbers below {limit}.",
    )[style]
    kept = [item for item in items if (item > limit if above else item < limit)]
    steps = [f"{item} {'yes' if item in kept else 'no'}" for item in items]
    name = "above" if above else "below"
    return Task(
        "threshold",
        prompt,
        f"The limit is {limit}. {listed(steps)}. Kept: {listed(kept)}.",
        f"{name.capitalize()} {limit}: {listed(kept)}",
        listed(kept),
    )


def extreme(random: Random) -> Task:
    """The largest or smallest number of a list, keeping the best so far."""
    style = random.randrange(4)
    items = random.sample(range(10, 1000), random.randint(4, 6))
    want, pick = ("largest", max) if style % 2 == 0 else ("smallest", min)
    shown = listed(items)
    prompt = (
        f"What is the largest number in {shown}?",
        f"What is the smallest number in {shown}?",
        f"Find the largest of these: {shown}",
        f"Find the smallest of these: {shown}",
    )[style]
    best, steps = items[0], []
    for item in items[1:]:
        better = pick(item, best) == item
        best = pick(item, best)
        steps.append(f"{item} {'better' if better else 'no'}, so {best}")
    return Task(
        "extreme", prompt, f"Start with {items[0]}. {'; '.join(steps)}.", f"The {want} number is {best}", str(best)
    )


def reverse_list(random: Random) -> Task:
    """A list of words turned round."""
    style = random.randrange(4)
    items = choose(random, WORDS, random.randint(5, 8))
    shown = listed(items)
    prompt = (
        f"Reverse this list: {shown}",
        f"Say these words backwards, last one first: {shown}",
        f"Turn the order of {shown} round.",
        f"What is {shown} in reverse order?",
    )[style]
    numbered = listed([f"{i + 1} {word}" for i, word in enumerate(items)])
    backwards = listed([f"{i + 1} {items[i]}" for i in reversed(range(len(items)))])
    key = listed(items[::-1])
    reasoning = (
        f"Numbered: {numbered}. From the end: {backwards}."
        if style % 2 == 0
        else f"The list is {shown}. From the end: {key}."
    )
    return Task("reverse_list", prompt, reasoning, f"Reversed: {key}", key)


def pick_item(random: Random) -> Task:
    """The item at a position, counted from the front or the back."""
    style = random.randrange(2)
    ordinals = ("first", "second", "third", "fourth", "fifth", "sixth")
    items = choose(random, WORDS, random.randint(5, 6))
    position = random.randrange(len(items))
    shown = listed(items)
    place = ordinals[position] if style == 0 else ("last" if position == 0 else f"{ordinals[position]} from the end")
    ordered = items if style == 0 else items[::-1]
    prompt = f"What is the {place} word of {shown}?" if style == 0 else f"In the list {shown}, which word is {place}?"
    steps = listed([f"{ordinals[i]} {ordered[i]}" for i in range(position + 1)])
    left = listed(ordered[position + 1 :]) or "nothing"
    start = "From the front" if style == 0 else "From the end"
    return Task(
        "pick_item",
        prompt,
        f"The list is {shown}. {start}: {steps}. After that: {left}.",
        f"The {place} word is {ordered[position]}",
        ordered[position],
    )


def category(random: Random) -> Task:
    """The animals, fruits or things of a mixed list."""
    style = random.randrange(2)
    groups = {"animals": ANIMALS, "fruits": FRUITS, "things": THINGS}
    want = random.choice(list(groups))
    single = {"animals": "animal", "fruits": "fruit", "things": "thing"}
    items: list[tuple[str, str]] = [(want, word) for word in choose(random, groups[want], random.randint(2, 4))]
    other = [name for name in groups if name != want]
    while len(items) < 7:
        name = random.choice(other)
        word = random.choice(groups[name])
        if all(word != seen for _, seen in items):
            items.append((name, word))
    random.shuffle(items)
    shown = listed([word for _, word in items])
    prompt = f"Which of these are {want}: {shown}?" if style == 0 else f"Pick out the {want} from {shown}."
    steps = listed([f"{word} {single[name]}" for name, word in items])
    key = listed([word for name, word in items if name == want])
    return Task("category", prompt, f"One by one: {steps}. Kept: {key}.", f"The {want}: {key}", key)


def in_both(random: Random) -> Task:
    """The words that two lists share."""
    style = random.randrange(2)
    words = choose(random, WORDS, 12)
    shared = words[: random.randint(1, 3)]
    first, second = shared + words[3:6], shared + words[6 : 6 + random.randint(3, 5)]
    random.shuffle(first)
    random.shuffle(second)
    prompt = (
        f"Which words are in both lists? First: {listed(first)}. Second: {listed(second)}."
        if style == 0
        else f"List A is {listed(first)}. List B is {listed(second)}. What do they share?"
    )
    steps = listed([f"{word} {'yes' if word in second else 'no'}" for word in first])
    key = listed([word for word in first if word in second])
    return Task(
        "in_both",
        prompt,
        f"The second list has {listed(second)}. The words of the first: {steps}. Shared: {key}.",
        f"In both: {key}",
        key,
    )
