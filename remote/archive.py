"""The code that goes to a host: one archive, the same bytes from the same sources, named by its hash.

It holds remote/protocol.py, remote/agent, pipeline (less the bundled verifier's weights) and, where the laptop has it,
pynvml.py. Standard library only; reads the packages as they are installed, or a checkout, without running them.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import importlib.resources
import importlib.util
import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path

_REMOTE = ("__init__.py", "protocol.py", "agent")
_NOT_SENT = frozenset({"pipeline/verifier/model"})


@dataclass(frozen=True)
class Archive:
    """``data``: a gzipped tar. ``sha256``: of the tar inside, since gzip's bytes vary with the zlib at hand."""

    data: bytes
    sha256: str

    @property
    def name(self) -> str:
        """The folder it is unpacked to on the host, under ``<root>/code``."""
        return self.sha256[:16]


@functools.cache
def build_archive() -> Archive:
    """Reads about a hundred small files: call it from a thread when a loop is running. FileNotFoundError."""
    return pack(sources())


def sources() -> dict[str, bytes]:
    """Every file of the archive: its path there, with forward slashes, and its bytes."""
    found: dict[str, bytes] = {}
    remote = importlib.resources.files("remote")
    for name in _REMOTE:
        found.update(_walk(remote.joinpath(name), f"remote/{name}"))
    found.update(_walk(importlib.resources.files("pipeline"), "pipeline"))
    nvml = importlib.util.find_spec("pynvml")
    if nvml is not None and nvml.origin is not None and nvml.origin.endswith("pynvml.py"):
        found["pynvml.py"] = Path(nvml.origin).read_bytes()
    return found


def _walk(place: Traversable, path: str) -> Iterator[tuple[str, bytes]]:
    name = path.rpartition("/")[2]
    if path in _NOT_SENT or name in ("__pycache__", "tests") or name.startswith(".") or name.endswith(".pyc"):
        return
    if place.is_dir():
        for child in place.iterdir():
            yield from _walk(child, f"{path}/{child.name}")
    else:
        yield path, place.read_bytes()


def pack(files: dict[str, bytes]) -> Archive:
    """A tar without times, owners or modes, in the order of the names; then gzip without a time."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in sorted(files):
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(files[path]), 0o644
            tar.addfile(member, io.BytesIO(files[path]))
    return Archive(gzip.compress(plain.getvalue(), 6, mtime=0), hashlib.sha256(plain.getvalue()).hexdigest())
