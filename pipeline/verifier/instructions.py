"""Templated instructions for a general chat model such as SmolLM2. Standard library only.

Template × topic × manner, and the same split as the tasks: the hash of a prompt's text says which space it is in.
"""

from __future__ import annotations

from random import Random

from pipeline.verifier.tasks import SPACES, space_of


def _items(text: str) -> list[str]:
    return text.split("|")


_TEMPLATES = (
    "Explain {topic} {manner}.",
    "What is {topic}? Answer {manner}.",
    "Write a short story about {person} and {topic}.",
    "Give {count} tips about {topic} for {person}.",
    "List {count} facts about {topic}.",
    "Compare {topic} with {other}.",
    "Write an email to {person} about {topic}.",
    "How does {topic} affect {other}?",
    "Describe {topic} to {person}.",
    "What are the advantages and disadvantages of {topic}?",
    "Summarize the history of {topic} {manner}.",
    "Write a poem about {topic}.",
    "Name {count} questions that {person} could ask about {topic}.",
    "Why is {topic} important for {person}?",
    "Plan a lesson about {topic} for {person}.",
    "Write a dialogue between {person} and an expert about {topic}.",
)
_TOPICS = _items(
    "photosynthesis|gravity|the water cycle|volcanoes|the moon|electric cars|bicycles|chess|football|swimming|baking "
    "bread|coffee|green tea|chocolate|cheese|healthy breakfasts|sleep|stress|friendship|honesty|teamwork|public "
    "speaking|reading books|libraries|museums|classical music|jazz|the piano|the guitar|painting|photography|gardening|"
    "houseplants|bees|dogs|cats|elephants|whales|penguins|forests|deserts|rivers|the ocean|climate change|recycling|"
    "solar energy|wind power|nuclear power|batteries|the internet|email|computer programming|artificial intelligence|"
    "robots|space travel|the solar system|black holes|the human heart|vaccines|bacteria|the immune system|vitamins|"
    "mathematics|fractions|prime numbers|geometry|statistics|the Roman Empire|ancient Egypt|the printing press|the "
    "steam engine|the Silk Road|democracy|taxes|saving money|inflation|small businesses|job interviews|time "
    "management|learning a language|grammar|dictionaries|maps|trains|airports|bridges|skyscrapers|earthquakes|"
    "hurricanes|snow|rainbows|clocks|calendars|holidays|birthday parties|camping|hiking|mountains|islands"
)
_PEOPLE = _items(
    "a child|a teacher|a student|a farmer|a doctor|a beginner|a grandmother|a scientist|a tourist|a neighbor|a manager|"
    "a young artist|a new colleague|a worried parent|a retired sailor"
)
_MANNERS = _items(
    "in two sentences|in simple words|with an example|step by step|for a ten-year-old|in one paragraph|as a list|"
    "briefly|with a comparison|as if you were a teacher"
)
_TRIES = 5_000
_COUNTS = ("three", "four", "five", "six")


def _prompt(random: Random) -> str:
    topic, other = random.sample(_TOPICS, 2)
    return random.choice(_TEMPLATES).format(
        topic=topic,
        other=other,
        person=random.choice(_PEOPLE),
        manner=random.choice(_MANNERS),
        count=random.choice(_COUNTS),
    )


def prompts(seed: int, count: int, space: str = "train") -> list[dict[str, str]]:
    """`count` rows {"id", "prompt"} with different prompts of one space, the same for the same seed.

    Raises ValueError for an unknown space, or where the templates do not hold that many prompts.
    """
    if space not in SPACES:
        raise ValueError(f"space must be one of {', '.join(SPACES)}, not {space!r}")
    random = Random(f"instructions/{space}/{seed}")
    seen: dict[str, None] = {}
    fruitless = 0
    while len(seen) < count:
        prompt = _prompt(random)
        fruitless += 1
        if space_of(prompt) == space and prompt not in seen:
            seen[prompt] = None
            fruitless = 0
        if fruitless > _TRIES:
            raise ValueError(f"the instruction templates hold fewer than {count} {space} prompts")
    return [{"id": f"instructions-{space}-{seed}-{i:06d}", "prompt": prompt} for i, prompt in enumerate(seen)]
