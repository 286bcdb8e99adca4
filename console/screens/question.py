"""A question before something happens: what exactly will happen, and Cancel as the default."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.events import Key
from textual.widget import Widget
from textual.widgets import Input, Static

from console.screens.choice import Choice, letters_of
from console.screens.dialog import Dialog
from console.screens.intents import Answer, Intent

_CANCEL = Answer("cancel", "Cancel", effect="nothing happens")


class Question(Dialog[str]):
    """Asks an Intent; the result is the key of the answer, empty for Cancel.

    Every answer has a letter, unless something has to be typed. `opened_by` is the key that has asked: it is no
    answer's letter, so that a key which is held down, or pressed twice, answers nothing.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "cancel", id="question.cancel", show=False),
        Binding("pageup", "scroll(-1)", "a page up", id="question.page_up", show=False),
        Binding("pagedown", "scroll(1)", "a page down", id="question.page_down", show=False),
    ]

    def __init__(self, intent: Intent, opened_by: str = "") -> None:
        super().__init__(classes="-danger" if intent.danger else "")
        self.intent = intent
        answers = (_CANCEL, *intent.answers)
        letters = [""] * len(answers) if intent.typed else letters_of([one.label for one in answers], opened_by)
        self._choices = {
            answer: Choice(answer.key, answer.label, answer.danger, letter) for answer, letter in zip(answers, letters)
        }

    def compose(self) -> ComposeResult:
        intent = self.intent
        with VerticalScroll(classes="dialog", can_focus=False) as dialog:
            dialog.border_title = intent.title.replace("[", "\\[")
            told = any(answer.effect for answer in intent.answers)
            how = "type it" if intent.typed else f"{'↑ ↓' if told else '← →'} or a letter"
            dialog.border_subtitle = f"{how} · Enter · Esc cancels"
            for fact in intent.facts:
                yield Static(fact, markup=False, classes="fact")
            if intent.typed:
                yield Static(f"Type {intent.typed} to go on:", markup=False, classes="ask")
                yield Input(id="typed", compact=True)
            for answer in intent.answers:
                self._choices[answer].disabled = bool(intent.typed)
            if told:
                with Vertical(classes="answers"):
                    yield from self._told_answers()
            else:
                with Horizontal(classes="choices"):
                    yield from self._choices.values()

    def _told_answers(self) -> Iterable[Widget]:
        """One answer below the other, its effect next to it; Cancel last."""
        widest = max(len(answer.label) for answer in self._choices) + 4
        for answer in (*self.intent.answers, _CANCEL):
            choice = self._choices[answer]
            choice.styles.margin = 0
            with Horizontal(classes="answer"):
                with Horizontal(classes="pressed") as left:
                    left.styles.width = widest
                    yield choice
                yield Static(answer.effect, markup=False, classes="effect")

    def on_mount(self) -> None:
        self.query_one("#typed" if self.intent.typed else "#choice-cancel").focus()

    def on_key(self, event: Key) -> None:
        pressed = next(
            (choice for choice in self._choices.values() if choice.letter and choice.letter == event.key), None
        )
        if pressed is not None:
            event.stop()
            pressed.action_press()

    def on_input_changed(self, event: Input.Changed) -> None:
        matches = event.value.strip() == self.intent.typed
        for answer in self.intent.answers:
            self._choices[answer].disabled = not matches

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.value.strip() == self.intent.typed:
            self.dismiss(self.intent.answers[0].key)
        else:
            text = f"That is not {self.intent.typed}. Type it exactly, or Esc to cancel:"
            self.query_one(".ask", Static).update(text)

    def on_choice_pressed(self, event: Choice.Pressed) -> None:
        self.dismiss("" if event.choice.key == "cancel" else event.choice.key)

    def action_scroll(self, by: int) -> None:
        dialog = self.query_one(".dialog", VerticalScroll)
        dialog.scroll_relative(y=by * max(1, dialog.size.height - 1), animate=False)

    def action_cancel(self) -> None:
        self.dismiss("")
