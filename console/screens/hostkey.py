"""The host key that a BLOCKED connection waits for, and the question about it. Pure functions.

The link tells it in words (remote.errors.HostKeyUnknown and HostKeyChanged); the fingerprints in them are what counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from console.screens.intents import Answer, Intent
from console.snapshot import LinkView

_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
_NAME = re.compile(r"host key of (\S+) (?:is|has)\b", re.IGNORECASE)


@dataclass(frozen=True)
class HostKeyQuestion:
    """`host` is the name that the key is pinned under (a jump host has its own); `pinned` is empty at first contact.

    `hint` is what the person's own known_hosts says about the offered key, or empty.
    """

    host: str
    offered: str
    pinned: str
    hint: str = ""


def host_key_question(link: LinkView) -> HostKeyQuestion | None:
    """The question, if the link is BLOCKED by a host key; a refused login holds no fingerprint and asks nothing."""
    found = _FINGERPRINT.findall(link.message) if link.state == "BLOCKED" else []
    if not found:
        return None
    named = _NAME.search(link.message)
    pinned = found[0] if len(found) > 1 and found[0] != found[-1] else ""
    hint = "" if pinned else link.remedy.partition("Compare it with")[0].strip()
    return HostKeyQuestion(named.group(1) if named else link.host, found[-1], pinned, hint)


def host_key_intent(question: HostKeyQuestion) -> Intent:
    """Unknown: confirm. Changed: type the host's name."""
    facts: tuple[str, ...]
    if not question.pinned:
        facts = (
            f"{question.host} shows this key for the first time:",
            question.offered,
            *((question.hint,) if question.hint else ()),
            "Compare it with what the provider or the host's own console shows "
            "(ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub). Once pinned, no other key will be accepted.",
        )
        return Intent(f"Host key of {question.host}", facts, (Answer("confirm", "It is the same: pin it"),))
    facts = (
        f"THE HOST KEY OF {question.host} HAS CHANGED. Someone may be in between.",
        f"pinned   {question.pinned}",
        f"offered  {question.offered}",
        "If the container was made anew this is expected: compare the offered key with what its console shows first.",
    )
    answers = (Answer("confirm", "Replace the pinned key", True),)
    return Intent("Changed host key", facts, answers, typed=question.host, danger=True)
