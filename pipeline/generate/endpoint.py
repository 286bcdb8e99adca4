"""The server that answers: addresses, one question, and whether it lives. Imports openai and this folder's modules.

Streams are read by hand from openai's raw response. openai's own reader builds an object for every token, ends quietly
when a stream is cut, and splits lines at characters that may stand inside JSON.
"""

from __future__ import annotations

import asyncio
import importlib
import ipaddress
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import openai

from pipeline.generate.answer import Answer, Gathering, Unfinished, error_text
from pipeline.generate.failure import Failure, Kind, classify
from pipeline.generate.question import Asking, Chat

IDLE_CONNECTION_S = 4.0
"""vLLM and SGLang close idle connections after 5 s; one that is reused at that moment breaks."""
SMALL_CALL_S = 30.0
"""A server that doesn't tell its health or its models within this time hangs."""
SLOWEST_TOKENS_PER_S = 1.0
"""An answer may take as long as its tokens take at this speed, on top of the timeout."""


def base_url(endpoint: str) -> str:
    """The address up to and with /v1, from whatever of it was given. Raises ValueError."""
    parts = urlsplit(endpoint.strip() if "://" in endpoint else f"http://{endpoint.strip()}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{endpoint!r} is no URL of a server")
    path = parts.path.rstrip("/").removesuffix("/chat/completions")
    if not path.endswith("/v1"):
        path += "/v1"
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


class Endpoint:
    """A client of one server. Close it."""

    def __init__(self, url: str, *, api_key: str, connections: int) -> None:
        self.url = url
        self.root = url.removesuffix("/v1")
        # a URL may carry a password
        self.shown = url.replace(f"{urlsplit(url).netloc.rpartition('@')[0]}@", "")
        transport: Any = importlib.import_module(openai.DefaultAsyncHttpxClient.__mro__[1].__module__.partition(".")[0])
        limits = transport.Limits(
            max_connections=None, max_keepalive_connections=connections, keepalive_expiry=IDLE_CONNECTION_S
        )
        self._client = openai.AsyncOpenAI(
            base_url=url,
            api_key=api_key or "EMPTY",
            max_retries=0,
            timeout=openai.Timeout(None, connect=10.0),
            # a proxy from the environment must not come between this host and itself
            http_client=openai.DefaultAsyncHttpxClient(limits=limits, trust_env=not _loopback(url)),
        )

    async def close(self) -> None:
        await self._client.close()

    async def ask(self, chat: Chat, asking: Asking) -> Answer:
        """One whole answer. Raises Failure."""
        create = self._client.chat.completions.with_streaming_response.create
        clock = asyncio.get_running_loop().time
        latest = clock() + asking.timeout_s + asking.max_tokens / SLOWEST_TOKENS_PER_S
        try:
            async with asyncio.timeout_at(
                min(latest, clock() + asking.timeout_s) if asking.stream else latest
            ) as limit:
                async with create(**asking.body(chat)) as response:
                    if "text/event-stream" not in response.headers.get("content-type", ""):
                        return _whole(await response.read())
                    gathering = Gathering()
                    async for frame in frames(response.iter_bytes()):
                        gathering.add(frame)
                        limit.reschedule(min(latest, clock() + asking.timeout_s))
                    return gathering.finish()
        except Exception as error:
            failure = classify(error)
            if failure is None:
                raise
            raise failure from error

    async def models(self) -> list[dict[str, Any]]:
        """The rows of /v1/models (`id`, vLLM also `max_model_len`). Raises Failure."""
        reply = await self._get(f"{self.url}/models")
        rows = reply.get("data") if isinstance(reply, Mapping) else None
        if not isinstance(rows, list):
            raise Failure(Kind.BROKEN, f"/v1/models answers with {_shown(reply)}")
        return [row for row in rows if isinstance(row, dict)]

    async def alive(self) -> bool:
        """Whether the server answers: /health, or /v1/models where a server has no such page."""
        for page in (f"{self.root}/health", f"{self.url}/models"):
            try:
                await self._get(page)
                return True
            except Failure as failure:
                if failure.kind in (Kind.DOWN, Kind.BUSY) or failure.status >= 500:
                    return False
        return True

    async def post(self, page: str, body: Mapping[str, Any]) -> Any:
        """POSTs JSON to a page beside /v1, such as `/tokenize`. Raises Failure."""
        return await self._call(self._client.post(self.root + page, cast_to=object, body=dict(body)))

    async def _get(self, url: str) -> Any:
        return await self._call(self._client.get(url, cast_to=object))

    async def _call(self, call: Any) -> Any:
        try:
            async with asyncio.timeout(SMALL_CALL_S):
                return await call
        except TimeoutError:
            raise Failure(Kind.DOWN, f"no answer within {SMALL_CALL_S:.0f} s") from None
        except Exception as error:
            garbage = isinstance(error, ValueError | RecursionError)
            failure = classify(error) or (Failure(Kind.BROKEN, "garbage") if garbage else None)
            if failure is None:
                raise
            raise failure from error


async def frames(pieces: AsyncIterator[bytes]) -> AsyncIterator[Any]:
    """Decoded `data:` frames of a server-sent event stream until [DONE]. Raises Unfinished for what is no JSON.

    Comments (vLLM's keep-alive) are passed over; they give no frame, so they don't count as progress.
    """
    data: list[bytes] = []
    async for line in _lines(pieces):
        if line:
            name, _, value = line.partition(b":")
            if name == b"data":
                data.append(value.removeprefix(b" "))
            continue
        if data:
            text = b"\n".join(data)
            data = []
            if text.strip() == b"[DONE]":
                return
            yield _decode(text)


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line.rstrip(b"\r")
    # a last frame counts even if the server forgot the empty line behind it
    yield rest.rstrip(b"\r")
    yield b""


def _whole(data: bytes) -> Answer:
    gathering = Gathering()
    gathering.add(_decode(data))
    return gathering.finish()


def _decode(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise Unfinished(f"garbage instead of JSON: {_shown(data.decode('utf-8', 'replace'))}") from None


def _shown(value: Any) -> str:
    text = error_text(value)
    return repr(text[:80]) if text else "nothing"


def _loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
