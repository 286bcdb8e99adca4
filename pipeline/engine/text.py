"""From token ids to text: piece by piece, split at `</think>`, watched for stop strings. Imports nothing of ours.

One path serves streaming and whole answers, so both give the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Decode = Callable[[Sequence[int]], str]
"""Token ids to text without special tokens."""


class Pieces:
    """Text of a growing list of ids. A character whose bytes are not all there yet waits for the rest."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._before = self._read = 0

    def push(self, ids: Sequence[int]) -> str:
        """What the new ids add. Decoding starts a little before them, as some tokenizers look at the token before."""
        self._ids += ids
        text, known = self._window()
        if len(text) <= len(known) or text.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        self._before, self._read = self._read, len(self._ids)
        return text[len(known) :]

    def finish(self) -> str:
        """What was held back."""
        text, known = self._window()
        self._before = self._read = len(self._ids)
        return text[len(known) :]

    def _window(self) -> tuple[str, str]:
        return self._decode(self._ids[self._before :]), self._decode(self._ids[self._before : self._read])


@dataclass(frozen=True)
class Think:
    """Where reasoning starts and ends: the ids of `<think>` and `</think>`, and whether the prompt left it open."""

    start: int | None
    end: int
    open: bool


class Answer:
    """Reasoning and content of one answer. Without `think` everything is content.

    hold: characters kept back until `finish`, because they may belong to a stop string.
    """

    def __init__(self, decode: Decode, think: Think | None, hold: int = 0) -> None:
        self._decode, self._think, self._hold = decode, think, hold
        self._reasoning = think is not None and think.open
        self._pieces = Pieces(decode)
        self._seen = 0
        self._held: list[tuple[bool, str]] = []
        self._emitted = 0
        self.reasoning_tokens = 0

    def push(self, ids: Sequence[int]) -> tuple[str, str]:
        """(reasoning, content) that the new ids add and that no stop string can touch any more."""
        self._absorb(ids)
        return self._release(self._hold)

    def finish(self, ids: Sequence[int] = (), length: int | None = None) -> tuple[str, str]:
        """The rest, with the last ids. length: characters of the whole text, both parts, before a stop string."""
        self._absorb(ids)
        self._keep(self._pieces.finish())
        if length is not None:
            left = length - self._emitted
            cut = []
            for part, text in self._held:
                cut.append((part, text[: max(left, 0)]))
                left -= len(text)
            self._held = cut
        return self._release(0)

    def _absorb(self, ids: Sequence[int]) -> None:
        think, run = self._think, list[int]()
        for token in ids:
            self._seen += 1
            if think is not None and token == think.end and self._reasoning:
                self._switch(run, False)
                run = []
            elif think is not None and token == think.start and self._seen == 1:
                self._switch(run, True)
            else:
                run.append(token)
                self.reasoning_tokens += self._reasoning
        if run:
            self._keep(self._pieces.push(run))

    def _switch(self, run: list[int], reasoning: bool) -> None:
        self._keep(self._pieces.push(run) + self._pieces.finish())
        self._pieces = Pieces(self._decode)
        self._reasoning = reasoning

    def _keep(self, text: str) -> None:
        if text:
            self._held.append((self._reasoning, text))

    def _release(self, hold: int) -> tuple[str, str]:
        ready = sum(len(text) for _, text in self._held) - hold
        parts = {True: "", False: ""}
        rest = []
        for part, text in self._held:
            now = text[: max(ready, 0)]
            ready -= len(text)
            parts[part] += now
            self._emitted += len(now)
            if len(now) < len(text):
                rest.append((part, text[len(now) :]))
        self._held = rest
        return parts[True], parts[False]


class StopStrings:
    """Watches a growing answer for the first of some strings. Counts characters as `Answer` does."""

    def __init__(self, answer: Answer, strings: Sequence[str]) -> None:
        self._answer, self._strings = answer, tuple(strings)
        self._longest = max(len(text) for text in strings)
        self._tail, self._before = "", 0
        self.found = ""
        self.length: int | None = None

    def push(self, ids: Sequence[int]) -> bool:
        """Whether a stop string is there; `found` and `length` (characters before it) then say which and where."""
        return self._look("".join(self._answer.push(ids)))

    def finish(self) -> bool:
        """Looks at what the end of the answer releases."""
        return self._look("".join(self._answer.finish()))

    def _look(self, new: str) -> bool:
        text = self._tail + new
        hits = [(at, string) for string in self._strings if (at := text.find(string)) >= 0]
        if hits:
            at, self.found = min(hits)
            self.length = self._before + at
            return True
        kept = min(len(text), self._longest - 1)
        self._before += len(text) - kept
        self._tail = text[len(text) - kept :]
        return False
