"""The plan editor: a list of parameters, one input, and what the changes do before they are saved.

The run goes on while it is open. What saving does is told of the run as it is now, and nothing is saved by a person who
has been told something else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Input, Static

from console.screens.choice import Choice
from console.screens.dialog import Dialog
from console.screens.plan_list import PlanList
from console.screens.plan_rows import budget_words, effect_of, moved_words, plan_rows, shown_value
from console.snapshot import BudgetView, Snapshot
from console.widgets.looks import active_stage
from pipeline.config import LIVE, Plan
from pipeline.fields import ConfigError

if TYPE_CHECKING:
    from console.app import SnapshotSource


class EditPlan(Dialog[dict[str, object] | None]):
    """The result is the changes as typed, by key, or None. Raises ConfigError for a plan it can't read."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "cancel", id="edit.cancel", show=False),
        Binding("s", "save", "save", id="edit.save", show=False),
        Binding("slash", "find", "find a key", id="edit.find", show=False),
        Binding("backspace,delete", "undo", "take the change back", id="edit.undo", show=False),
    ]

    def __init__(self, snapshot: Snapshot, collector: SnapshotSource) -> None:
        super().__init__()
        self._snapshot = snapshot
        self._collector = collector
        self._plan = Plan.from_json(dict(snapshot.plan or {}))
        self._changes: dict[str, object] = {}
        self._refused = ""
        self._news = ""
        self._told = self._does()
        self._confirmed = False
        self._budget = self._budget_text(snapshot.budget)
        self._list = PlanList(plan_rows(self._plan))
        self._doc = Static("", markup=False, id="doc")
        self._input = Input(compact=True, id="value")
        self._find = Input(compact=True, id="find", placeholder="part of a key, such as samples or train.l")
        self._finding = False
        self._effect = Static("", markup=False, id="effect")
        self._save = Choice("save", "Save", letter="s")
        self._dialog = Vertical(classes="dialog edit")

    def compose(self) -> ComposeResult:
        with self._dialog:
            yield self._find
            yield self._list
            yield self._doc
            yield self._input
            yield self._effect
            with Horizontal(classes="choices"):
                yield Choice("cancel", "Cancel")
                yield self._save

    def on_mount(self) -> None:
        self._input.display = self._find.display = False
        self._list.focus()
        self._tell()

    # ------------------------------------------------------------ what the host says meanwhile

    def follow(self, snapshot: Snapshot) -> None:
        """The run as it is now. Where saving does something else than before, it says so."""
        before, self._snapshot = self._snapshot, snapshot
        revised = self._revise(snapshot)
        if not revised and _outputs(before) == _outputs(snapshot):
            return
        self._confirmed = False
        if self._changes:
            self.run_worker(self._ask_budget(), group="budget", exclusive=True, exit_on_error=False)
        self._tell()

    def _revise(self, snapshot: Snapshot) -> bool:
        """Take a newer revision of the plan; the changes stay, on top of it, as far as it allows them."""
        try:
            plan = Plan.from_json(dict(snapshot.plan or {}))
        except ConfigError:  # of a newer Eagledeck: the host answers when this one saves
            return False
        if plan.revision <= self._plan.revision:
            return False
        rows = plan_rows(plan)
        words = moved_words(self._list.all_rows, rows)
        self._news = f"Revision {plan.revision} was saved elsewhere{': ' + words if words else ''}."
        self._plan = plan
        self._list.show(rows)
        try:
            effect_of(plan, self._changes, ())
        except ConfigError as error:
            self._changes = {}
            self._refused = f"{self._news} The changes made here no longer go with it: {error}"
        self._list.mark(self._new_values(self._changes))
        return True

    # ------------------------------------------------------------ editing

    def on_plan_list_moved(self) -> None:
        self._refused = ""
        self._tell()

    def on_plan_list_chosen(self) -> None:
        row = self._list.current
        typed = self._changes.get(row.key)
        self._input.value = row.raw if typed is None else str(typed)
        self._input.display = True
        self._input.focus()
        self._input.action_select_all()
        self._tell()

    def action_find(self) -> None:
        if not self._input.display:
            self._finding = self._find.display = True
            self._find.focus()
            self._tell()

    def on_input_changed(self, event: Input.Changed) -> None:
        if self._finding and event.input is self._find:
            self._refused = "" if self._list.find(event.value) else f"No key is like {event.value}."
            self._tell()

    def _close_find(self, text: str) -> None:
        """Back to the list, with what the text finds or, for an empty one, with all of it."""
        self._finding = False
        self._list.find(text)
        self._find.value = self._list.filter
        self._find.display = bool(self._list.filter)
        self._refused = ""
        self._list.focus()
        self._tell()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input is self._find:
            self._close_find(event.value)
            return
        row = self._list.current
        changes = {key: value for key, value in self._changes.items() if key != row.key}
        try:
            effect_of(self._plan, {row.key: event.value}, ())
            changed = effect_of(self._plan, {**changes, row.key: event.value}, ())
        except ConfigError as error:
            self._refused = str(error)
            self._tell()
            return
        if changed.plan != effect_of(self._plan, changes, ()).plan:
            changes[row.key] = event.value
        self._take(changes)
        self._close_input()

    def _take(self, changes: dict[str, object]) -> None:
        self._changes = changes
        self._refused = self._news = ""
        self._told, self._confirmed = self._does(), False
        self._list.mark(self._new_values(changes))
        self.run_worker(self._ask_budget(), group="budget", exclusive=True, exit_on_error=False)
        self._tell()

    def _new_values(self, changes: dict[str, object]) -> dict[str, str]:
        new = Plan.from_json(dict(effect_of(self._plan, changes, ()).plan))
        return {key: shown_value(new, key) for key in changes}

    def _close_input(self) -> None:
        self._input.display = False
        self._list.focus()
        self._tell()

    # ------------------------------------------------------------ what it does

    def _does(self) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
        """What saving comes to: the revision it changes, what becomes STALE, what a running stage takes up."""
        effect = effect_of(self._plan, self._changes, self._snapshot.stages)
        return self._plan.revision, effect.stale, effect.live

    def _tell(self) -> None:
        row = self._list.current
        title = f"plan of {self._snapshot.run}, revision {self._plan.revision}"
        self._dialog.border_title = title.replace("[", "\\[")
        self._dialog.border_subtitle = self._keys()
        live = f"; a running {row.key.partition('.')[0]} takes it up at once" if row.key in LIVE else ""
        self._doc.update(f"{row.key}: {row.doc}. Takes {row.takes}{live}.")
        self._effect.set_class(bool(self._refused), "-refused")
        self._effect.set_class(bool(self._changes) and self._does() != self._told, "-changed")
        self._effect.update(self._refused or self._effect_text())
        self._save.disabled = not self._changes or self._input.display

    def _effect_text(self) -> str:
        if self._input.display:
            return self._news
        lines = [self._news] if self._news else []
        if not self._changes:
            return "\n".join([*lines, "Nothing is changed yet."])
        effect = effect_of(self._plan, self._changes, self._snapshot.stages)
        if self._does() != self._told:
            lines.append("The run has gone on: saving does something else than when you edited. First s: seen.")
        elif self._confirmed:
            lines.append("Seen; s saves it now.")
        if effect.live:
            lines.append(f"Taken up at once by the running stage: {', '.join(effect.live)}.")
        lines += effect.asides()
        lines.append(f"Becomes STALE: {', '.join(effect.stale)}." if effect.stale else "No output becomes STALE.")
        active = active_stage(self._snapshot.stages)
        if effect.stale and active is not None:
            settles = set(effect.stale).issubset(self._snapshot.conductor.settles)
            then = (
                "the run sees to the rest itself" if settles else "once the run rests, s asks what becomes of the rest"
            )
            lines.append(f"{active.name} goes on as it was begun; {then}.")
        if self._budget:
            lines.append(f"Budget: {self._budget}")
        return "\n".join(lines)

    def _keys(self) -> str:
        if self._input.display:
            return "Enter takes the value · Esc leaves it as it was"
        if self._finding:
            return "Enter goes to what is found · Esc shows all"
        leave = "Esc shows all" if self._list.filter else "Esc cancels"
        if not self._changes:
            return f"↑ ↓ · / finds · Enter edits · {leave}"
        return f"Enter edits · s saves · Backspace undoes · {leave}"

    async def _ask_budget(self) -> None:
        effect = effect_of(self._plan, self._changes, self._snapshot.stages)
        try:
            view = await self._collector.budget(effect.plan)
        except Exception as error:  # a host that can't say is no reason not to edit
            self._budget = f"unknown ({getattr(error, 'message', None) or error})"
        else:
            self._budget = self._budget_text(view)
        self._tell()

    def _budget_text(self, view: BudgetView | None) -> str:
        if view is None or view.need_bytes is None:
            return ""
        words = budget_words(view.need_bytes, view.available_bytes)
        verdict = {True: " It fits.", False: " It DOES NOT FIT.", None: ""}[view.fits]
        return f"{words}.{verdict}"

    # ------------------------------------------------------------ leaving

    def on_choice_pressed(self, event: Choice.Pressed) -> None:
        if event.choice.key == "save":
            self.action_save()
        else:
            self.dismiss(None)

    def action_save(self) -> None:
        if not self._changes or self._input.display:
            return
        if self._does() == self._told:
            self.dismiss(self._changes)
        else:
            self._told, self._confirmed = self._does(), True
            self._tell()

    def action_undo(self) -> None:
        if self._list.has_focus and self._list.current.key in self._changes:
            self._take({key: value for key, value in self._changes.items() if key != self._list.current.key})

    def action_cancel(self) -> None:
        if self._input.display:
            self._refused = ""
            self._close_input()
        elif self._find.display:
            self._close_find("")
        else:
            self.dismiss(None)


def _outputs(snapshot: Snapshot) -> list[tuple[str, str, int | None]]:
    """What of the stages decides what a change does to them."""
    return [(stage.name, stage.state, stage.output) for stage in snapshot.stages]
