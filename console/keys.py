"""The keys of the console: one table, from which the bindings, the footer and the help screen are made.

Plain letters only: ctrl keys collide with terminal multiplexers. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Key:
    """A key. `id` names it for remapping, `action` is the screen's method without its `action_`.

    `hint` is the word in the footer (none: only in the help), `rank` decides what a narrow footer leaves out first.
    """

    id: str
    keys: str
    shown: str
    action: str
    group: str
    help: str
    hint: str = ""
    rank: int = 99


KEYS = (
    Key(
        "run.start",
        "s",
        "s",
        "start",
        "run",
        "start: stage after stage, as planned",
        "start",
        1,
    ),
    Key("run.stop", "x", "x", "stop", "run", "stop the stage at work: it saves and ends", "stop", 1),
    Key("run.resume", "r", "r", "resume", "run", "resume the stage that stopped or failed", "resume", 2),
    Key("run.restart", "n", "n", "restart", "run", "restart a stage with a new output", "restart", 3),
    Key("run.kill", "K,shift+k", "K", "kill", "run", "kill the stage at work; asks for its name", "kill", 4),
    Key("run.edit", "e", "e", "edit", "run", "edit the plan", "edit", 2),
    Key("run.previous", "left_square_bracket", "[", "previous_run", "run", "the previous run of this host"),
    Key("run.next", "right_square_bracket", "]", "next_run", "run", "the next run of this host"),
    Key("link.retry", "R,shift+r", "R", "retry", "link", "connect now"),
    Key("link.key", "H,shift+h", "H", "host_key", "link", "the key that the connection waits for"),
    Key("view.zoom", "z", "z", "zoom", "view", "focused pane (or chart) alone, lines uncut", "zoom", 9),
    Key("view.pane", "tab", "Tab", "next_pane", "view", "focus the next pane: events, log, chart"),
    Key("view.freeze", "space", "space", "freeze", "view", "freeze the display; data still arrives", "freeze", 11),
    Key("chart.next", "v", "v", "next_view", "chart", "next picture: loss, accuracy, speed, …", "view", 12),
    Key("chart.log", "y", "y", "log_scale", "chart", "y axis linear or logarithmic"),
    Key("chart.unit", "u", "u", "x_unit", "chart", "x axis in steps or epochs"),
    Key("chart.marks", "m", "m", "marks", "chart", "draw with braille, blocks or ASCII"),
    Key("log.follow", "f", "f", "follow", "log, events", "focus the log; again: back to its end", "log", 10),
    Key("log.bigger", "l", "l", "bigger_log", "log, events", "bigger log; the biggest cuts no line"),
    Key("log.smaller", "L,shift+l", "L", "smaller_log", "log, events", "smaller log"),
    Key("log.up", "k,up", "k ↑", "tail_up", "log, events", "scroll up (it stops following)"),
    Key("log.down", "j,down", "j ↓", "tail_down", "log, events", "scroll down"),
    Key("log.page_up", "pageup", "PgUp", "tail_page_up", "log, events", "a page up"),
    Key("log.page_down", "pagedown", "PgDn", "tail_page_down", "log, events", "a page down"),
    Key("log.end", "G,shift+g,end", "G End", "tail_end", "log, events", "to the end, and follow"),
    Key("help", "question_mark", "?", "help", "console", "these keys", "help", 0),
    Key("back", "escape", "Esc", "back", "console", "leave zoom, big log, focus, last refusal"),
    Key("detach", "q", "q", "detach", "console", "leave; the run keeps going on its host", "detach", 0),
)

GROUPS = ("run", "link", "view", "chart", "log, events", "console")


def footer_keys() -> list[Key]:
    """The keys that the footer shows, in order."""
    return [key for key in KEYS if key.hint]
