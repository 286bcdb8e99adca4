"""The host's end of put and fetch: one file on a channel of its own, resumable, hashed, renamed into place when whole.

Imports pipeline.rundir (through paths) and remote.protocol. Both ways start like the agent does: the nonce line first.

    receive --root ROOT --nonce N         put: a file comes to the host
      <- nonce
      -> {"path", "size", "sha256"}       path relative to ROOT, or absolute under it
      <- {"offset": K}                    K bytes are here already; size when the file is in place, whole and the same
      -> size - K raw bytes
      <- {"done": {"path", "size", "sha256"}}

    send --root ROOT --nonce N            fetch: a file leaves the host
      <- nonce
      -> {"path", "offset": K}
      <- {"size", "offset": K, "mtime"}   offset 0 where K lies beyond the end
      -> {"take": N}                      as often as it takes, and ahead if wanted; what was not asked for never waits
      <- N raw bytes                      in the pipe of a slow link. The last ones may be fewer
      <- {"sha256", "changed": bool}      of all `size` bytes; changed: it was written to meanwhile, so fetch it again

In place of any line from the host, ``{"error": {"code", "message", "remedy"}}`` may come; after it the host hangs up.
What arrived of a put stays beside its place as ``.NAME.HASH.part`` and is continued by the next one.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import select
import stat
import time
from pathlib import Path
from typing import Any

from remote.agent.paths import PathRefused, inside, owned
from remote.protocol import MAX_LINE, ProtocolError, dump_json, parse_json

PIECE = 256 * 1024
SILENCE_S = 120.0
"""A peer that neither takes nor gives a byte for this long is gone."""
PART_KEPT_S = 7 * 86400.0


class TransferRefused(Exception):
    def __init__(self, message: str, remedy: str = "", code: str = "refused") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.code = code


def receive(root: Path, source: int, sink: int) -> int:
    """Takes one file from descriptor ``source`` and answers on ``sink``. Exit status 0, or 1 after an error line."""
    return _answered(sink, lambda: _receive(root, source, sink))


def send(root: Path, source: int, sink: int) -> int:
    """Gives one file to descriptor ``sink``, as asked for on ``source``. Exit status 0, or 1 after an error line."""
    return _answered(sink, lambda: _send(root, source, sink))


def _answered(sink: int, work: Any) -> int:
    try:
        work()
        return 0
    except (TransferRefused, PathRefused) as refusal:
        error = {"code": getattr(refusal, "code", "refused"), "message": refusal.message, "remedy": refusal.remedy}
    except ProtocolError as error_:
        error = {"code": error_.code, "message": error_.message, "remedy": ""}
    except OSError as failure:
        full = failure.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "free some space and repeat: what arrived is kept" if full else ""
        what = f"{failure.strerror}: {failure.filename or 'the transfer'}"
        error = {"code": "refused", "message": what, "remedy": remedy}
    try:
        _put(sink, dump_json({"error": error}) + b"\n")
    except (OSError, TransferRefused):
        pass
    return 1


def _receive(root: Path, source: int, sink: int) -> None:
    head, early = _line(source)
    size, digest = head.get("size"), head.get("sha256")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise TransferRefused("the size must be a number of bytes", code="bad-request")
    if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
        raise TransferRefused("sha256 must be 64 hexadecimal digits", code="bad-request")
    place = _writable(root, str(head.get("path") or ""))
    done = dump_json({"done": {"path": str(place), "size": size, "sha256": digest}}) + b"\n"
    if place.is_file() and place.stat().st_size == size and _hash_file(place) == digest:
        _put(sink, dump_json({"offset": size}) + b"\n" + done)
        return
    part = place.with_name(f".{place.name}.{digest[:16]}.part")
    fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            message = f"{place.name} is being uploaded by another connection"
            raise TransferRefused(message, "wait for it, or close it", "busy") from None
        seen, offset = hashlib.sha256(), 0
        while offset < size:
            piece = os.read(fd, min(PIECE, size - offset))
            if not piece:
                break
            seen.update(piece)
            offset += len(piece)
        os.ftruncate(fd, offset)
        _put(sink, dump_json({"offset": offset}) + b"\n")
        while offset < size:
            piece = early or _get(source, min(PIECE, size - offset))
            early = b""
            if not piece:
                raise TransferRefused(f"the upload ended after {offset} of {size} bytes", "repeat it to go on")
            piece = piece[: size - offset]
            _write_all(fd, piece)
            seen.update(piece)
            offset += len(piece)
        if seen.hexdigest() != digest:
            os.unlink(part)
            raise TransferRefused("the bytes that arrived are not the ones announced", "put the file again")
        os.fsync(fd)
        os.replace(part, place)
        _sync_folder(place.parent)
    finally:
        os.close(fd)
    _drop_stale_parts(place.parent)
    _put(sink, done)


def _send(root: Path, source: int, sink: int) -> None:
    head, held = _line(source)
    path = inside(root, str(head.get("path") or ""))
    offset = _count(head, "offset")
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        raise TransferRefused(f"there is no file {path}", code="not-found") from None
    try:
        before = os.fstat(fd)
        if not stat.S_ISREG(before.st_mode):
            raise TransferRefused(f"{path} is not a file", "name one of the files in it", "bad-request")
        size = before.st_size
        offset = offset if offset <= size else 0
        seen, at, asked = hashlib.sha256(), 0, offset
        answer = dump_json({"size": size, "offset": offset, "mtime": before.st_mtime}) + b"\n"
        while at < offset:
            piece = _read(fd, path, offset - at)
            seen.update(piece)
            at += len(piece)
        _put(sink, answer)  # once its bytes can follow: how long they take is how quick the link is
        while at < size:
            while at == asked:
                wish, held = _line(source, held)
                asked = min(size, at + _count(wish, "take"))
            piece = _read(fd, path, asked - at)
            seen.update(piece)
            _put(sink, piece)
            at += len(piece)
        after = os.fstat(fd)
        changed = (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns)
        _put(sink, dump_json({"sha256": seen.hexdigest(), "changed": changed}) + b"\n")
    finally:
        os.close(fd)


def _writable(root: Path, text: str) -> Path:
    """The place a file goes to: under ``root``, its folder made, never over a folder, a link or a run's own files."""
    name = os.path.basename(text)
    if name in ("", ".", ".."):
        raise TransferRefused(f"{text!r:.200} names no file", "end the path with the file's name", "bad-request")
    folder = inside(root, os.path.dirname(text) or ".")
    parts = (*folder.relative_to(os.path.realpath(root)).parts, name)
    if owned(root, parts):
        raise TransferRefused(
            f"{folder / name} belongs to Eagledeck itself", "put it beside the runs, as in files/NAME"
        )
    os.makedirs(folder, exist_ok=True)
    place = inside(root, str(folder)) / name
    if place.is_symlink() or (place.exists() and not place.is_file()):
        raise TransferRefused(f"{place} is not a plain file", "put the file under another name")
    return place


def _read(fd: int, path: Path, most: int) -> bytes:
    piece = os.read(fd, min(PIECE, most))
    if not piece:
        raise TransferRefused(f"{path} became shorter meanwhile", "fetch it again")
    return piece


def _count(line: dict[str, Any], name: str) -> int:
    value = line.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TransferRefused(f"{name} must be a number of bytes", code="bad-request")
    return value


def _line(source: int, held: bytes = b"") -> tuple[dict[str, Any], bytes]:
    """The next line of the input, of which ``held`` was read before, and what was read behind it."""
    while b"\n" not in held:
        if len(held) >= MAX_LINE:
            raise ProtocolError("a line is too long")
        piece = _get(source, 4096)
        if not piece:
            raise ProtocolError("the input ended before a line did")
        held += piece
    line, rest = held.split(b"\n", 1)
    head = parse_json(line)
    if not isinstance(head, dict):
        raise ProtocolError("a line is not an object")
    return head, rest


def _get(fd: int, count: int) -> bytes:
    if not select.select([fd], [], [], SILENCE_S)[0]:
        raise TransferRefused("nothing came for too long", "repeat it: it continues where it was")
    return os.read(fd, count)


def _put(fd: int, data: bytes) -> None:
    os.set_blocking(fd, False)
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            if not select.select([], [fd], [], SILENCE_S)[1]:
                raise TransferRefused("the other side takes nothing") from None


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _hash_file(path: Path) -> str:
    seen = hashlib.sha256()
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(PIECE), b""):
            seen.update(piece)
    return seen.hexdigest()


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _drop_stale_parts(folder: Path) -> None:
    for part in folder.glob(".*.part"):
        try:
            if time.time() - part.stat().st_mtime > PART_KEPT_S:
                part.unlink()
        except OSError:
            pass
