"""A question before something happens: what exactly will happen, and Cancel as the default."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from console.screens.choice import Choice
from console.screens.intents import Intent


class Question(ModalScreen[str]):
    """Asks an Intent; the result is the key of the answer, empty for Cancel."""

    VERTICAL_BREAKPOINTS = [(0, "-short"), (24, "-normal")]  # noqa: RUF012  Textual declares no class variable here
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "cancel", id="question.cancel", show=False)]

    def __init__(self, intent: Intent) -> None:
        super().__init__(classes="-danger" if intent.danger else "")
        self.intent = intent

    def compose(self) -> ComposeResult:
        intent = self.intent
        with VerticalScroll(classes="dialog", can_focus=False) as dialog:
            dialog.border_title = intent.title.replace("[", "\\[")
            for fact in intent.facts:
                yield Static(fact, markup=False, classes="fact")
            if intent.typed:
                yield Static(f"Type {intent.typed} to go on:", markup=False, classes="ask")
                yield Input(id="typed", compact=True)
            with Horizontal(classes="choices"):
                yield Choice("cancel", "Cancel")
                for answer in intent.answers:
                    choice = Choice(answer.key, answer.label, answer.danger)
                    choice.disabled = bool(intent.typed)
                    yield choice

    def on_mount(self) -> None:
        self.query_one("#typed" if self.intent.typed else "#choice-cancel").focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        matches = event.value.strip() == self.intent.typed
        for answer in self.intent.answers:
            self.query_one(f"#choice-{answer.key}", Choice).disabled = not matches

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.value.strip() == self.intent.typed:
            self.dismiss(self.intent.answers[0].key)
        else:
            text = f"That is not {self.intent.typed}. Type it exactly, or Esc to cancel:"
            self.query_one(".ask", Static).update(text)

    def on_choice_pressed(self, event: Choice.Pressed) -> None:
        self.dismiss("" if event.choice.key == "cancel" else event.choice.key)

    def action_cancel(self) -> None:
        self.dismiss("")
