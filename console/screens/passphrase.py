"""The passphrase of an identity file that a refused login waits for; it goes to the key and is kept nowhere."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input, Static

from console.screens.dialog import Dialog


class Passphrase(Dialog[str]):
    """The result is what was typed, empty for Cancel."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "cancel", id="passphrase.cancel", show=False)]

    def __init__(self, host: str, file: str) -> None:
        super().__init__()
        self.host, self.file = host, file

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = f"Passphrase of {self.file}".replace("[", "\\[")
            dialog.border_subtitle = "Enter · Esc cancels"
            yield Static(f"{self.host} may take this key, which has a passphrase.", markup=False, classes="fact")
            yield Static(
                f"The opened key stays in this process until it ends; `ssh-add {self.file}` gives it to your agent.",
                markup=False,
                classes="fact",
            )
            yield Input(password=True, id="passphrase", compact=True)

    def on_mount(self) -> None:
        self.query_one("#passphrase").focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)

    def action_cancel(self) -> None:
        self.dismiss("")
