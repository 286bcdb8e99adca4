"""What the keys do to a run: ask first, then hand it to the collector in a worker, so that no key waits for a host.

Whatever an action raises becomes a message; the app goes on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from textual.reactive import var
from textual.screen import Screen

from console.screens import intents, restarting
from console.screens.hostkey import HostKeyQuestion, host_key_intent, host_key_question
from console.screens.intents import Intent, Refusal
from console.widgets.alerts import Alert
from console.widgets.looks import active_stage

if TYPE_CHECKING:
    from console.app import SnapshotSource
    from console.screens.edit_plan import EditPlan
    from console.snapshot import LinkView, Snapshot

SAID_S = 2.5
"""Long enough to read a line in; what needs more time is an alert."""


class RunActions(Screen[object]):
    """The part of the overview that acts."""

    collector: SnapshotSource
    clock: Callable[[], float]
    latest: Snapshot | None
    refusal: var[Alert | None] = var(None, init=False)
    """The last action that failed; it stays until the next one, or Esc."""
    doing: var[str] = var("", init=False)
    """The action under way, for the footer."""
    _asked_about: HostKeyQuestion | str | None = None
    _editor: EditPlan | None = None

    def now_host(self, snapshot: Snapshot) -> float:
        """Wall seconds on the host, by the skew that the link has measured (host minus this machine)."""
        return self.clock() + (snapshot.link.skew_s or 0.0)

    # ------------------------------------------------------------ saying and doing

    def say(self, message: str, remedy: str = "") -> None:
        """A short notice; text from a host is never read as markup."""
        self.notify(f"{message} · {remedy}" if remedy else message, timeout=SAID_S, markup=False)

    def perform(self, label: str, call: Callable[[], Awaitable[object]], done: str) -> None:
        """Run an action in a worker; `done` is said when the host has accepted it."""
        self.refusal = None
        self.doing = label
        self.run_worker(self._perform(label, call, done), name=label, group="actions", exit_on_error=False)

    async def _perform(self, label: str, call: Callable[[], Awaitable[object]], done: str) -> None:
        try:
            await call()
        except Exception as error:  # whatever it is, it ends as a sentence on the screen and not as a traceback
            message, remedy = told(error)
            # the arithmetic below a first line is for `eagledeck budget`, where it keeps its columns
            self.refusal = Alert("bad", f"{label}: {message.splitlines()[0]}", remedy)
        else:
            self.say(done)
        finally:
            if self.doing == label:
                self.doing = ""

    def ask(self, intent: Intent | Refusal, act: Callable[[str], None], opened_by: str = "") -> None:
        """Ask, and act on an answer that is not Cancel; a refusal is said at once. `opened_by`: see Question."""
        if isinstance(intent, Refusal):
            self.say(intent.message, intent.remedy)
            return
        from console.screens.question import Question  # after the first paint

        self.app.push_screen(Question(intent, opened_by), lambda answer: act(answer) if answer else None)

    # ------------------------------------------------------------ the run

    def action_start(self) -> None:
        def act(stale: str) -> None:
            self.perform("start", lambda: self.collector.start(stale=stale), "The host is starting the run")

        self.ask(intents.start(self.latest), act, "s")

    def action_stop(self) -> None:
        now = self.now_host(self.latest) if self.latest is not None else None
        intent = intents.stop(self.latest, now)

        def act(_: str) -> None:
            asked = intent.stage if isinstance(intent, Intent) else ""
            now = active_stage(self.latest.stages) if self.latest is not None else None
            if asked and now is not None and now.name != asked:
                self.say(f"{asked} has ended by itself, and {now.name} is {now.state}", "x stops that one")
                return
            # The whole run is asked, so that the conductor starts no next stage should this one end by itself just now.
            done = f"{asked} was asked to save and end" if asked else "The run was asked to stop"
            self.perform(f"stop {asked}".rstrip(), self.collector.stop, done)

        self.ask(intent, act, "x")

    def action_resume(self) -> None:
        intent = intents.resume(self.latest)

        def act(stale: str) -> None:
            stage = intent.stage if isinstance(intent, Intent) else ""
            done = f"The host is resuming {stage}"
            self.perform(f"resume {stage}", lambda: self.collector.resume(stage, stale=stale), done)

        self.ask(intent, act, "r")

    def action_restart(self) -> None:
        def chosen(name: str) -> None:
            if self.latest is not None:
                confirm(restarting.confirm(self.latest, name))

        def confirm(intent: Intent | Refusal) -> None:
            stage = intent.stage if isinstance(intent, Intent) else ""
            self.ask(intent, lambda stale: act(stage, stale), "n")

        def act(stage: str, stale: str) -> None:
            done = f"{stage} begins a new output"
            self.perform(f"restart {stage}", lambda: self.collector.restart(stage, stale=stale), done)

        intent = restarting.choose(self.latest)
        if isinstance(intent, Intent) and not intent.stage:
            self.ask(intent, chosen, "n")
        else:
            confirm(intent)

    def action_kill(self) -> None:
        intent = intents.kill(self.latest)

        def act(_: str) -> None:
            stage = intent.stage if isinstance(intent, Intent) else ""
            self.perform(f"kill {stage}", lambda: self.collector.kill(stage), f"{stage} is being killed")

        self.ask(intent, act)

    def action_edit(self) -> None:
        snapshot = self.latest
        if snapshot is None or snapshot.plan is None:
            self.say("The plan has not arrived yet", "wait for the host")
            return
        from console.screens.edit_plan import EditPlan  # after the first paint
        from pipeline.fields import ConfigError

        def act(changes: dict[str, object] | None) -> None:
            self._editor = None
            if changes:
                text = ", ".join(f"{key}={value}" for key, value in changes.items())
                self.perform("save the plan", lambda: self.collector.set(changes), f"Saved: {text}")

        try:
            editor = EditPlan(snapshot, self.collector)
        except ConfigError as error:
            self.say(error.message, error.remedy)
        else:
            self._editor = editor
            self.app.push_screen(editor, act)

    def tell_editor(self, snapshot: Snapshot) -> None:
        """An open plan editor says what its changes do to the run as it is now."""
        if self._editor is not None and self._editor.is_running:
            self._editor.follow(snapshot)

    def _other_run(self, by: int) -> None:
        snapshot = self.latest
        runs = snapshot.runs if snapshot is not None else ()
        if snapshot is None or len(runs) < 2:
            self.say("This host has no other run")
            return
        place = runs.index(snapshot.run) if snapshot.run in runs else 0
        run = runs[(place + by) % len(runs)]
        self.perform(f"open {run}", lambda: self.collector.select(run), f"Showing {run}")

    def action_previous_run(self) -> None:
        self._other_run(-1)

    def action_next_run(self) -> None:
        self._other_run(1)

    # ------------------------------------------------------------ the link

    def action_retry(self) -> None:
        snapshot = self.latest
        if snapshot is not None and snapshot.link.state == "LIVE":
            self.say("The connection is live")
            return

        async def retry() -> None:
            self.collector.retry_now()

        self.perform("retry", retry, "Connecting")

    def ask_what_the_link_waits_for(self, snapshot: Snapshot) -> None:
        """Once for each key that blocks; a Cancel is not asked again until H."""
        question = _waited_for(snapshot.link)
        if question is None:
            self._asked_about = None
        elif question != self._asked_about and self.app.screen is self:
            self._asked_about = question
            self._ask_for_the_link(question)

    def action_host_key(self) -> None:
        question = _waited_for(self.latest.link) if self.latest is not None else None
        if question is None:
            self.say("The connection waits for no key")
        else:
            self._ask_for_the_link(question)

    def _ask_for_the_link(self, question: HostKeyQuestion | str) -> None:
        if isinstance(question, HostKeyQuestion):
            self._ask_host_key(question)
            return
        from console.screens.passphrase import Passphrase  # after the first paint

        def act(typed: str | None) -> None:
            if typed:
                self.perform("open the key", lambda: self.collector.unlock(question, typed), "Opened; connecting")

        host = self.latest.link.host if self.latest is not None else ""
        self.app.push_screen(Passphrase(host, question), act)

    def _ask_host_key(self, question: HostKeyQuestion) -> None:
        def act(_: str) -> None:
            self.perform(
                "pin the host key", lambda: self.collector.confirm_host_key(question.offered), "Pinned; connecting"
            )

        self.ask(host_key_intent(question), act)

    def action_help(self) -> None:
        from console.screens.help import Help  # after the first paint

        self.app.push_screen(Help())


def _waited_for(link: LinkView) -> HostKeyQuestion | str | None:
    """The host key that blocks the link, or the identity file that a passphrase would open."""
    return host_key_question(link) or (link.locked[0] if link.state == "BLOCKED" and link.locked else None)


def told(error: BaseException) -> tuple[str, str]:
    """(message, remedy) of any error, in words."""
    message: Any = getattr(error, "message", None)
    remedy: Any = getattr(error, "remedy", "")
    if isinstance(message, str) and message:
        return message, remedy if isinstance(remedy, str) else ""
    return str(error) or type(error).__name__, ""
