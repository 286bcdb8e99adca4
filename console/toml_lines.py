"""Where each key of a TOML text stands: tomllib gives values without positions, and an error should name the line.

Reads text that tomllib has already accepted, so it only follows structure and never judges. Standard library only.
"""

from __future__ import annotations

import re

Path = tuple[str, ...]

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "\\": "\\"}


def key_lines(text: str) -> dict[Path, int]:
    """The 1-based line of every key and table header, by its path from the top.

    Tables that a dotted name implies get the line that implied them; entries of arrays get no path of their own.
    """
    return _Scanner(text).scan()


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text.replace("\r\n", "\n")
        self.at = 0
        self.line = 1
        self.found: dict[Path, int] = {}

    def scan(self) -> dict[Path, int]:
        table: Path = ()
        while self._skip(newlines=True):
            if self.text[self.at] == "[":
                table = self._header()
            else:
                self._pair(table)
        return self.found

    def _skip(self, newlines: bool) -> bool:
        """Past blanks and comments, and past line ends if asked. False at the end of the text."""
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif char in " \t" or (newlines and char == "\n"):
                self._step()
            else:
                return True
        return False

    def _step(self) -> None:
        if self.text[self.at] == "\n":
            self.line += 1
        self.at += 1

    def _header(self) -> Path:
        while self.text[self.at] == "[":
            self._step()
        path = self._dotted()
        self._note(path)
        while self.at < len(self.text) and self.text[self.at] == "]":
            self._step()
        return path

    def _pair(self, table: Path) -> None:
        path = table + self._dotted()
        self._note(path)
        self._step()  # the "="
        self._skip(newlines=False)
        self._value(path)

    def _note(self, path: Path) -> None:
        for depth in range(1, len(path) + 1):
            self.found.setdefault(path[:depth], self.line)

    def _dotted(self) -> Path:
        parts: list[str] = []
        while True:
            self._skip(newlines=False)
            if self.text[self.at] in "\"'":
                parts.append(self._string())
            else:
                match = _BARE.match(self.text, self.at)
                assert match is not None, "tomllib accepted this text"
                parts.append(match.group())
                self.at = match.end()
            self._skip(newlines=False)
            if self.at >= len(self.text) or self.text[self.at] != ".":
                return tuple(parts)
            self._step()

    def _string(self) -> str:
        """The content of the string that starts here; escapes are undone only as far as names need it."""
        quote = self.text[self.at]
        end = quote * 3 if self.text.startswith(quote * 3, self.at) else quote
        self.at += len(end)
        out: list[str] = []
        while not self.text.startswith(end, self.at):
            char = self.text[self.at]
            if char == "\\" and quote == '"':
                self._step()
                char = _ESCAPES.get(self.text[self.at], self.text[self.at])
            out.append(char)
            self._step()
        self.at += len(end)
        while len(end) == 3 and self.text.startswith(quote, self.at):  # up to two quotes may precede the closing three
            self.at += 1
        return "".join(out)

    def _value(self, path: Path) -> None:
        char = self.text[self.at]
        if char in "\"'":
            self._string()
        elif char == "[":
            self._step()
            while self._skip(newlines=True) and self.text[self.at] != "]":
                if self.text[self.at] == ",":
                    self._step()
                else:
                    self._value((*path, "[]"))
            self._step()
        elif char == "{":
            self._step()
            while self._skip(newlines=True) and self.text[self.at] != "}":
                if self.text[self.at] == ",":
                    self._step()
                else:
                    self._pair(path)
            self._step()
        else:
            while self.at < len(self.text) and self.text[self.at] not in ",]}#\n":
                self._step()
