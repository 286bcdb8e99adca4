"""Files to and from the host: put and fetch, each on a channel of its own, resumable, hashed, with progress.

The host's end, and the framing, are remote/agent/transfer.py. A loss in the middle is waited out: the transfer goes on
where it was when the link is live again; a process that was ended goes on the next time it is asked the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from remote.channel import Channel, ChannelEnded
from remote.errors import ConnectionLost, DeadlineExceeded, NotConnected, RemoteError
from remote.link import Kind, Link
from remote.protocol import MAX_LINE, ProtocolError, dump_json, parse_json
from remote.sanitize import scrub
from remote.session import PIECE_S, Session

PIECE = 256 * 1024
LEAST_PART, FIRST_PART, MOST_PART = 4096, 32 * 1024, 16 << 20
LEAST_TAKEN, FIRST_TAKEN, MOST_TAKEN = 2048, 4096, 1 << 20
"""Two of the greatest make the window of an SSH channel: more would not be under way anyway."""
STALL_S = 120.0
"""Without a byte for this long, the transfer is tried anew."""
HASH_S = 1800.0
"""The host may have to read what was transferred of a file before it answers."""
BUSY_S = 2.0
TRIES = 5
"""Losses in a row without a byte gained."""

OnProgress = Callable[[int, int], None]
"""Called with bytes there and bytes in all."""


@dataclass(frozen=True)
class Transferred:
    """``path``: where the file is now, on the host (put) or here (fetch)."""

    path: str
    size: int
    sha256: str


class _Changed(Exception):
    """What was fetched so far belongs to another version of the file."""


def _no_progress(done: int, total: int) -> None:
    pass


async def put(link: Link, local: Path, remote_path: str, progress: OnProgress = _no_progress) -> Transferred:
    """Copies a file to ``remote_path`` (relative to the host's root, or absolute under it), over what is there.

    RemoteError as the host gives it (no space, outside the root), or when the file here cannot be read.
    """
    try:
        size, digest = local.stat().st_size, await asyncio.to_thread(_hash, local)
    except OSError as error:
        raise RemoteError(f"{local} cannot be read: {error.strerror}.", "Check the path.", "local") from None
    head = {"path": remote_path, "size": size, "sha256": digest}

    async def once(gained: Callable[[int], None]) -> Transferred:
        channel = await link.session.open_helper("receive")
        try:
            await channel.write(dump_json(head) + b"\n")
            offset = _offset(await _line(channel, HASH_S), size)
            progress(offset, size)
            with local.open("rb") as file:

                def sent(at: int) -> None:
                    gained(at)
                    progress(at, size)

                await _send(link.session, channel, file, offset, size, sent)
            done = (await _line(channel, HASH_S)).get("done")
            if not isinstance(done, dict):
                raise RemoteError("The host did not confirm the upload.", "Put the file again.")
            return Transferred(str(done.get("path")), size, digest)
        finally:
            await channel.close()

    return await _through_losses(link, once)


async def fetch(link: Link, remote_path: str, local: Path, progress: OnProgress = _no_progress) -> Transferred:
    """Copies a file of the host to ``local`` (a folder keeps its name), over what is there, once it is whole.

    What has arrived lies beside it as ``.NAME.part`` and is continued by the next fetch. RemoteError as ``put``.
    """
    place = local / PurePosixPath(remote_path).name if local.is_dir() else local
    part = place.with_name(f".{place.name}.part")

    async def once(gained: Callable[[int], None]) -> Transferred:
        channel = await link.session.open_helper("send")
        try:
            with _alone(part) as file:
                seen, have = await asyncio.to_thread(_hash_open, file)
                await channel.write(dump_json({"path": remote_path, "offset": have}) + b"\n")
                answer = await _line(channel, HASH_S)
                size, offset = answer.get("size"), _offset(answer, have)
                if not isinstance(size, int) or offset != have:
                    raise _Changed

                def came(piece: bytes, at: int) -> None:
                    file.write(piece)
                    seen.update(piece)
                    gained(at)
                    progress(at, size)

                await _take(channel, have, size, came)
                end = await _line(channel, HASH_S)
                if end.get("sha256") != seen.hexdigest() or end.get("changed"):
                    raise _Changed
                file.flush()
                await asyncio.to_thread(os.fsync, file.fileno())
                os.replace(part, place)
            return Transferred(str(place), size, seen.hexdigest())
        finally:
            await channel.close()

    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            return await _through_losses(link, once)
        except _Changed:
            part.unlink()
        try:
            return await _through_losses(link, once)
        except _Changed:
            part.unlink()
            raise RemoteError(f"{remote_path} is being written to.", "Fetch it when it is finished.", "busy") from None
    except OSError as error:
        raise RemoteError(
            f"{place} cannot be written: {error.strerror}.", "Check the path and the space.", "local"
        ) from (None)


@contextlib.contextmanager
def _alone(part: Path) -> Iterator[BinaryIO]:
    """What came of a file so far, opened to go on with. RemoteError while another process goes on with it."""
    while True:
        with part.open("ab+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    name = part.name[1 : -len(".part")]
                    message = f"{name} is being fetched by another command into {part.parent}."
                    raise RemoteError(message, "Wait for it, or fetch into another folder.", "local") from None
                # a filesystem without locks: two fetches at once are not found out, and the hash tells
            if os.path.exists(part) and os.path.samestat(os.fstat(file.fileno()), os.stat(part)):
                yield file
                return
            # the other one has just put it into its place


async def _through_losses(link: Link, once: Callable[[Callable[[int], None]], Awaitable[Transferred]]) -> Transferred:
    best = tries = waits = 0

    def gained(at: int) -> None:
        nonlocal best, tries
        if at > best:
            best, tries = at, 0

    while True:
        state = await link.wait_for(Kind.LIVE, Kind.STALE, Kind.BLOCKED, Kind.IDLE)
        if state.kind in (Kind.BLOCKED, Kind.IDLE):
            raise state.error or NotConnected(f"The link to {link.spec.alias} is closed.")
        try:
            return await once(gained)
        except (ConnectionLost, DeadlineExceeded, NotConnected):
            tries += 1
            if tries >= TRIES:
                raise
            await asyncio.sleep(0.2)  # the link learns of the same loss a moment later
        except RemoteError as error:
            # the host has not noticed yet that the connection before this one is gone
            waits += 1
            if error.code != "busy" or not tries or waits * BUSY_S > STALL_S + BUSY_S:
                raise
            await asyncio.sleep(BUSY_S)


async def _send(
    session: Session, channel: Channel, file: BinaryIO, offset: int, size: int, sent: Callable[[int], None]
) -> None:
    """In parts that take about a second. A ping behind each of them comes back when the host has it: what waits in
    the buffers of a slow link would hold up every key press, and after 20 s look like a dead connection."""
    file.seek(offset)
    at, part = offset, FIRST_PART
    try:
        while at < size:
            began, end = time.monotonic(), min(size, at + part)
            while at < end:
                piece = await asyncio.to_thread(file.read, min(PIECE, end - at))
                if not piece:
                    raise RemoteError("The file became shorter meanwhile.", "Put it again.", "local")
                async with asyncio.timeout(STALL_S):
                    await channel.write(piece)
                at += len(piece)
            await session.ping()
            part = next_part(part, time.monotonic() - began)
            sent(at)
    except TimeoutError:
        raise ConnectionLost("The host takes no more bytes.") from None
    except ConnectionLost:
        await _line(channel, 1.0)  # the host may have said why it hung up
        raise


async def _take(channel: Channel, offset: int, size: int, came: Callable[[bytes, int], None]) -> None:
    """In parts, two asked for at a time, that together take about a second: the link is never idle, and an answer to a
    key press never waits longer behind what is in the host's buffers."""
    at = asked = offset
    part = FIRST_TAKEN
    under_way: deque[tuple[int, int, float]] = deque()
    while at < size:
        while len(under_way) < 2 and asked < size:
            count = min(part, size - asked)
            asked += count
            under_way.append((asked, asked - at, time.monotonic()))
            await channel.write(dump_json({"take": count}) + b"\n")
        end, waited_for, since = under_way.popleft()
        while at < end:
            piece = await _piece(channel, end - at)
            at += len(piece)
            came(piece, at)
        part = next_taken(waited_for, time.monotonic() - since)


def next_taken(under_way: int, took_s: float) -> int:
    """Bytes to ask for, after all that was under way took so long: what the link carries in half of PIECE_S.

    As many as that at most: where a link lets the first bytes through at once, the next may not be.
    """
    carried = int(under_way * PIECE_S / 2 / max(took_s, 0.001))
    return max(LEAST_TAKEN, min(carried, under_way, MOST_TAKEN))


def next_part(part: int, took_s: float) -> int:
    """Bytes to send before the next ping, after ``part`` took so long: what the link carries in PIECE_S."""
    carried = int(part * PIECE_S / max(took_s, 0.001))
    return max(LEAST_PART, min(carried, 4 * part, MOST_PART))


async def _piece(channel: Channel, left: int) -> bytes:
    try:
        async with asyncio.timeout(STALL_S):
            piece = await channel.read(min(PIECE, left))
    except TimeoutError:
        raise ConnectionLost("The host sends no more bytes.") from None
    if not piece:
        raise ConnectionLost("The host ended the transfer.")
    return piece


async def _line(channel: Channel, timeout_s: float) -> dict[str, Any]:
    """The next line. RemoteError when it is the host's refusal; ConnectionLost when there is none."""
    try:
        async with asyncio.timeout(timeout_s):
            answer = parse_json(await channel.read_until(b"\n", MAX_LINE))
    except TimeoutError:
        raise DeadlineExceeded("The host did not answer in time.", "Try again.") from None
    except ChannelEnded:
        raise ConnectionLost("The host ended the transfer.") from None
    except ProtocolError as error:
        raise RemoteError(f"The host's answer makes no sense: {error.message}.") from None
    answer = scrub(answer)
    if not isinstance(answer, dict):
        raise RemoteError(f"The host's answer makes no sense: {json.dumps(answer)[:80]}.")
    refusal = answer.get("error")
    if isinstance(refusal, dict):
        message, remedy = str(refusal.get("message") or "the host refused"), str(refusal.get("remedy") or "")
        raise RemoteError(message, remedy, str(refusal.get("code") or "refused"))
    return answer


def _offset(answer: dict[str, Any], limit: int) -> int:
    offset = answer.get("offset")
    if not isinstance(offset, int) or not 0 <= offset <= limit:
        raise RemoteError("The host's answer makes no sense: no offset.")
    return offset


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        digest: str = _hash_open(file)[0].hexdigest()
        return digest


def _hash_open(file: BinaryIO) -> tuple[Any, int]:
    """The running hash and the length of all of ``file``; it stands at its end."""
    file.seek(0)
    seen, length = hashlib.sha256(), 0
    while piece := file.read(PIECE):
        seen.update(piece)
        length += len(piece)
    return seen, length
