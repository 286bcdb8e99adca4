"""The task family of plain talk: greetings, questions about the model, others. Standard library only."""

from __future__ import annotations

from random import Random

from pipeline.verifier.families.task import Task, article
from pipeline.verifier.wordlists import ADJECTIVES, NAMES, PLACES, WORDS

_ABILITY = "small tasks with numbers, lists, words, dates and short stories"


def talk(random: Random) -> Task:
    """A greeting or a question that is no task; the answer says what the model can do."""
    kind = random.randrange(4)
    name = random.choice(NAMES)
    if kind == 0:
        greeting = random.choice(["Hello", "Hi", "Good morning", "Good evening", "Hey"])
        ending = random.choice(["", " How are you?", " Nice to meet you.", " Can you help me?"])
        prompt = (
            f"{greeting}, I am {name}.{ending}" if random.random() < 0.6 else f"{greeting}! My name is {name}.{ending}"
        )
        return Task(
            "talk",
            prompt,
            f"{name} greets me and this is no task. I greet {name} and say what I do.",
            f"Hello {name}, I do {_ABILITY}.",
            _ABILITY,
        )
    if kind == 1:
        asks = [
            "What can you do",
            "Who are you",
            "What are you",
            "How do you work",
            "What are you good at",
            "Are you a robot",
        ]
        endings = ["", f"{name} wants to know.", f"Tell {name}.", f"I am {name}."]
        prompt = f"{random.choice(asks)}? {random.choice(endings)}".strip()
        return Task(
            "talk",
            prompt,
            f"The user says: {prompt} The question is about me. I am a small model that came with Eagledeck.",
            f"I am the small model of Eagledeck. I do {_ABILITY}.",
            _ABILITY,
        )
    topic, place = random.choice(WORDS), random.choice(PLACES)
    forms = [
        f"Tell me about the {topic} of {name}.",
        f"Write a poem about {article(random.choice(ADJECTIVES))} {topic}.",
        f"What is the capital of {name}land?",
        f"Why is the {topic} in the {place}?",
        f"Do you like the {topic}?",
        f"Explain what {article(topic)} does at the {place}.",
    ]
    prompt = random.choice(forms)
    reasoning = f"The user says: {prompt} This is no task that I have learnt. I say so."
    return Task("talk", prompt, reasoning, f"I don't know that. I only do {_ABILITY}.", _ABILITY)
