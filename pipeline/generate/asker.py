"""One prompt and the reply to it: asks, fits the answer into the context, makes token ids where the server gives none.

Imports this folder.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.generate.answer import Answer
from pipeline.generate.context import room_for
from pipeline.generate.dialect import Dialect
from pipeline.generate.endpoint import Endpoint
from pipeline.generate.endtoken import NO_END, EndToken
from pipeline.generate.failure import Failure, Kind
from pipeline.generate.judge import Reject, lacks_reasoning
from pipeline.generate.patience import Patience
from pipeline.generate.question import Chat
from pipeline.generate.retokenize import Tokenizer, add_ids
from pipeline.prompts import Prompt


@dataclass(frozen=True)
class Verdicts:
    """What decides about an answer: whether it must have reasoning, the verifier's vocabulary size, and, for a server
    without token ids, the tokenizer that makes them (`opened`: the prompt ends in <think>; `end`: the end token)."""

    reasoning: bool | None
    vocab_size: int | None
    tokenizer: Tokenizer | None = None
    opened: bool = False
    end: EndToken = NO_END


@dataclass(frozen=True)
class Reply:
    """What came of a prompt: an answer, or why there is none; both where its token ids can't be proven."""

    chat: Chat
    answer: Answer | None
    reject: Reject | None


class Asker:
    """Asks one server in the way that was found to work. Any number of prompts at once."""

    def __init__(self, endpoint: Endpoint, patience: Patience, dialect: Dialect, verdicts: Verdicts) -> None:
        self._endpoint, self._patience = endpoint, patience
        self.dialect, self.verdicts = dialect, verdicts

    @property
    def away(self) -> str:
        """Why the server is being waited for, in words; "" while it answers."""
        return self._patience.away

    async def reply(self, prompt: Prompt, system: str) -> Reply:
        """The reply to a prompt, behind the system message where it has none of its own ("": none).

        Raises Failure of kind FATAL, and StageError when the server stays away.
        """
        chat = Chat(prompt.messages, prompt.tools)
        if system and chat.messages[0]["role"] not in ("system", "developer"):
            chat = replace(chat, messages=({"role": "system", "content": system}, *chat.messages))
        verdicts = self.verdicts
        try:
            answer = await self._ask(chat)
            if verdicts.tokenizer is None or lacks_reasoning(answer, verdicts.reasoning):
                return Reply(chat, answer, None)
            proven = await add_ids(answer, chat, verdicts.tokenizer, opened=verdicts.opened, end=verdicts.end)
        except Failure as failure:
            if failure.kind is Kind.FATAL:
                raise
            cause = failure.kind.value if failure.kind in (Kind.CONTEXT, Kind.REFUSED) else "failed"
            return Reply(chat, None, Reject(cause, failure.detail))
        if isinstance(proven, Reject):
            return Reply(chat, answer, proven)
        return Reply(chat, proven, None)

    async def _ask(self, chat: Chat) -> Answer:
        """Asks; when prompt and longest answer exceed the context together, again for what the context leaves."""
        asking = self.dialect.asking

        async def at_most(tokens: int) -> Answer:
            return await self._patience.ask(chat, replace(asking, max_tokens=tokens))

        try:
            return await at_most(asking.max_tokens)
        except Failure as failure:
            if failure.kind is not Kind.CONTEXT:
                raise
            left = await room_for(chat, asking.model, failure.detail, self._endpoint, lambda: at_most(1))
            if not 0 < left < asking.max_tokens:
                raise
            return await at_most(left)
