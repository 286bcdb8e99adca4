"""Every key does what the table says, asks first where it acts, and never lets an error out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from textual import events

from console.keys import GROUPS, KEYS, footer_keys
from console.screens.choice import letters_of
from console.screens.help import Help, help_lines
from console.screens.passphrase import Passphrase
from console.screens.question import Question
from console.widgets.ink import text_of
from remote.errors import HostKeyChanged, HostKeyUnknown, RemoteError

NEW = "SHA256:" + "A1b2" * 10 + "xyz"
OLD = "SHA256:" + "C3d4" * 10 + "uvw"


def messages(app: Any) -> list[str]:
    return [f"{notice.severity}: {notice.message}" for notice in app._notifications]


def test_the_table_is_sound() -> None:
    ids = [key.id for key in KEYS]
    bound = [one for key in KEYS for one in key.keys.split(",")]
    assert len(set(ids)) == len(ids)
    assert len(set(bound)) == len(bound)
    assert not [one for one in bound if one.startswith(("ctrl", "alt"))]
    assert {key.group for key in KEYS} == set(GROUPS)
    assert {"s", "x", "r", "K", "e", "R", "question_mark", "q", "space", "z", "f", "l", "L", "y", "u"} <= set(bound)
    assert [key.hint for key in footer_keys()][:3] == ["start", "stop", "resume"]


def test_help_is_made_of_the_table() -> None:
    for width in (60, 110):
        text = "\n".join(text_of(line) for line in help_lines(width))
        for key in KEYS:
            assert key.shown in text
            assert key.help in text


async def test_every_binding_has_an_id_and_an_action(scenes: Any) -> None:
    async with scenes.console(scenes.training()) as (app, _, _):
        bindings = [binding for found in app.screen._bindings.key_to_bindings.values() for binding in found]
        assert {binding.id for binding in bindings} >= {key.id for key in KEYS}
        for key in KEYS:
            owner = app if key.action == "detach" else app.screen
            assert callable(getattr(owner, f"action_{key.action}")), key.id


# ---------------------------------------------------------------- acting


@pytest.mark.parametrize(
    ("scene", "key", "answers", "call"),
    [
        ("before_start", "s", ("tab", "enter"), ("start", "refuse")),
        ("failed", "s", ("tab", "enter"), ("start", "keep")),
        ("failed", "s", ("tab", "tab", "enter"), ("start", "rerun")),
        ("failed", "s", ("right", "right", "enter"), ("start", "rerun")),
        ("training", "x", ("tab", "enter"), ("stop", None)),
        ("failed", "r", ("tab", "enter"), ("resume", "train", "keep")),
        ("training", "K", (*"train", "enter"), ("kill", "train")),
        ("failed", "n", ("right", "enter", "tab", "enter"), ("restart", "generate", "keep")),
        ("done", "n", (*("right",) * 5, "enter", "right", "enter"), ("restart", "deploy", "refuse")),
        ("training", "right_square_bracket", (), ("select", "kimi-k25-lr3e5")),
        ("training", "left_square_bracket", (), ("select", "smoke")),
        ("lost", "R", (), ("retry",)),
    ],
)
async def test_keys_act_after_their_question(
    scenes: Any, scene: str, key: str, answers: tuple[str, ...], call: tuple[Any, ...]
) -> None:
    async with scenes.console(scenes.STATES[scene]()) as (app, pilot, collector):
        await pilot.press(key)
        if answers:
            assert isinstance(app.screen, Question)
            assert collector.calls == []
        await pilot.press(*answers)
        await app.workers.wait_for_complete()
        assert collector.calls == [call]
        assert app.screen.id == "overview"


@pytest.mark.parametrize("keys", [("c", "c"), ("enter", "enter"), ("escape", "escape"), ("t", "t")])
async def test_keys_that_come_in_one_read_answer_once(scenes: Any, keys: tuple[str, ...]) -> None:
    async with scenes.console(scenes.before_start()) as (app, pilot, collector):
        await pilot.press("s")
        driver = app._driver
        for key in keys:  # without a pause between them, as a terminal sends what was typed ahead
            driver.send_message(events.Key(key, key if len(key) == 1 else None))
        await pilot.pause()
        await app.workers.wait_for_complete()
        assert app.screen.id == "overview" and app._exception is None
        assert collector.calls == ([("start", "refuse")] if keys == ("t", "t") else [])


async def test_a_passphrase_is_asked_for_once_and_shown_nowhere(scenes: Any) -> None:
    link = scenes.link(
        "BLOCKED", message="gpu-box refused to log us in", remedy="ssh-add", locked=("/k/id_a", "/k/id_b")
    )
    async with scenes.console(replace(scenes.training(), link=link)) as (app, pilot, collector):
        await pilot.pause()
        assert isinstance(app.screen, Passphrase)
        await pilot.press(*"secret")
        assert "secret" not in app.export_screenshot()
        await pilot.press("escape")
        collector.publish(replace(scenes.training(), link=link))
        await pilot.pause()
        assert app.screen.id == "overview" and collector.calls == []
        await pilot.press("H", *"secret", "enter")
        await app.workers.wait_for_complete()
        assert collector.calls == [("unlock", "/k/id_a", "secret")]


async def test_a_stage_that_ended_while_it_was_asked_about_takes_no_other_with_it(scenes: Any) -> None:
    async with scenes.console(scenes.generating()) as (app, pilot, collector):
        await pilot.press("x")
        collector.publish(scenes.training())
        await pilot.pause()
        await pilot.press("tab", "enter")
        await app.workers.wait_for_complete()
        assert collector.calls == []
        assert any("generate has ended by itself, and train is RUNNING" in note.message for note in app._notifications)


@pytest.mark.parametrize(
    ("scene", "key"), [("before_start", "s"), ("failed", "s"), ("training", "x"), ("failed", "r"), ("done", "n")]
)
async def test_cancel_is_the_default(scenes: Any, scene: str, key: str) -> None:
    async with scenes.console(scenes.STATES[scene]()) as (app, pilot, collector):
        for way_out in ("enter", "space", "escape"):
            await pilot.press(key)
            assert isinstance(app.screen, Question)
            await pilot.press(way_out)
            assert app.screen.id == "overview"
        assert collector.calls == []


@pytest.mark.parametrize("typed", ["", "TRAIN"])
async def test_kill_needs_the_typed_name(scenes: Any, typed: str) -> None:
    async with scenes.console(scenes.training()) as (app, pilot, collector):
        await pilot.press("K", *typed, "enter")
        assert isinstance(app.screen, Question)
        assert app.screen.query_one("#choice-kill").disabled
        assert "That is not train" in "\n".join(scenes.screen_lines(app))
        await pilot.press("tab", "enter")
        await app.workers.wait_for_complete()
        assert collector.calls == []
        assert app.screen.id == "overview"


@pytest.mark.parametrize(
    ("scene", "key", "words"),
    [
        ("training", "s", "train is already RUNNING · x stops it"),
        ("done", "x", "No stage is at work · s starts the run"),
        ("done", "r", "There is nothing to resume · s starts the run"),
        ("training", "n", "train is RUNNING · x stops it"),
        ("before_start", "n", "No stage has an output yet · s starts the run"),
        ("done", "K", "No stage is at work · there is nothing to kill"),
        ("lost", "x", "Not connected to gpu-box (BACKOFF) · R connects now"),
        ("training", "R", "The connection is live"),
        ("training", "H", "The connection waits for no key"),
        ("before_start", "v", "There is no curve yet"),
    ],
)
async def test_a_key_without_an_object_says_why(scenes: Any, scene: str, key: str, words: str) -> None:
    async with scenes.console(scenes.STATES[scene]()) as (app, pilot, collector):
        await pilot.press(key)
        assert messages(app) == [f"information: {words}"]
        assert collector.calls == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RemoteError("The run is locked by another supervisor.", "Wait for it, or stop it."), "locked by another"),
        (RuntimeError("boom [red]not markup[/red]"), "boom [red]not markup[/red]"),
        (KeyError(), "KeyError"),
    ],
)
async def test_what_an_action_raises_is_an_alert(scenes: Any, error: Exception, words: str) -> None:
    async with scenes.console(scenes.training(), size=(120, 40)) as (app, pilot, collector):
        collector.error = error
        await pilot.press("x", "tab", "enter")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert messages(app) == []
        lines = scenes.screen_lines(app)
        assert any("! stop train: " in line and words in line for line in lines)
        assert "Traceback" not in "\n".join(lines)
        await pilot.press("escape")
        assert not any("! stop train: " in line for line in scenes.screen_lines(app))


async def test_a_slow_action_blocks_no_key(scenes: Any) -> None:
    async with scenes.console(scenes.training()) as (app, pilot, collector):
        collector.slow = True
        await pilot.press("x", "tab", "enter")
        await pilot.pause()
        assert collector.calls == [("stop", None)]
        assert "stop train …" in scenes.screen_lines(app)[-1]
        await pilot.press("z")
        assert "chart" in app.screen.query_one("#chart").id
        assert app.screen.query_one("#chart").size.height == 20
        collector.go.set()
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert "stop train …" not in scenes.screen_lines(app)[-1]


async def test_one_run_alone_has_no_neighbours(scenes: Any) -> None:
    async with scenes.console(replace(scenes.training(), runs=("kimi-k25-10k",))) as (app, pilot, collector):
        await pilot.press("right_square_bracket")
        assert messages(app) == ["information: This host has no other run"]
        assert collector.calls == []


@pytest.mark.parametrize(("scene", "idle"), [("before_start", True), ("training", True), ("done", False)])
async def test_restart_is_faint_while_there_is_nothing_to_restart(scenes: Any, scene: str, idle: bool) -> None:
    async with scenes.console(scenes.STATES[scene]()) as (app, _, _):
        assert ("run.restart" in app.screen.idle_keys()) == idle
        assert ("chart.next" in app.screen.idle_keys()) == (scene == "before_start")


# ---------------------------------------------------------------- dialogs


@pytest.mark.parametrize(
    ("scene", "key", "letters", "call"),
    [
        ("before_start", "s", "t", ("start", "refuse")),
        ("failed", "s", "k", ("start", "keep")),
        ("failed", "s", "r", ("start", "rerun")),
        ("training", "x", "s", ("stop", None)),
        ("failed", "n", "er", ("restart", "extract", "rerun")),
        ("done", "n", "dr", ("restart", "deploy", "refuse")),
    ],
)
async def test_a_letter_answers(scenes: Any, scene: str, key: str, letters: str, call: tuple[Any, ...]) -> None:
    async with scenes.console(scenes.STATES[scene]()) as (app, pilot, collector):
        await pilot.press(key, *letters)
        await app.workers.wait_for_complete()
        assert collector.calls == [call]
        assert app.screen.id == "overview"


async def test_the_letter_of_resume_is_not_the_key_that_asks(scenes: Any) -> None:
    stopped = scenes.stage("train", "STOPPED", resumable=True, done=3, total=4)
    resting = replace(scenes.training(), stages=scenes.stages("DONE", "DONE", "DONE", train=stopped))
    async with scenes.console(resting) as (app, pilot, collector):
        await pilot.press("r", "r")
        assert isinstance(app.screen, Question)
        await pilot.press("e")
        await app.workers.wait_for_complete()
        assert collector.calls[0][:2] == ("resume", "train")


@pytest.mark.parametrize(
    ("scene", "key"), [("before_start", "s"), ("failed", "s"), ("training", "x"), ("failed", "r"), ("failed", "n")]
)
async def test_a_key_that_is_held_down_answers_nothing(scenes: Any, scene: str, key: str) -> None:
    async with scenes.console(scenes.STATES[scene]()) as (app, pilot, collector):
        await pilot.press(*[key] * 5)
        assert isinstance(app.screen, Question)
        await pilot.press("c")
        assert app.screen.id == "overview"
        assert collector.calls == []


@pytest.mark.parametrize("letter", "gevtd")
async def test_the_letter_of_a_stage_that_is_held_down_restarts_nothing(scenes: Any, letter: str) -> None:
    async with scenes.console(scenes.done()) as (app, pilot, collector):
        await pilot.press("n", *[letter] * 5)
        assert isinstance(app.screen, Question)
        assert app.screen.intent.title.startswith(f"Restart {letter}")
        assert collector.calls == []


async def test_no_letter_stands_for_a_name_that_has_to_be_typed(scenes: Any) -> None:
    async with scenes.console(scenes.training()) as (app, pilot, collector):
        await pilot.press("K", *"train", "tab", "k")
        assert isinstance(app.screen, Question)
        assert collector.calls == []


def test_every_answer_has_a_letter_of_its_own() -> None:
    assert letters_of(["Cancel", "Start"], "s") == ["c", "t"]
    assert letters_of(["Cancel", "Keep", "Rerun", "Restart", "Ce"]) == ["c", "k", "r", "e", ""]
    assert letters_of(["漢字", "7 b"]) == ["", "b"]


@pytest.mark.parametrize(("scene", "key"), [("failed", "s"), ("training", "K"), ("done", "n"), ("training", "e")])
async def test_a_dialog_says_how_to_go_on(scenes: Any, scene: str, key: str) -> None:
    for size in ((60, 15), (80, 24), (120, 40)):
        async with scenes.console(scenes.STATES[scene](), size=size) as (app, pilot, _):
            await pilot.press(key)
            await pilot.pause()
            assert "Enter" in "\n".join(scenes.screen_lines(app))
            assert "Esc cancels" in "\n".join(scenes.screen_lines(app))


@pytest.mark.parametrize("key", ["x", "K", "e", "question_mark"])
async def test_a_dialog_leaves_no_stripes_of_the_screen_at_its_sides(scenes: Any, key: str) -> None:
    for width in (60, 80, 89, 90, 100, 111, 112, 120, 200):
        async with scenes.console(scenes.training(), size=(width, 30)) as (app, pilot, _):
            await pilot.press(key)
            await pilot.pause()
            beside = width - app.screen.query_one(".dialog").region.width
            assert beside == 0 or beside >= 5, width


async def test_the_effect_of_an_answer_stands_next_to_it(scenes: Any) -> None:
    async with scenes.console(scenes.done()) as (app, pilot, _):
        await pilot.press("n", "t")
        await pilot.pause()
        lines = scenes.screen_lines(app)
        assert any("[ Keep the rest ]" in line and "what is STALE then stays as it is" in line for line in lines)
        assert any("[ Rerun the rest ]" in line and "new outputs for what is STALE" in line for line in lines)
        assert any("[ Cancel ]" in line and "nothing happens" in line for line in lines)


# ---------------------------------------------------------------- host keys


async def test_an_unknown_host_key_opens_its_question_once(scenes: Any) -> None:
    error = HostKeyUnknown("gpu-box", "ssh-ed25519", NEW, "")
    blocked = replace(scenes.before_start(), link=scenes.link("BLOCKED", message=error.message))
    async with scenes.console(blocked) as (app, pilot, collector):
        assert isinstance(app.screen, Question)
        assert NEW in "\n".join(scenes.screen_lines(app))
        await pilot.press("enter")
        collector.publish(replace(blocked, samples=1))
        await pilot.pause()
        assert app.screen.id == "overview"
        await pilot.press("H", "tab", "enter")
        await app.workers.wait_for_complete()
        assert collector.calls == [("confirm", NEW)]


async def test_a_changed_host_key_wants_the_typed_name(scenes: Any) -> None:
    error = HostKeyChanged("gpu-box", OLD, "ssh-ed25519", NEW, "")
    blocked = replace(scenes.before_start(), link=scenes.link("BLOCKED", message=error.message))
    async with scenes.console(blocked) as (app, pilot, collector):
        text = "\n".join(scenes.screen_lines(app))
        assert OLD in text
        assert NEW in text
        await pilot.press("enter")
        assert isinstance(app.screen, Question)
        await pilot.press(*"gpu-box", "enter")
        await app.workers.wait_for_complete()
        assert collector.calls == [("confirm", NEW)]


# ---------------------------------------------------------------- looking


async def test_freeze_holds_the_display_and_loses_nothing(scenes: Any) -> None:
    async with scenes.console(scenes.training()) as (app, pilot, collector):
        await pilot.press("space")
        for number in range(3):
            collector.publish(replace(scenes.training(), samples=number))
            await pilot.pause()
        lines = scenes.screen_lines(app)
        assert "FROZEN +3" in lines[0]
        assert "10,000/10,000" in "\n".join(lines)
        collector.publish(scenes.lost())
        await pilot.pause()
        assert "BACKOFF" in scenes.screen_lines(app)[0]
        await pilot.press("space")
        assert "FROZEN" not in scenes.screen_lines(app)[0]
        assert app.screen.snapshot.link.state == "BACKOFF"


async def test_zoom_and_log_sizes(scenes: Any) -> None:
    async with scenes.console(scenes.training()) as (app, pilot, _):
        chart, log = app.screen.query_one("#chart"), app.screen.query_one("#log")
        small = log.size.height
        await pilot.press("z")
        assert chart.size.height == 20
        await pilot.press("z")
        assert chart.size.height == 10
        await pilot.press("l")
        assert small < log.size.height < 20
        await pilot.press("l", "l")
        assert log.size.height == 20
        await pilot.press("L", "L", "L")
        assert log.size.height == small
        await pilot.press("l", "escape")
        assert log.size.height == small


LONG = "the answer of row 1733 holds no </think>, " * 9 + "THE END"


@pytest.mark.parametrize("size", [(70, 20), (80, 24), (120, 40)])
@pytest.mark.parametrize("keys", [("f", "z"), ("l", "l"), ("tab", "tab", "z"), ("z", "f")])
async def test_a_long_line_of_the_log_can_be_read_to_its_end(scenes: Any, keys: Any, size: Any) -> None:
    snapshot = replace(scenes.training(), log=(*(f"line {n}" for n in range(30)), LONG, "the last line"))
    async with scenes.console(snapshot, size=size) as (app, pilot, _):
        assert "THE END" not in "\n".join(scenes.screen_lines(app))
        await pilot.press(*keys)
        lines = scenes.screen_lines(app)
        first = next(number for number, line in enumerate(lines) if "row 1733" in line)
        assert " ".join(lines[first:-2]).split() == LONG.split()
        assert lines[-2].strip() == "the last line"
        await pilot.press("escape")
        assert "THE END" not in "\n".join(scenes.screen_lines(app))


@pytest.mark.parametrize("size", [(70, 20), (80, 24), (120, 40)])
@pytest.mark.parametrize("keys", [("tab", "z"), ("z", "tab")])
async def test_all_events_can_be_read_to_their_ends(scenes: Any, keys: Any, size: Any) -> None:
    from console.snapshot import EventView

    events = tuple(EventView(scenes.NOW, "train", "warning", f"event {n}: {LONG}") for n in range(30))
    async with scenes.console(replace(scenes.training(), events=events), size=size) as (app, pilot, _):
        await pilot.press(*keys)
        text = " ".join(" ".join(scenes.screen_lines(app)).split())
        assert f"event 29: {LONG}" in text
        assert "event 2:" not in text
        await pilot.press(*["pageup"] * 30)
        text = " ".join(" ".join(scenes.screen_lines(app)).split())
        assert f"event 0: {LONG}" in text
        await pilot.press("escape", "escape")
        assert app.focused is None


async def test_what_is_held_stays_on_show_when_it_unfolds(scenes: Any) -> None:
    lines = tuple(f"line {number}" + " word" * (number % 40) for number in range(90))
    async with scenes.console(replace(scenes.training(), log=lines)) as (app, pilot, _):
        await pilot.press("f", *["up"] * 30, "z")
        assert scenes.screen_lines(app)[-2].split()[-1] == "word"
        assert any(line.strip().startswith("line 59 word") for line in scenes.screen_lines(app))
        await pilot.press("z")
        assert scenes.screen_lines(app)[-2].strip().startswith("line 59 word")


async def test_chart_toggles(scenes: Any) -> None:
    async with scenes.console(scenes.training()) as (app, pilot, _):

        def heading() -> str:
            return next(line for line in scenes.screen_lines(app) if "gpus" in line)

        assert "linear" in heading()
        await pilot.press("y")
        assert " log" in heading()
        await pilot.press("u")
        assert any(
            line.rstrip().rpartition("acceptance")[0].rstrip().endswith("epoch") for line in scenes.screen_lines(app)
        )
        await pilot.press("v")
        assert "accuracy by position" in heading()
        await pilot.press("v", "v", "v", "v")
        assert heading().startswith(" loss")
        await pilot.press("m")
        assert not any("⠒" in line for line in scenes.screen_lines(app))


async def test_a_log_axis_is_refused_without_a_positive_value(scenes: Any) -> None:
    from console.snapshot import Curve

    flat = (Curve("train/loss", (1.0, 2.0), (None, None), (0.0, -1.0)),)
    async with scenes.console(replace(scenes.training(), curves=flat)) as (app, pilot, _):
        await pilot.press("y")
        assert messages(app) == ["information: A logarithmic axis needs a positive value"]
        await pilot.press("u")
        assert messages(app)[1] == "information: These curves hold no epochs"


async def test_f_focuses_the_log_and_then_follows(scenes: Any) -> None:
    lines = tuple(str(number) for number in range(90))
    async with scenes.console(replace(scenes.training(), log=lines)) as (app, pilot, _):
        log = app.screen.query_one("#log")
        await pilot.press("f")
        assert log.has_focus
        await pilot.press("pageup", "up")
        assert not log.following
        await pilot.press("f")
        assert log.following


async def test_help_opens_and_closes(scenes: Any) -> None:
    async with scenes.console(scenes.training()) as (app, pilot, _):
        await pilot.press("question_mark")
        assert isinstance(app.screen, Help)
        await pilot.press("q")
        assert app.screen.id == "overview"


@pytest.mark.parametrize("key", ["q", "ctrl+q"])
async def test_detach_leaves_and_stops_nothing(scenes: Any, key: str) -> None:
    async with scenes.console(scenes.training()) as (app, pilot, collector):
        await pilot.press(key)
        assert app._exit
        assert [str(said) for said in app._exit_renderables] == [
            "Detached. kimi-k25-10k keeps going on gpu-box: train is RUNNING."
        ]
    assert collector.calls == []
    assert app.return_code == 0


async def test_ctrl_c_stops_nothing_and_says_how_to_leave(scenes: Any) -> None:
    async with scenes.console(scenes.training()) as (app, pilot, collector):
        await pilot.press("ctrl+c")
        assert "q leaves the console" in messages(app)[0]
        assert collector.calls == []


@pytest.mark.parametrize(
    ("scene", "key"), [("failed", "s"), ("training", "x"), ("training", "K"), ("failed", "r"), ("training", "e")]
)
async def test_modals_show_their_choices_at_every_size(scenes: Any, scene: str, key: str) -> None:
    for size in ((60, 15), (120, 40)):
        async with scenes.console(scenes.STATES[scene](), size=size) as (app, pilot, _):
            await pilot.press(key)
            await pilot.pause()
            text = "\n".join(scenes.screen_lines(app))
            assert "[ Cancel ]" in text
