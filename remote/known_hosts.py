"""What the person's own known_hosts files say about a key that is new to us: a help for the question, never an answer.

Imports the standard library only.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
from pathlib import Path

from remote.hostkeys import HostKey
from remote.resolve import Resolved


def hint(hop: Resolved, offered: HostKey) -> str:
    """A sentence about ``offered``, or "". Files that cannot be read say nothing."""
    alias = hop.host_key_alias or hop.host
    name = alias if hop.port == 22 or hop.host_key_alias else f"[{alias}]:{hop.port}"
    other = ""
    for file in hop.known_hosts_files:
        for mark, key in _entries(Path(file), name):
            if key == offered and mark == "@revoked":
                return f"DO NOT CONFIRM IT: {file} has this key as revoked."
            if key == offered:
                return f"{file} has the same key for it."
            if key.kind == offered.kind and not mark:
                other = f"Beware: {file} has another {key.kind} key for it."
    return other


def _entries(file: Path, name: str) -> list[tuple[str, HostKey]]:
    """(mark or "", key) of every line that is about ``name``; revoked keys first, since they count whatever follows."""
    try:
        lines = file.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        fields = line.split()
        mark = fields.pop(0) if fields and fields[0].startswith("@") else ""
        if len(fields) < 3 or fields[0].startswith("#") or mark == "@cert-authority" or not _matches(fields[0], name):
            continue
        try:
            found.append((mark, HostKey.parse(" ".join(fields[1:3]))))
        except ValueError:
            continue
    return sorted(found, key=lambda entry: entry[0] != "@revoked")


def _matches(patterns: str, name: str) -> bool:
    if patterns.startswith("|1|"):
        try:
            salt, digest = (base64.b64decode(part, validate=True) for part in patterns[3:].split("|"))
        except (ValueError, binascii.Error):
            return False
        return hmac.compare_digest(hmac.new(salt, name.lower().encode(), hashlib.sha1).digest(), digest)
    verdict = False
    for pattern in patterns.lower().split(","):
        # only * and ? are special in known_hosts; the brackets of [host]:port are not
        glob = pattern.removeprefix("!").replace("[", "[[]")
        if fnmatch.fnmatchcase(name.lower(), glob):
            if pattern.startswith("!"):
                return False
            verdict = True
    return verdict
