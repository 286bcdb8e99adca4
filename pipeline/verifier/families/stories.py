"""Task families told as small stories: gains, shopping, ages, possessions, queues. Standard library only."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from pipeline.verifier.families.task import Task, article, choose, listed, plural
from pipeline.verifier.wordlists import ADJECTIVES, COLOURS, COUNTED, NAMES, PLACES, THINGS


def gains_and_losses(random: Random) -> Task:
    """Somebody has some things, then gets and gives some in two or three steps."""
    style = random.randrange(2)
    name, *others = choose(random, NAMES, 5)
    noun = random.choice(COUNTED)
    count = random.randint(12, 60)
    story, steps = [f"{name} has {count} {plural(noun, count)}."], [f"{name} starts with {count}."]
    for other in others[: random.randint(3, 4)]:
        change = random.randint(2, 20)
        if change < count and random.random() < 0.5:
            story.append(random.choice([f"{name} gives {change} to {other}.", f"{other} takes {change}."]))
            steps.append(f"{other} takes {change}: {count} - {change} = {count - change}.")
            count -= change
        else:
            story.append(random.choice([f"{other} brings {change} more.", f"{name} gets {change} from {other}."]))
            steps.append(f"{other} adds {change}: {count} + {change} = {count + change}.")
            count += change
    question = (
        f"How many {plural(noun, 2)} does {name} have now?"
        if style == 0
        else f"What is the number of {plural(noun, 2)} at the end?"
    )
    answer = f"{name} now has this many {plural(noun, 2)}: {count}" if style == 0 else f"At the end there are {count}"
    return Task("gains_and_losses", f"{' '.join(story)} {question}", " ".join(steps), answer, str(count))


def shopping(random: Random) -> Task:
    """The price of some of two things."""
    style = random.randrange(2)
    name = random.choice(NAMES)
    first, second = choose(random, COUNTED, 2)
    a, b, m, n = random.randint(2, 12), random.randint(2, 12), random.randint(2, 9), random.randint(2, 9)
    money = random.choice(["euros", "dollars", "coins"])
    firsts, seconds = plural(first, m), plural(second, n)
    story = (
        f"{article(first).capitalize()} costs {a} {money} and {article(second)} costs {b}. "
        f"{name} buys {m} {firsts} and {n} {seconds}. How much is that?"
        if style == 0
        else f"{name} wants {m} {firsts} at {a} {money} each and {n} {seconds} at {b} {money} each. "
        f"What does {name} pay?"
    )
    result = a * m + b * n
    reasoning = (
        f"{name} takes {m} {firsts} at {a} and {n} {seconds} at {b}. {firsts.capitalize()}: {m} * {a} = {m * a}. "
        f"{seconds.capitalize()}: {n} * {b} = {n * b}. Together {m * a} + {n * b} = {result}."
    )
    return Task("shopping", story, reasoning, f"{name} pays in {money}: {result}", str(result))


def ages(random: Random) -> Task:
    """Who is the oldest or the youngest of three or four people."""
    style = random.randrange(2)
    names = choose(random, NAMES, random.randint(3, 5))
    years = random.sample(range(5, 90), len(names))
    want, pick = ("oldest", max) if style == 0 else ("youngest", min)
    facts = listed([f"{name} is {age}" for name, age in zip(names, years)])
    best, steps = 0, []
    for i in range(1, len(names)):
        high = max(years[best], years[i])
        steps.append(
            f"{years[best]} and {years[i]}, more is {high}"
            if style == 0
            else f"{years[best]} and {years[i]}, less is {min(years[best], years[i])}"
        )
        best = best if pick(years[best], years[i]) == years[best] else i
    told = listed([f"{name} {age}" for name, age in zip(names, years)])
    reasoning = f"The ages: {told}. Compare: {'; '.join(steps)}. That age belongs to {names[best]}."
    return Task("ages", f"{facts}. Who is the {want}?", reasoning, f"The {want} is {names[best]}", names[best])


def possessions(random: Random) -> Task:
    """Who has what, among three or four people and coloured things."""
    style = random.randrange(3)
    names = choose(random, NAMES, random.randint(4, 5))
    things = choose(random, THINGS, len(names))
    colours = choose(random, COLOURS, len(names))
    facts = listed([f"{name} has {article(colour)} {thing}" for name, colour, thing in zip(names, colours, things)])
    i = random.randrange(len(names))
    question = (f"Who has the {things[i]}?", f"What does {names[i]} have?", f"Which colour is the {things[i]}?")[style]
    key = (names[i], f"{article(colours[i])} {things[i]}", colours[i])[style]
    steps = []
    for j, name in enumerate(names):
        steps.append(f"{name}: {colours[j]} {things[j]}{', found' if i == j else ''}.")
        if i == j:
            break
    owned = listed([f"{name} {colour} {thing}" for name, colour, thing in zip(names, colours, things)])
    about = names[i] if style == 1 else things[i]
    answer = (f"The {things[i]} belongs to {key}", f"{names[i]} has {key}", f"The colour of the {things[i]} is {key}")[
        style
    ]
    return Task(
        "possessions", f"{facts}. {question}", f"Facts: {owned}. Look for {about}. {' '.join(steps)}", answer, key
    )


def queue(random: Random) -> Task:
    """The order of people who stand before one another."""
    style = random.randrange(2)
    names = choose(random, NAMES, random.randint(4, 6))
    place = random.choice(PLACES)
    facts = [f"{a} is right before {b}" for a, b in pairwise(names)]
    shuffled = random.sample(facts, len(facts))
    prompt = f"At the {place} people stand in a line. {'. '.join(shuffled)}. " + (
        "Give the order." if style == 0 else "Who stands where, from the front?"
    )
    told = listed([fact.replace(" is right before ", " before ") for fact in shuffled])
    steps = f"Told: {told}. Nobody is before {names[0]}, so {names[0]} leads. " + " ".join(
        f"After {a} comes {b}." for a, b in pairwise(names)
    )
    key = listed(names)
    return Task("queue", prompt, steps, f"From the front: {key}", key)


def introductions(random: Random) -> Task:
    """A few facts about somebody, said back as one sentence."""
    style = random.randrange(2)
    name, friend = choose(random, NAMES, 2)
    place, trait, thing, colour = (
        random.choice(PLACES),
        random.choice(ADJECTIVES),
        random.choice(THINGS),
        random.choice(COLOURS),
    )
    facts = [f"name {name}", f"home {place}", f"friend {friend}", f"owns {colour} {thing}", f"mood {trait}"]
    random.shuffle(facts)
    key = f"{name} lives at the {place}, feels {trait}, has {article(colour)} {thing} and likes {friend}"
    prompt = (
        f"Write one sentence from these notes: {listed(facts)}."
        if style == 0
        else f"Notes: {listed(facts)}. Say this as a sentence."
    )
    ordered = f"name {name}, home {place}, mood {trait}, owns {colour} {thing}, friend {friend}"
    reasoning = f"The notes say {listed(facts)}. Order: {ordered}."
    return Task("introductions", prompt, reasoning, f"{key}.", key)
