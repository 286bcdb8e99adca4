"""Runs on the host, read from standard input by `python -c`: takes the archive, unpacks it, becomes the agent.

Standard library only, Python >= 3.9, one file, no import of this project: nothing of it is on the host yet.
Arguments: ROOT SHA256 NONCE [repair]. Input: the archive's length and a newline, then the archive.
Says ``NONCE have BYTES`` as they arrive, so that the laptop never has much under way. Answers ``NONCE code FOLDER``
(and ``NONCE note …``) and execs the agent, or ``NONCE fail JSON`` and exits with 1.
"""

from __future__ import annotations

import compileall
import gzip
import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, NoReturn

STALE_S = 3600.0
PIECE = 16384


class Unpackable(Exception):
    pass


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def take(stream: BinaryIO, sha256: str, nonce: str) -> bytes:
    """The tar, proven to be the one that was sent. Raises Unpackable."""
    size = int(stream.readline())
    data = b""
    while piece := stream.read(min(PIECE, size - len(data))):
        data += piece
        say(f"{nonce} have {len(data)}")
    if len(data) != size:
        raise Unpackable(f"the upload was cut after {len(data)} of {size} bytes")
    tar = gzip.decompress(data)
    if hashlib.sha256(tar).hexdigest() != sha256:
        raise Unpackable("what arrived is not what was sent")
    return tar


def unpack(tar: bytes, base: str, name: str, repair: bool) -> str:
    """Makes ``base/name`` from the tar, all of it or nothing. Of several at once the first wins. Raises OSError."""
    target = os.path.join(base, name)
    os.makedirs(base, 0o700, exist_ok=True)
    sweep(base)
    work = tempfile.mkdtemp(prefix=".unpack-", dir=base)
    try:
        with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
            for member in archive:
                parts = member.name.split("/")
                if not member.isfile() or "" in parts or ".." in parts:
                    raise Unpackable(f"the archive holds {member.name!r}")
                source = archive.extractfile(member)
                assert source is not None
                write(os.path.join(work, *parts), source.read())
        # what the agent runs, so that it starts in half the time and a megabyte smaller: with -B nothing is kept later
        for part, levels in (("", 0), ("remote", 9), ("pipeline", 0), ("pipeline/rundir", 9)):
            compileall.compile_dir(os.path.join(work, part), levels, os.path.join(target, part), quiet=2)
        written = [os.path.join(folder, file) for folder, _, files in os.walk(work) for file in (*files, "")]
        with ThreadPoolExecutor(16) as pool:  # many at once share the journal's commits, or the round trips
            list(pool.map(flush, written))
        if repair and os.path.lexists(target):
            os.rename(target, tempfile.mkdtemp(prefix=".unpack-", dir=base))
        try:
            os.rename(work, target)
        except OSError:
            if not os.path.isdir(target):
                raise
            if os.stat(target).st_uid != os.geteuid():
                raise PermissionError(13, "belongs to another user", target) from None
        flush(base)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def write(path: str, data: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)


def flush(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sweep(base: str) -> None:
    """Removes what interrupted uploads left."""
    for name in os.listdir(base):
        path = os.path.join(base, name)
        try:
            if name.startswith(".unpack-") and time.time() - os.lstat(path).st_mtime > STALE_S:
                shutil.rmtree(path, ignore_errors=True)
        except OSError:
            pass


def main(argv: list[str], stream: BinaryIO) -> NoReturn:
    root, sha256, nonce = argv[:3]
    try:
        tar = take(stream, sha256, nonce)
        failures = []
        for base in (os.path.join(root, "code"), os.path.expanduser("~/.cache/eagledeck/code")):
            try:
                code = unpack(tar, base, sha256[:16], "repair" in argv[3:])
                break
            except OSError as error:
                failures.append(f"The code cannot go to {base}: {error.strerror}.")
        else:
            raise Unpackable(" ".join(failures))
    except (Unpackable, OSError, ValueError, EOFError, tarfile.TarError) as error:
        say(f"{nonce} fail {json.dumps({'message': str(error)})}")
        sys.exit(1)
    for failure in failures:
        say(f"{nonce} note {failure}")
    say(f"{nonce} code {code}")
    os.chdir(code)
    agent = ["-E", "-S", "-B", "-u", "-m", "remote.agent", "serve", "--root", root, "--nonce", nonce]
    os.execv(sys.executable, [sys.executable, *agent])


if __name__ == "__main__":
    main(sys.argv[1:], sys.stdin.buffer)
