"""What went wrong with a request, and whether asking again can help. Imports openai and generate.answer."""

from __future__ import annotations

import enum

import openai

from pipeline.generate.answer import ErrorFrame, Unfinished, error_text

_CONTEXT_WORDS = (
    "context length", "maximum context", "longer than the model", "max_model_len", "input is too long", "context size",
)  # fmt: skip


class Kind(enum.Enum):
    DOWN = "down"
    """No connection, or it broke: the server may be restarting."""
    BUSY = "busy"
    """The server asks for patience (429, 503)."""
    BROKEN = "broken"
    """An answer failed on the server's side: another try may succeed."""
    CONTEXT = "context"
    """The prompt and the longest answer don't fit the server's context."""
    REFUSED = "refused"
    """This request will never be answered."""
    FATAL = "fatal"
    """No request will be answered: key, model or address are wrong."""


class Failure(Exception):
    """`detail` is a sentence part; status 0 when there was none; retry_after_s as the server asked, None otherwise."""

    def __init__(self, kind: Kind, detail: str, status: int = 0, retry_after_s: float | None = None) -> None:
        super().__init__(detail)
        self.kind, self.detail, self.status, self.retry_after_s = kind, detail, status, retry_after_s


def classify(error: BaseException) -> Failure | None:
    """The failure behind an exception of a request, None when it is none of the network's or the server's.

    openai 2 stands on httpx and openai 3 on httpx2, and both let transport errors out while a body is read; they are
    known by the module of their class, since only one of the two is installed.
    """
    if isinstance(error, Failure):
        return error
    if isinstance(error, Unfinished):
        # SGLang streams this refusal with status 200
        overlong = isinstance(error, ErrorFrame) and _about_context(str(error))
        return Failure(Kind.CONTEXT if overlong else Kind.BROKEN, str(error))
    if isinstance(error, openai.APIStatusError):
        return _status(error)
    if isinstance(error, TimeoutError | openai.APITimeoutError):
        return Failure(Kind.BROKEN, "the server went silent")
    if isinstance(error, openai.APIConnectionError):
        return Failure(Kind.DOWN, _cause(error))
    if isinstance(error, openai.APIError):
        return Failure(Kind.BROKEN, error_text(error.body or error.message))
    if isinstance(error, OSError) or any(
        base.__module__.partition(".")[0] in ("httpx", "httpx2", "httpcore", "httpcore2", "anyio")
        for base in type(error).__mro__
    ):
        return Failure(Kind.DOWN, _cause(error))
    return None


def _status(error: openai.APIStatusError) -> Failure:
    code = error.status_code
    detail = f"{code} {error_text(error.body or error.message)}"
    if code in (429, 503):
        return Failure(Kind.BUSY, detail, code, _retry_after(error))
    if code in (401, 403, 404, 405):
        return Failure(Kind.FATAL, detail, code)
    if code in (408, 409) or code >= 500:
        return Failure(Kind.BROKEN, detail, code, _retry_after(error))
    return Failure(Kind.CONTEXT if _about_context(detail) else Kind.REFUSED, detail, code)


def _about_context(detail: str) -> bool:
    return any(words in detail.lower() for words in _CONTEXT_WORDS)


def _retry_after(error: openai.APIStatusError) -> float | None:
    try:
        return max(0.0, float(error.response.headers.get("retry-after", "")))
    except ValueError:
        return None


def _cause(error: BaseException) -> str:
    deepest: BaseException = error
    while deepest.__cause__ is not None or deepest.__context__ is not None:
        following = deepest.__cause__ or deepest.__context__
        assert following is not None
        deepest = following
    words = " ".join(str(deepest).split())[:200]
    return words or type(deepest).__name__
