"""Task families about numbers: four operations digit by digit, comparison, sums, sequences. Standard library only."""

from __future__ import annotations

from random import Random

from pipeline.verifier.families.task import Task, listed

PLACE_NAMES = ("ones", "tens", "hundreds", "thousands")


def _number(random: Random, digits: int) -> int:
    return random.randrange(10 ** (digits - 1), 10**digits)


def addition(random: Random) -> Task:
    """Two numbers of two to four digits, added with carries."""
    style = random.randrange(4)
    a, b = _number(random, random.randint(2, 4)), _number(random, random.randint(2, 4))
    prompt = (
        f"What is {a} + {b}?",
        f"Add {a} and {b}.",
        f"Work out {a} plus {b}.",
        f"Please give the sum of {a} and {b}.",
    )[style]
    steps, carry = [], 0
    width = max(len(str(a)), len(str(b)))
    for place in range(width):
        x, y = a // 10**place % 10, b // 10**place % 10
        total = x + y + carry
        carried = f" + {carry}" if carry else ""
        carry = total // 10
        head = f"{PLACE_NAMES[place].capitalize()}: " if style in (0, 2) else ""
        tail = f", write {total % 10}" + (f", carry {carry}" if carry else "")
        steps.append(f"{head}{x} + {y}{carried} = {total}{tail}.")
    digits = " ".join(str(a + b))
    opening = f"{a} + {b}, from the right." if style % 2 else f"Line up {a} and {b}."
    leading = f" The last carry is {carry}." if carry else ""
    reasoning = f"{opening} {' '.join(steps)}{leading} Digits from the left: {digits}."
    answer = (
        f"{a} + {b} = {a + b}",
        f"The sum is {a + b}.",
        f"{a} plus {b} is {a + b}.",
        f"The sum of {a} and {b} is {a + b}.",
    )[style]
    return Task("addition", prompt, reasoning, answer, str(a + b))


def subtraction(random: Random) -> Task:
    """A smaller number taken from a larger one, with borrows."""
    style = random.randrange(4)
    a, b = _number(random, random.randint(2, 4)), _number(random, random.randint(2, 4))
    a, b = max(a, b), min(a, b)
    prompt = (
        f"What is {a} - {b}?",
        f"Subtract {b} from {a}.",
        f"Take {b} away from {a}.",
        f"Please work out {a} minus {b}.",
    )[style]
    steps, borrow, digits = [], 0, []
    for place in range(len(str(a))):
        x, y = a // 10**place % 10, b // 10**place % 10
        top = x - borrow
        text = f"{x} - 1 = {top}, " if borrow else ""
        borrow = int(top < y)
        if borrow:
            text += f"borrow, {top + 10} - {y} = {top + 10 - y}"
        else:
            text += f"{top} - {y} = {top - y}"
        digits.append(str((top - y) % 10))
        head = f"{PLACE_NAMES[place].capitalize()}: " if style in (0, 2) else ""
        steps.append(f"{head}{text}.")
    opening = f"{a} - {b}, from the right." if style % 2 else f"{b} goes under {a}."
    reasoning = f"{opening} {' '.join(steps)} Digits from the left: {' '.join(reversed(digits))}."
    answer = (
        f"{a} - {b} = {a - b}",
        f"That leaves {a - b}.",
        f"{a} take away {b} is {a - b}.",
        f"{a} minus {b} is {a - b}.",
    )[style]
    return Task("subtraction", prompt, reasoning, answer, str(a - b))


def multiplication(random: Random) -> Task:
    """A number of two or three digits times one digit."""
    style = random.randrange(4)
    a, b = _number(random, random.randint(2, 3)), random.randint(2, 9)
    prompt = (
        f"What is {a} * {b}?",
        f"Multiply {a} by {b}.",
        f"Work out {a} times {b}.",
        f"Please give the product of {a} and {b}.",
    )[style]
    parts = [int(digit) * 10 ** (len(str(a)) - 1 - i) for i, digit in enumerate(str(a))]
    used = [part for part in parts if part]
    products = [f"{part} * {b} = {part * b}" for part in used]
    total, sums = used[0] * b, []
    for part in used[1:]:
        sums.append(f"{total} + {part * b} = {total + part * b}.")
        total += part * b
    split = " + ".join(str(part) for part in used)
    opening = f"{a} is {split}." if style % 2 else f"Split {a} into {split}."
    reasoning = " ".join([opening, f"{listed(products)}.", *sums])
    answer = (
        f"{a} * {b} = {total}",
        f"The product is {total}.",
        f"{a} times {b} is {total}.",
        f"The product of {a} and {b} is {total}.",
    )[style]
    return Task("multiplication", prompt, reasoning, answer, str(total))


def division(random: Random) -> Task:
    """A number below 100 divided by one digit, with the remainder."""
    style = random.randrange(3)
    b, quotient = random.randint(3, 9), random.randint(2, 9)
    remainder = random.randint(0, b - 1)
    a = b * quotient + remainder
    prompt = (
        f"What is {a} divided by {b}, with the remainder?",
        f"Divide {a} by {b} and give the remainder.",
        f"How many times does {b} go into {a}, and what is left?",
    )[style]
    rows = [f"{b} * {n} = {b * n}" for n in range(max(1, quotient - 1), quotient + 2)]
    fits, beyond = b * quotient, b * (quotient + 1)
    reasoning = f"Try {b}: {listed(rows)}. {fits} fits, {beyond} is more than {a}. {a} - {fits} = {remainder}."
    return Task(
        "division",
        prompt,
        reasoning,
        f"{a} divided by {b} is {quotient} remainder {remainder}",
        f"{quotient} remainder {remainder}",
    )


def comparison(random: Random) -> Task:
    """Which of two numbers of the same length is larger or smaller, digit by digit."""
    style = random.randrange(4)
    digits = random.randint(3, 5)
    a = _number(random, digits)
    shared = random.randint(0, digits - 1)
    b = int(str(a)[:shared] + str(_number(random, digits))[shared:])
    if a == b:
        b = a + 1 if a % 10 < 9 else a - 1
    want = "larger" if style < 2 else "smaller"
    prompt = (
        f"Which number is larger, {a} or {b}?",
        f"Give me the larger of {a} and {b}.",
        f"Which is the smaller number: {a} or {b}?",
        f"Pick the smaller of {a} and {b}.",
    )[style]
    steps = []
    for x, y in zip(str(a), str(b)):
        if x == y:
            steps.append(f"{x} and {y} are equal.")
            continue
        high, low = max(x, y), min(x, y)
        steps.append(f"{x} and {y} differ, {high} is more than {low}.")
        break
    key = max(a, b) if want == "larger" else min(a, b)
    reasoning = f"Compare {a} with {b}. {' '.join(steps)} So {max(a, b)} is larger than {min(a, b)}."
    return Task("comparison", prompt, reasoning, f"The {want} number is {key}", str(key))


def total(random: Random) -> Task:
    """A running sum of four to six small numbers."""
    style = random.randrange(3)
    items = [random.randint(2, 40) for _ in range(random.randint(4, 6))]
    prompt = (
        f"Add up {listed(items)}.",
        f"What is the total of {listed(items)}?",
        f"Find the sum of this list: {listed(items)}",
    )[style]
    running, steps = items[0], []
    for item in items[1:]:
        steps.append(f"{running} + {item} = {running + item}")
        running += item
    reasoning = f"Start with {items[0]}. {'. '.join(steps)}."
    answer = (f"They add up to {running}.", f"The total is {running}.", f"The sum is {running}.")[style]
    return Task("total", prompt, reasoning, answer, str(running))


def sequence(random: Random) -> Task:
    """The next number of an arithmetic or a doubling sequence."""
    style = random.randrange(3)
    if random.random() < 0.25:
        start = random.randint(2, 12)
        items = [start * 2**i for i in range(5)]
        steps = [f"{items[i + 1]} is 2 * {items[i]}" for i in range(3)]
        rule, last = "Each is twice the one before", f"2 * {items[3]} = {items[4]}"
    else:
        step, up = random.randint(2, 19), random.random() < 0.6
        start = random.randint(1, 60) if up else random.randint(4 * step + 1, 4 * step + 60)
        items = [start + (step if up else -step) * i for i in range(5)]
        steps = [f"{max(items[i : i + 2])} - {min(items[i : i + 2])} = {step}" for i in range(3)]
        rule = f"It goes {'up' if up else 'down'} by {step}"
        last = f"{items[3]} {'+' if up else '-'} {step} = {items[4]}"
    shown = listed(items[:4])
    prompt = (f"What comes next: {shown}?", f"Continue the sequence {shown}.", f"Give the next number after {shown}.")[
        style
    ]
    return Task(
        "sequence", prompt, f"{listed(steps)}. {rule}. {last}.", f"The next number is {items[4]}", str(items[4])
    )
