"""The overview in a terminal: every size, every state, missing and broken values; every line fits."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len

from console.snapshot import Curve, Snapshot
from console.widgets.log import Log

SIZES = [(60, 15), (80, 24), (100, 30), (120, 40), (200, 60)]
LINK_STATES = ("IDLE", "CONNECTING", "BOOTSTRAP", "LIVE", "STALE", "LOST", "BACKOFF", "BLOCKED")
STAGE_STATES = (
    "PENDING",
    "RUNNING",
    "STOPPING",
    "STOPPED",
    "DONE",
    "FAILED",
    "KILLED",
    "INTERRUPTED",
    "LOST",
    "UNREACHABLE",
)


async def at_every_size(scenes: Any, snapshot: Snapshot) -> dict[tuple[int, int], list[str]]:
    """The screen's lines by size; each checked to be exactly as wide as the terminal."""
    found = {}
    async with scenes.console(snapshot) as (app, pilot, _):
        for width, height in SIZES:
            await pilot.resize_terminal(width, height)
            await pilot.pause()
            lines = scenes.screen_lines(app)
            assert len(lines) == height
            assert [cell_len(line) for line in lines] == [width] * height
            found[width, height] = lines
    return found


@pytest.mark.parametrize("name", ["before_start", "generating", "training", "done", "lost", "failed"])
@pytest.mark.parametrize("gpus", [0, 8])
async def test_every_state_fits_every_size(scenes: Any, name: str, gpus: int) -> None:
    snapshot = replace(scenes.STATES[name](), gpus=scenes.gpus(gpus), gpu_note="" if gpus else "no GPU on this host")
    for size, lines in (await at_every_size(scenes, snapshot)).items():
        text = "\n".join(lines)
        assert snapshot.link.state in lines[0]
        for stage in ("generate", "extract", "vocab", "train", "deploy"):
            assert stage in text
        assert "volume" in text
        assert "samples" in text
        assert "? help" in lines[-1]
        assert "q detach" in lines[-1]
        if not gpus:
            assert "no GPU on this host" in text
        elif size[0] >= 80:
            assert all(f" {index} " in text for index in range(8))


async def test_nothing_known_yet(scenes: Any) -> None:
    blank = replace(
        scenes.before_start(), link=scenes.link("CONNECTING", age_s=None, rtt_ms=None), stages=(), gpus=(), disk=None,
        samples_target=None, budget=None, plan=None, plan_revision=None, verifier="",
    )  # fmt: skip
    for lines in (await at_every_size(scenes, blank)).values():
        text = "\n".join(lines)
        assert "CONNECTING —" in lines[0]
        assert "waiting for the host" in text
        assert " 0 " not in text.replace("+0", "")


async def test_very_long_names_and_hostile_text(scenes: Any) -> None:
    long = "漢字-" * 60
    base = scenes.failed()
    broken = replace(base.stages[3], message="[bold]boom[/] " + "x" * 900, remedy="[link=file:///]click[/link] " * 30)
    snapshot = replace(
        base, run=long, host=long, verifier=long, log=(long * 9, "[/red] [@click=app.quit]q[/]"), log_source=long,
        stages=(*base.stages[:3], broken, base.stages[4]), gpu_note=long,
        events=tuple(replace(event, message=long, stage=long) for event in base.events),
    )  # fmt: skip
    for size, lines in (await at_every_size(scenes, snapshot)).items():
        if size[1] >= 24:
            assert "[bold]boom[/]" in "\n".join(lines)


async def test_broken_curves_draw_what_they_hold(scenes: Any) -> None:
    values = (3.0, math.nan, math.inf, -math.inf, None, 2.0, 1e308, 2.5)
    odd = (
        Curve("train/loss", tuple(range(8)), (None,) * 8, values),
        Curve("val/loss", tuple(range(8)), (None,) * 8, (None,) * 8),
        Curve("lr", (), (), ()),
    )
    for lines in (await at_every_size(scenes, replace(scenes.training(), curves=odd))).values():
        assert any("loss" in line and "2.500" in line for line in lines)


async def test_every_link_state(scenes: Any) -> None:
    async with scenes.console(scenes.training()) as (app, pilot, collector):
        for state in LINK_STATES:
            collector.publish(
                replace(scenes.training(), link=scenes.link(state, message="what happened", remedy="what to do"))
            )
            await pilot.pause()
            text = "\n".join(scenes.screen_lines(app))
            assert state in text.splitlines()[0]
            assert ("what happened" in text) == (state in {"STALE", "LOST", "BACKOFF", "BLOCKED"}), state
            assert "10,000/10,000" in text


async def test_every_stage_state(scenes: Any) -> None:
    async with scenes.console(scenes.training()) as (app, pilot, collector):
        for state in STAGE_STATES:
            one = scenes.stage("train", state, message="why", stale=True, stale_reason="lr changed")
            collector.publish(replace(scenes.training(), stages=scenes.stages("DONE", "DONE", "DONE", train=one)))
            await pilot.pause()
            text = "\n".join(scenes.screen_lines(app))
            assert state in text
            assert "STALE" in text


async def test_numbers_fade_when_they_are_old_and_stay(scenes: Any) -> None:
    async with scenes.console(scenes.training()) as (app, pilot, collector):
        fresh, panel = scenes.screen_lines(app), app.screen.query_one("#gpus")
        bright = panel.render_line(1)
        collector.publish(scenes.lost())
        await pilot.pause()
        faded = panel.render_line(1)
        assert faded.text == bright.text
        assert [segment.style.color for segment in faded] != [segment.style.color for segment in bright]
        stale = scenes.screen_lines(app)
        assert "BACKOFF" in stale[0]
        assert "572W" in "\n".join(fresh)
        assert "572W" in "\n".join(stale)


async def test_the_age_grows_by_the_clock(scenes: Any) -> None:
    now = [scenes.NOW]
    async with scenes.console(scenes.training(), clock=lambda: now[0]) as (app, _, _):
        now[0] += 7
        app.screen.tick()
        assert "LIVE 7.4s" in scenes.screen_lines(app)[0]
        assert "14:02:14" in scenes.screen_lines(app)[0]


async def test_only_the_newest_snapshot_is_drawn(scenes: Any) -> None:
    async with scenes.console(scenes.training()) as (app, pilot, collector):
        for number in range(50):
            collector.publish(replace(scenes.training(), samples=number))
        await pilot.pause()
        assert app.screen.snapshot.samples == 49


async def test_the_console_lets_go_of_the_collector(scenes: Any) -> None:
    async with scenes.console(scenes.training()) as (_, _, collector):
        assert collector.subscribers == 1
    assert collector.subscribers == 0


async def test_panels_are_drawn_once_for_a_change(scenes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = scenes.training()
    async with scenes.console(snapshot) as (app, pilot, collector):
        drawn = []
        for panel in app.screen.panels:
            lines = panel.lines
            monkeypatch.setattr(
                panel, "lines", lambda w, h, panel=panel, lines=lines: drawn.append(panel.id) or lines(w, h)
            )
        collector.publish(replace(snapshot, taken_wall=snapshot.taken_wall + 1))
        await pilot.pause()
        assert set(drawn) <= {"truth"}
        collector.publish(replace(snapshot, samples=9_999))
        await pilot.pause()
        assert set(drawn) == {"truth", "targets"}


async def test_the_log_follows_until_a_person_scrolls(scenes: Any) -> None:
    lines = tuple(f"line {number}" for number in range(100))
    async with scenes.console(replace(scenes.training(), log=lines)) as (app, pilot, collector):
        log = app.screen.query_one(Log)
        await pilot.press("k", "k", "k")
        assert not log.following
        held = [log.render_line(row).text.strip() for row in range(1, 5)]
        assert held == ["line 93", "line 94", "line 95", "line 96"]
        collector.publish(replace(scenes.training(), log=(*lines, "a new line")))
        await pilot.pause()
        assert [log.render_line(row).text.strip() for row in range(1, 5)] == held
        await pilot.press("G")
        assert log.following
        assert log.render_line(4).text.strip() == "a new line"
