"""The console with something slow to begin: it begins when the first frame is on screen.

Imports Textual, so only the verbs that open the console import this, when they do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from console.app import ConsoleApp
from console.collector import Collector


class Opening(ConsoleApp):
    """`begin` connects, or prepares what is connected to. Its failure ends the console and is raised by `show`."""

    def __init__(self, collector: Collector, begin: Callable[[Opening], Awaitable[None]]) -> None:
        super().__init__(collector)
        self._begin = begin
        self._beginning: asyncio.Task[None] | None = None
        self._failure: Exception | None = None

    def on_ready(self) -> None:
        """Textual sends it when the first frame has been displayed."""
        self._beginning = asyncio.create_task(self._try(), name="opening")

    async def _try(self) -> None:
        try:
            await self._begin(self)
        except Exception as error:
            self._failure = error
            self.exit()

    async def show(self) -> None:
        """Until the person detaches. What had not begun by then is given up."""
        await self.run_async()
        if self._beginning is not None:
            self._beginning.cancel()
            await asyncio.wait({self._beginning})
        if self._failure is not None:
            raise self._failure
