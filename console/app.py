"""The console as an app: it draws what a collector knows and hands actions to it. It holds no connection and no job.

The connection is opened and closed outside: `async with Collector(...) as c: await ConsoleApp(c).run_async()`.
Imports Textual, and of ours only what the first screen needs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from textual.app import App
from textual.message import Message
from textual.screen import Screen

import themes
from console.screens.intents import leaving
from console.screens.overview import Overview
from console.snapshot import BudgetView, Snapshot
from console.terminal import EVERY_S, gone, standard_terminal
from console.widgets.palette import Palette
from themes.palettes import EAGLEDECK, EAGLEDECK_ANSI, THEMES, variable_defaults


class SnapshotSource(Protocol):
    """What the app needs of console.collector.Collector. Actions raise errors that carry `message` and `remedy`."""

    @property
    def snapshot(self) -> Snapshot: ...
    def subscribe(self, callback: Callable[[], None], /) -> Callable[[], None]: ...
    async def start(self, *, first: str | None = None, through: str | None = None, stale: str = "refuse") -> None: ...
    async def stop(self, stage: str | None = None) -> None: ...
    async def resume(self, stage: str | None = None, *, stale: str = "refuse") -> None: ...
    async def restart(self, stage: str, *, stale: str = "refuse") -> None: ...
    async def kill(self, stage: str | None = None) -> None: ...
    async def set(self, changes: Mapping[str, object], note: str = "") -> None: ...
    async def budget(self, plan: Mapping[str, object]) -> BudgetView | None: ...
    async def select(self, run: str) -> None: ...
    def retry_now(self) -> None: ...
    async def confirm_host_key(self, fingerprint: str) -> None: ...
    async def unlock(self, file: str, passphrase: str) -> None: ...


class SnapshotArrived(Message):
    """The collector knows something new. Only the newest one counts."""

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, SnapshotArrived)


class ConsoleApp(App[None]):
    """The console. `clock` gives wall seconds (tests freeze it)."""

    TITLE = "eagledeck"
    CSS_PATH = Path(themes.__file__).parent / "console.tcss"
    ENABLE_COMMAND_PALETTE = True

    def __init__(self, collector: SnapshotSource, *, clock: Callable[[], float] = time.time) -> None:
        # NO_COLOR means no colour codes at all, which only native colours make possible: nothing is blended into greys.
        plain = "NO_COLOR" in os.environ
        super().__init__(ansi_color=True if plain else None)
        self.collector = collector
        self.clock = clock
        self._unsubscribe: Callable[[], None] | None = None
        self._palette: tuple[str, Palette] | None = None
        for theme in THEMES:
            self.register_theme(theme)
        if "TEXTUAL_THEME" not in os.environ:
            few = plain or self.console.color_system not in {"truecolor", "256"}
            # Set before the first frame: a theme chosen on mount would draw everything twice.
            self.set_reactive(App.theme, (EAGLEDECK_ANSI if few else EAGLEDECK).name)
            self.stylesheet.set_variables(self.get_css_variables())
            self._refresh_truecolor_filter(self.ansi_theme)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return variable_defaults(self.current_theme)

    @property
    def palette(self) -> Palette:
        """The styles of the theme in use."""
        theme = self.current_theme
        if self._palette is None or self._palette[0] != theme.name:
            self._palette = theme.name, Palette(self.get_css_variables(), theme.ansi)
        return self._palette[1]

    def get_default_screen(self) -> Screen[object]:
        return Overview(self.collector, self.clock)

    def on_mount(self) -> None:
        self._unsubscribe = self.collector.subscribe(self._on_change)
        self.post_message(SnapshotArrived())
        if not self.is_headless and (terminal := standard_terminal()) is not None:
            self.set_interval(EVERY_S, lambda: self._leave_without(terminal))

    def _leave_without(self, terminal: int) -> None:
        if gone(terminal):
            self.exit()

    def on_unmount(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()

    def _on_change(self) -> None:
        self.post_message(SnapshotArrived())

    def on_snapshot_arrived(self) -> None:
        overview = self.screen_stack[0]
        if isinstance(overview, Overview):
            overview.take(self.collector.snapshot)

    def action_detach(self) -> None:
        """Leave; nothing on the host stops."""
        self.exit(message=leaving(self.collector.snapshot))

    async def action_quit(self) -> None:
        """Textual's own ctrl+q is the same as q."""
        self.action_detach()

    def action_help_quit(self) -> None:
        """ctrl+c stops nothing here."""
        self.notify("q leaves the console; the run keeps going. x stops the stage.", markup=False)
