"""Task families about days, dates, clocks and units. Standard library only."""

from __future__ import annotations

from random import Random

from pipeline.verifier.families.task import Task, listed, plural
from pipeline.verifier.wordlists import MONTHS, WEEKDAYS


def weekday(random: Random) -> Task:
    """The weekday some days after or before a weekday."""
    style = random.randrange(3)
    start, days = random.randrange(7), random.randint(3, 40)
    forward = style != 2
    name = WEEKDAYS[start]
    prompt = (
        f"Today is {name}. What day is it in {days} days?",
        f"Which weekday comes {days} days after {name}?",
        f"Today is {name}. What day was it {days} days ago?",
    )[style]
    weeks, rest = divmod(days, 7)
    step = 1 if forward else -1
    walk = [WEEKDAYS[(start + step * i) % 7] for i in range(1, rest + 1)]
    key = WEEKDAYS[(start + step * rest) % 7]
    moves = (
        f"From {name} go {'on' if forward else 'back'} {rest}: {listed(walk)}."
        if rest
        else f"Nothing is left over, so it is {name} again."
    )
    rows = listed([f"7 * {n} = {7 * n}" for n in range(max(weeks, 1), weeks + 2)])
    opening = f"{days} days {'after' if forward else 'before'} {name}."
    reasoning = f"{opening} {rows}. {days} = 7 * {weeks} + {rest}. {moves}"
    return Task("weekday", prompt, reasoning, f"The day is {key}", key)


def date(random: Random) -> Task:
    """The date some days after another, across at most one month's end."""
    style = random.randrange(3)
    months = list(MONTHS)
    index = random.randrange(1, len(months) - 1)
    month, following = months[index], months[index + 1]
    day, days = random.randint(1, MONTHS[month]), random.randint(3, 28)
    prompt = (
        f"What date is {days} days after {day} {month}?",
        f"It is {day} {month}. What will the date be in {days} days?",
        f"A parcel sent on {day} {month} needs {days} days. When does it arrive?",
    )[style]
    reached = day + days
    reasoning = f"{days} days after {day} {month}. {month} has {MONTHS[month]} days. {day} + {days} = {reached}."
    if reached > MONTHS[month]:
        rest = reached - MONTHS[month]
        reasoning += f" {reached} is more than {MONTHS[month]}, {reached} - {MONTHS[month]} = {rest}, in {following}."
        key = f"{rest} {following}"
    else:
        reasoning += f" {reached} is not more than {MONTHS[month]}, still {month}."
        key = f"{reached} {month}"
    return Task("date", prompt, reasoning, f"The date is {key}", key)


def clock(random: Random) -> Task:
    """A time of day plus hours and minutes."""
    style = random.randrange(3)
    hour, minute = random.randint(5, 19), 5 * random.randrange(12)
    hours, minutes = random.randint(1, 4), 5 * random.randint(1, 11)
    thing = random.choice(["train", "bus", "film", "lesson", "ferry", "concert", "meeting"])
    start, span = f"{hour}:{minute:02d}", f"{hours} {plural('hour', hours)} {minutes} minutes"
    prompt = (
        f"A {thing} starts at {start} and takes {span}. When does it end?",
        f"What time is it {span} after {start}?",
        f"The {thing} leaves at {start}. It lasts {span}. At what time is it over?",
    )[style]
    total, carried = minute + minutes, (minute + minutes) // 60
    text = f"Minutes: {minute} + {minutes} = {total}"
    text += f", {total} - 60 = {total - 60}, one hour more." if carried else "."
    end = hour + hours + carried
    text += f" Hours: {hour} + {hours}{' + 1' if carried else ''} = {end}."
    key = f"{end}:{total % 60:02d}"
    return Task(
        "clock", prompt, f"From {start}, {span} on. {text}", f"It ends at {key}" if style != 1 else f"It is {key}", key
    )


_UNITS = (
    ("hour", "minute", 60),
    ("minute", "second", 60),
    ("week", "day", 7),
    ("day", "hour", 24),
    ("foot", "inch", 12),
    ("metre", "centimetre", 100),
    ("kilometre", "metre", 1000),
    ("kilogram", "gram", 1000),
    ("year", "month", 12),
)


def _units(noun: str, count: int) -> str:
    return {"foot": "feet"}.get(noun, plural(noun, count)) if count != 1 else noun


def conversion(random: Random) -> Task:
    """A quantity in two units, in the smaller of them."""
    style = random.randrange(3)
    big, small, factor = random.choice(_UNITS)
    count, rest = random.randint(2, 9), random.randint(1, min(factor - 1, 60))
    many = _units(small, 2)
    quantity = f"{count} {_units(big, count)} and {rest} {_units(small, rest)}"
    prompt = (f"Convert {quantity} to {many}.", f"How many {many} are {quantity}?", f"Write {quantity} in {many}.")[
        style
    ]
    product, result = count * factor, count * factor + rest
    steps = f"{count} * {factor} = {product}. Then {product} + {rest} = {result}."
    reasoning = f"{quantity} in {many}. One {big} is {factor} {many}. {steps}"
    return Task("conversion", prompt, reasoning, f"{quantity} in {many}: {result}", str(result))
