"""The plan editor: its effect is told before it is saved, and a refused value stays where it was typed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from console.screens.edit_plan import EditPlan
from remote.errors import RemoteError


def messages(app: Any) -> list[str]:
    return [f"{notice.severity}: {notice.message}" for notice in app._notifications]


async def test_the_target_is_one_edit(scenes: Any) -> None:
    snapshot = replace(scenes.generating(), plan=scenes.plan_json(**{"generate.max_samples": 25_000}))
    async with scenes.console(snapshot) as (app, pilot, collector):
        await pilot.press("e")
        assert isinstance(app.screen, EditPlan)
        await pilot.press("enter", *"10000", "enter")
        await app.workers.wait_for_complete()
        await pilot.pause()
        text = "\n".join(scenes.screen_lines(app))
        assert "25,000 → 10,000" in text
        assert "Taken up at once by the running stage: generate.max_samples" in text
        assert "Budget: 1 GB needed, 1 TB available. It fits." in text
        await pilot.press("s")
        await app.workers.wait_for_complete()
        assert collector.calls[-1] == ("set", {"generate.max_samples": "10000"})


async def test_an_edit_says_what_becomes_stale(scenes: Any) -> None:
    async with scenes.console(scenes.done()) as (app, pilot, collector):
        await pilot.press("e", "enter", *"12000", "enter")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert "Becomes STALE: generate, extract, vocab, train, deploy." in "\n".join(scenes.screen_lines(app))
        await pilot.press("escape")
        await app.workers.wait_for_complete()
        assert [call for call in collector.calls if call[0] == "set"] == []


async def test_a_refused_value_stays_in_the_input(scenes: Any) -> None:
    async with scenes.console(scenes.training(), size=(120, 40)) as (app, pilot, collector):
        await pilot.press("e", "enter", *"many", "enter")
        await pilot.pause()
        text = "\n".join(scenes.screen_lines(app))
        assert 'generate.max_samples = "many" is not allowed' in text
        assert "a whole number" in text
        await pilot.press("escape", "s")
        assert isinstance(app.screen, EditPlan)
        assert collector.calls == []


async def test_the_same_value_is_no_change_and_backspace_takes_one_back(scenes: Any) -> None:
    async with scenes.console(scenes.training()) as (app, pilot, _):
        await pilot.press("e", "enter", "enter")
        assert "Nothing is changed yet" in "\n".join(scenes.screen_lines(app))
        await pilot.press("enter", *"77", "enter")
        await app.workers.wait_for_complete()
        await pilot.press("backspace")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert "Nothing is changed yet" in "\n".join(scenes.screen_lines(app))
        await pilot.press("s")
        assert isinstance(app.screen, EditPlan)


async def test_cancel_is_the_first_choice_of_the_editor(scenes: Any) -> None:
    async with scenes.console(scenes.training()) as (app, pilot, collector):
        await pilot.press("e", "enter", *"77", "enter", "tab", "enter")
        await app.workers.wait_for_complete()
        assert app.screen.id == "overview"
        assert [call for call in collector.calls if call[0] == "set"] == []


async def test_a_budget_that_cannot_be_asked_is_unknown(scenes: Any) -> None:
    async with scenes.console(scenes.training(), size=(120, 40)) as (app, pilot, collector):

        async def offline(plan: Any) -> None:
            raise RemoteError("The link is down.")

        collector.budget = offline
        await pilot.press("e", "enter", *"77", "enter")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert "Budget: unknown (The link is down.)" in "\n".join(scenes.screen_lines(app))


async def test_a_plan_from_a_newer_version_is_refused_in_words(scenes: Any) -> None:
    newer = {**scenes.plan_json(), "schema": 99}
    async with scenes.console(replace(scenes.training(), plan=newer)) as (app, pilot, _):
        await pilot.press("e")
        assert app.screen.id == "overview"
        assert "newer Eagledeck" in messages(app)[0]


async def test_no_plan_yet(scenes: Any) -> None:
    async with scenes.console(replace(scenes.training(), plan=None)) as (app, pilot, _):
        await pilot.press("e")
        assert messages(app) == ["information: The plan has not arrived yet · wait for the host"]
