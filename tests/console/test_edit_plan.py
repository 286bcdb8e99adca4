"""The plan editor: its effect is told before it is saved, and a refused value stays where it was typed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from console.screens.edit_plan import EditPlan
from console.snapshot import ConductorView
from pipeline.config import STAGES
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


@pytest.mark.parametrize(
    ("settles", "then"),
    [((), "once the run rests, s asks what becomes of the rest"), (STAGES, "the run sees to the rest itself")],
)
async def test_an_edit_says_that_a_stage_at_work_goes_on(scenes: Any, settles: Any, then: str) -> None:
    snapshot = replace(scenes.training(), conductor=ConductorView("running", "train", settles=settles))
    outputs = tuple(replace(stage, output=stage.output or 1) for stage in snapshot.stages[:4])
    snapshot = replace(snapshot, stages=(*outputs, snapshot.stages[4]))
    async with scenes.console(snapshot, size=(120, 40)) as (app, pilot, _):
        await pilot.press("e", "enter", *"12000", "enter")
        await app.workers.wait_for_complete()
        await pilot.pause()
        text = "\n".join(scenes.screen_lines(app))
        assert "Taken up" not in text
        assert "Becomes STALE: generate, extract, vocab, train" in text
        assert f"train goes on as it was begun; {then}." in text


async def test_an_edit_says_what_goes_with_it(scenes: Any) -> None:
    async with scenes.console(scenes.before_start()) as (app, pilot, _):
        await pilot.press("e", "slash", *"extract.length", "enter", "enter", *"512", "enter")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert "With it goes train.length = 512." in "\n".join(scenes.screen_lines(app))


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


async def test_a_key_is_found_by_a_part_of_it(scenes: Any) -> None:
    async with scenes.console(scenes.training()) as (app, pilot, _):
        await pilot.press("e", "slash", *"batch_t")
        text = "\n".join(scenes.screen_lines(app))
        assert "extract.batch_tokens" in text
        assert "train.batch_tokens" in text
        assert "generate.max_samples" not in text
        await pilot.press(*"zzz")
        text = "\n".join(scenes.screen_lines(app))
        assert "No key is like batch_tzzz." in text
        assert "train.batch_tokens" in text
        await pilot.press(*["backspace"] * 3, "enter", "down", "enter", *"4096", "enter")
        await app.workers.wait_for_complete()
        await pilot.pause()
        text = "\n".join(scenes.screen_lines(app))
        assert "8,192 → 4,096" in text
        assert "train.batch_tokens: tokens of one step" in text
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, EditPlan)
        text = "\n".join(scenes.screen_lines(app))
        assert "train.lr" in text
        assert "8,192 → 4,096" in text
        await pilot.press("escape")
        assert app.screen.id == "overview"


async def test_a_letter_that_is_typed_into_the_search_does_nothing_else(scenes: Any) -> None:
    async with scenes.console(scenes.training()) as (app, pilot, collector):
        await pilot.press("e", "enter", *"77", "enter", "slash", *"skj")
        await app.workers.wait_for_complete()
        assert isinstance(app.screen, EditPlan)
        assert [call for call in collector.calls if call[0] == "set"] == []


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


# ---------------------------------------------------------------- the run goes on while it is open


def shown(scenes: Any, app: Any) -> str:
    return "\n".join(scenes.screen_lines(app))


async def publish(app: Any, pilot: Any, collector: Any, snapshot: Any) -> None:
    collector.publish(snapshot)
    await pilot.pause()
    await app.workers.wait_for_complete()
    await pilot.pause()


async def test_a_stage_that_starts_changes_what_saving_does_and_saving_asks_again(scenes: Any) -> None:
    before = scenes.before_start()
    async with scenes.console(before) as (app, pilot, collector):
        await pilot.press("e", "enter", *"12000", "enter")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert "No output becomes STALE" in shown(scenes, app)
        await publish(app, pilot, collector, scenes.generating())
        assert "Taken up at once by the running stage: generate.max_samples" in shown(scenes, app)
        assert "saving does something else than when you edited" in shown(scenes, app)
        await pilot.press("s")
        assert isinstance(app.screen, EditPlan)
        assert "Seen; s saves it now." in shown(scenes, app)
        await pilot.press("s")
        await app.workers.wait_for_complete()
        assert collector.calls[-1] == ("set", {"generate.max_samples": "12000"})


async def test_a_stage_that_ends_makes_its_output_stale(scenes: Any) -> None:
    async with scenes.console(scenes.generating(), size=(120, 40)) as (app, pilot, collector):
        await pilot.press("e", "enter", *"12000", "enter")
        await app.workers.wait_for_complete()
        ended = replace(scenes.generating(), stages=scenes.stages("DONE"))
        await publish(app, pilot, collector, ended)
        assert "Becomes STALE: generate." in shown(scenes, app)
        asked = len(collector.calls)
        await publish(app, pilot, collector, replace(ended, samples=1))
        assert len(collector.calls) == asked, "nothing that counts has changed"


async def test_a_frozen_screen_still_feeds_the_editor(scenes: Any) -> None:
    async with scenes.console(scenes.before_start()) as (app, pilot, collector):
        await pilot.press("space", "e", "enter", *"12000", "enter")
        await publish(app, pilot, collector, scenes.generating())
        assert "Taken up at once" in shown(scenes, app)


async def test_a_revision_from_elsewhere_is_told_and_the_changes_stay_on_top_of_it(scenes: Any) -> None:
    async with scenes.console(scenes.done(), size=(120, 40)) as (app, pilot, collector):
        await pilot.press("e", "enter", *"12000", "enter")
        await app.workers.wait_for_complete()
        other = {**scenes.plan_json(**{"train.lr": 0.0003}), "revision": 4}
        await publish(app, pilot, collector, replace(scenes.done(), plan=other, plan_revision=4))
        text = shown(scenes, app)
        assert "plan of kimi-k25-10k, revision 4" in text
        assert "Revision 4 was saved elsewhere: train.lr is 0.0003." in text
        assert "10,000 → 12,000" in text
        await pilot.press("s")
        assert isinstance(app.screen, EditPlan)
        await pilot.press("s")
        await app.workers.wait_for_complete()
        assert collector.calls[-1] == ("set", {"generate.max_samples": "12000"})


async def test_changes_that_a_newer_revision_does_not_allow_are_given_up_in_words(scenes: Any) -> None:
    first = scenes.plan_json()
    with_service = {**first, "services": {"vllm": {"command": ["vllm"], "port": 8000}}, "revision": 3}
    async with scenes.console(replace(scenes.done(), plan=with_service), size=(120, 40)) as (app, pilot, collector):
        await pilot.press("e")
        rows = [row.key for row in app.screen._list.rows]
        app.screen._list.cursor = rows.index("services.vllm.ready_timeout_s")
        await pilot.press("enter", *"99", "enter")
        await app.workers.wait_for_complete()
        assert app.screen._changes
        without = {**first, "revision": 4}
        await publish(app, pilot, collector, replace(scenes.done(), plan=without, plan_revision=4))
        assert "no longer go with it" in shown(scenes, app)
        await pilot.press("s")
        assert isinstance(app.screen, EditPlan)
        assert [call for call in collector.calls if call[0] == "set"] == []
