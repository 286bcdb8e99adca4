"""The overview: everything about one run on one screen. It hands plain values to its panels."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.reactive import var

from console.acceptance import acceptance_of
from console.keys import KEYS
from console.screens import intents, restarting
from console.screens.actions import RunActions
from console.screens.arrangement import Facts
from console.screens.deck import Deck
from console.screens.plan_summary import what_follows
from console.screens.stage_clocks import StageClocks
from console.snapshot import LinkView, Snapshot
from console.widgets.acceptance import AcceptancePanel
from console.widgets.alerts import Alerts, alert_rows, alerts
from console.widgets.chart.line_chart import LineChart
from console.widgets.events import Events
from console.widgets.footer import Footer
from console.widgets.gpus import Gpus
from console.widgets.log import Log
from console.widgets.looks import CURRENT, TRYING
from console.widgets.panel import Panel
from console.widgets.rail import Rail
from console.widgets.tail import Tail
from console.widgets.targets import Targets, target_rows
from console.widgets.truth import Moment, Truth

if TYPE_CHECKING:
    from console.app import SnapshotSource

TICK_S = 1.0


class Overview(RunActions):
    """Shows one snapshot at a time. While frozen it keeps the newest one back and says how many came."""

    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            key.keys,
            f"app.{key.action}" if key.action == "detach" else key.action,
            key.help,
            id=key.id,
            show=False,
            key_display=key.shown,
        )
        for key in KEYS
    ]
    snapshot: var[Snapshot | None] = var(None, init=False, always_update=True)
    """The snapshot on show."""

    def __init__(self, collector: SnapshotSource, clock: Callable[[], float]) -> None:
        super().__init__(id="overview")
        self.collector = collector
        self.clock = clock
        self.latest: Snapshot | None = None
        self._arrived = 0.0
        self._frozen = False
        self._held_back = 0
        self._facts = Facts()
        self._broken: LinkView | None = None
        self._clocks = StageClocks()
        self.truth = Truth(id="truth")
        self.rail = Rail(id="rail")
        self.alerts = Alerts(id="alerts")
        self.chart = LineChart(id="chart")
        self.targets = Targets(id="targets")
        self.gpus = Gpus(id="gpus")
        self.acceptance = AcceptancePanel(id="acceptance")
        self.events = Events(id="events")
        self.log_panel = Log(id="log")
        self.footer = Footer(id="footer")
        self.panels: tuple[Panel, ...] = (
            self.truth,
            self.rail,
            self.alerts,
            self.chart,
            self.targets,
            self.gpus,
            self.acceptance,
            self.events,
            self.log_panel,
            self.footer,
        )
        self.deck = Deck(*self.panels)

    def compose(self) -> ComposeResult:
        yield self.deck

    def on_mount(self) -> None:
        self.set_interval(TICK_S, self.tick)
        self.tick()

    # ------------------------------------------------------------ data

    def take(self, snapshot: Snapshot) -> None:
        """A newer snapshot: shown at once, or held back by a freeze."""
        self.latest = snapshot
        self._arrived = self.clock()
        self.tell_editor(snapshot)
        if self._frozen:
            self._held_back += 1
            self.tick()
        else:
            self.snapshot = snapshot

    def watch_snapshot(self, snapshot: Snapshot | None) -> None:
        if snapshot is None:
            return
        if snapshot.link.state not in TRYING:
            self._broken = None if snapshot.link.state == "LIVE" else snapshot.link
        stale = snapshot.link.state not in CURRENT
        for panel in self.panels:
            panel.stale = stale
        self._show_rail(snapshot)
        self.chart.show(snapshot.curves, what_follows(snapshot))
        self.targets.show(snapshot)
        self.gpus.show(snapshot.gpus, snapshot.gpu_note)
        self.acceptance.show(acceptance_of(snapshot))
        self.events.show(snapshot.events, self.clock())
        self.log_panel.show(snapshot.log, snapshot.log_source)
        self.show_alerts()
        self.tick()
        self.ask_what_the_link_waits_for(snapshot)

    def _show_rail(self, snapshot: Snapshot) -> None:
        stages = self._clocks.tick(snapshot.stages, snapshot.link.state in CURRENT, self.clock())
        self.rail.show(stages, snapshot.through, self.now_host(snapshot))

    def watch_refusal(self) -> None:
        self.show_alerts()

    def watch_doing(self) -> None:
        self.tick()

    def show_alerts(self) -> None:
        """Alerts of the snapshot on show and of the last refused action; panels make room for them."""
        found = alerts(self.snapshot, self.refusal, self._broken)
        self.alerts.show(found)
        snapshot = self.snapshot
        known = acceptance_of(snapshot) if snapshot is not None else None
        self._facts = replace(
            self._facts,
            gpus=len(snapshot.gpus) if snapshot is not None else 0,
            alert_rows=alert_rows(found, self.size.width) if found else 0,
            target_rows=len(target_rows(snapshot)) if snapshot is not None else 3,
            acceptance=known is not None,
            rates=len(known.rates) if known is not None else 0,
            speed=known is not None and known.speed is not None,
            roomy_log=self.chart.view is None and bool(snapshot and snapshot.log),
        )
        self.deck.facts = self._facts

    def on_resize(self, event: Resize) -> None:
        self.show_alerts()

    def tick(self) -> None:
        """What changes without news: the clock and the age of the data, on a frozen screen too."""
        clock = time.strftime("%H:%M:%S", time.localtime(self.clock()))
        since = max(0.0, self.clock() - self._arrived) if self.latest is not None else 0.0
        self.truth.show(self.latest, Moment(since, clock, self._frozen, self._held_back))
        self.footer.show(self.idle_keys(), self.doing)
        if self.snapshot is not None and not self._frozen:
            self._show_rail(self.snapshot)

    def idle_keys(self) -> frozenset[str]:
        """Keys that have nothing to act on."""
        snapshot = self.latest
        asked = {
            "run.start": intents.start(snapshot),
            "run.stop": intents.stop(snapshot),
            "run.resume": intents.resume(snapshot),
            "run.restart": restarting.choose(snapshot),
            "run.kill": intents.kill(snapshot),
        }
        idle = {key for key, intent in asked.items() if isinstance(intent, intents.Refusal)}
        if snapshot is None or snapshot.plan is None:
            idle.add("run.edit")
        if self.chart.view is None:
            idle.add("chart.next")
        return frozenset(idle)

    # ------------------------------------------------------------ looking

    def _arrange(self, **changes: object) -> None:
        self._facts = replace(self._facts, **changes)  # type: ignore[arg-type]
        self.deck.facts = self._facts
        self.events.whole, self.log_panel.whole = self._facts.alone == "events", self._facts.alone == "log"

    def action_zoom(self) -> None:
        self._arrange(alone="" if self._facts.alone else self._pane)

    @property
    def _pane(self) -> str:
        """The panel that is in focus: the chart where none of the others is."""
        return "events" if self.focused is self.events else "log" if self.focused is self.log_panel else "chart"

    def action_next_pane(self) -> None:
        following: dict[str, Tail[Any] | None] = {"chart": self.events, "events": self.log_panel, "log": None}
        self._focus_on(following[self._pane])

    def _focus_on(self, pane: Tail[Any] | None) -> None:
        self.set_focus(pane)
        if self._facts.alone:
            self._arrange(alone=self._pane)

    def action_freeze(self) -> None:
        self._frozen = not self._frozen
        if not self._frozen:
            self._held_back = 0
            if self.latest is not None:
                self.snapshot = self.latest
        self.tick()

    def action_back(self) -> None:
        if self.refusal is not None:
            self.refusal = None
        elif self._facts.alone or self._facts.half_log:
            self._arrange(alone="", half_log=False)
        else:
            self.set_focus(None)

    def action_next_view(self) -> None:
        if not self.chart.next_view():
            self.say("There is no curve yet")

    def action_log_scale(self) -> None:
        if not self.chart.toggle_log():
            self.say("A logarithmic axis needs a positive value")

    def action_x_unit(self) -> None:
        if not self.chart.toggle_x():
            self.say("These curves hold no epochs")

    def action_marks(self) -> None:
        self.chart.next_marks()

    def action_follow(self) -> None:
        if self.log_panel.has_focus:
            self.log_panel.follow()
        else:
            self._focus_on(self.log_panel)

    def action_bigger_log(self) -> None:
        small = not self._facts.half_log and self._facts.alone != "log"
        self._arrange(alone="" if small else "log", half_log=True)

    def action_smaller_log(self) -> None:
        self._arrange(alone="", half_log=self._facts.alone == "log")

    @property
    def _scrolled(self) -> Tail[Any]:
        """What the keys scroll: the log, unless the events are in focus or alone."""
        return self.events if self.focused is self.events or self.events.whole else self.log_panel

    def action_tail_up(self) -> None:
        self._scrolled.scroll_by(-1)

    def action_tail_down(self) -> None:
        self._scrolled.scroll_by(1)

    def action_tail_page_up(self) -> None:
        self._scrolled.scroll_by(-self._scrolled.page())

    def action_tail_page_down(self) -> None:
        self._scrolled.scroll_by(self._scrolled.page())

    def action_tail_end(self) -> None:
        self._scrolled.follow()
