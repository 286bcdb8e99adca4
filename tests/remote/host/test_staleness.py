"""What is said before an errand begins about what is stale, or would become so. Pure."""

from __future__ import annotations

from dataclasses import replace

from pipeline.config import STAGES
from pipeline.rundir import StageState, StageStatus
from remote.agent.errand import Errand
from remote.agent.staleness import refusal

DONE = StageStatus(StageState.DONE)
STALE = StageStatus(StageState.DONE, stale=True, stale_reason="generate was continued")
BORROWED = StageStatus(StageState.DONE, borrowed="lend/extract")


def seen(**changes):
    return {**dict.fromkeys(STAGES, StageStatus(StageState.PENDING)), **changes}


def told(states, **errand):
    return refusal(states, Errand(run="kimi", **errand))


def test_stale_stages_in_the_way_are_named_with_the_command():
    states = seen(generate=STALE, extract=STALE)
    message, remedy = told(states)
    assert message == "generate is stale: generate was continued; extract is stale: generate was continued"
    assert "`eagledeck start kimi --rerun-stale`" in remedy
    assert "`eagledeck start kimi --keep-stale`" in remedy
    assert told(states, first="extract")[0].startswith("extract is stale")
    assert "`eagledeck restart kimi generate --keep-stale`" in told(states, restart="generate")[1]
    assert told(states, stale="keep") is None
    assert told(states, stale="rerun") is None


def test_each_cause_is_told_once():
    states = {
        **dict.fromkeys(STAGES, DONE),
        "vocab": StageStatus(StageState.DONE, stale=True, stale_reason="smaller now", stale_root="vocab"),
        "train": StageStatus(StageState.DONE, stale=True, stale_reason="its input", stale_root="vocab"),
        "deploy": StageStatus(StageState.DONE, stale=True, stale_reason="its input", stale_root="vocab"),
    }
    assert told(states)[0] == "vocab is stale: smaller now, and so are train and deploy"


def test_what_is_kept_is_in_nobodys_way():
    kept = replace(STALE, kept=True)
    assert told(seen(generate=kept)) is None
    assert told(seen(generate=kept), stale="rerun") is None


def test_a_resume_brings_up_to_date_what_follows_the_stage_and_asks_about_the_rest():
    failed = StageStatus(StageState.FAILED, resumable=True)
    done = dict.fromkeys(STAGES, DONE)
    assert told({**done, "train": failed}, resume="train") is None
    assert told({**done, "train": failed, "deploy": STALE}, resume="train") is None
    message, remedy = told({**done, "train": failed, "vocab": STALE, "deploy": STALE}, resume="train")
    assert message == "vocab is stale: generate was continued"
    assert "`eagledeck start kimi --rerun-stale`" in remedy
    assert "`eagledeck resume kimi --keep-stale`" in remedy
    assert told({**done, "train": failed, "vocab": STALE}, resume="train", stale="keep") is None
    assert told({**done, "generate": failed, "extract": STALE, "vocab": STALE}, resume="generate") is None
    borrowed = {**done, "generate": failed, "extract": replace(BORROWED, stale=True)}
    assert told(borrowed, resume="generate")[0].startswith("extract is borrowed from lend/extract and stale")


def test_an_unfinished_output_under_another_plan_can_only_be_begun_anew():
    stopped = StageStatus(StageState.STOPPED, stale=True, stale_reason="train.lr is 0.01 now, was 0.001")
    states = {**dict.fromkeys(STAGES, DONE), "train": stopped, "deploy": StageStatus(StageState.PENDING)}
    for policy in ("refuse", "keep"):
        message, remedy = told(states, stale=policy)
        assert message == "train isn't finished and can't go on: train.lr is 0.01 now, was 0.001"
        assert remedy == "`eagledeck start kimi --rerun-stale` begins a new output; or take the change back"
    assert told(states, stale="rerun") is None
    assert told(states, restart="train") is None
    both = {**states, "deploy": STALE}
    assert told(both)[1] == "`eagledeck start kimi --rerun-stale` begins new outputs; or take the change back"
    assert told({**states, "generate": stopped, "train": stopped}, resume="generate")[0].startswith("generate")


def test_a_rerun_that_could_never_settle_is_refused():
    states = seen(generate=DONE, extract=STALE, vocab=DONE)
    assert told(states, first="vocab", through="vocab", stale="rerun") is None
    message, remedy = told(states, first="vocab", stale="rerun")
    assert message.startswith("extract is stale") and "beginning with vocab, would stay stale" in message
    assert "--from extract --rerun-stale" in remedy
    assert told(seen(generate=STALE), first="train", stale="keep") is None


def test_a_restart_says_which_done_stages_it_would_leave_stale():
    states = dict.fromkeys(STAGES, DONE)
    message, remedy = told(states, restart="train")
    assert message.startswith("deploy is done and made from the output of train")
    assert "`eagledeck restart kimi train --rerun-stale`" in remedy
    assert told(states, restart="vocab")[0].startswith("train and deploy are done")
    assert told(states, restart="train", through="train") is None
    assert told(states, restart="train", stale="rerun") is None
    assert told(states, restart="train", stale="keep") is None
    assert told(seen(generate=DONE, extract=BORROWED), restart="generate") is None


def test_what_is_borrowed_is_made_anew_by_its_own_run():
    stale = StageStatus(StageState.DONE, borrowed="lend/extract", stale=True, stale_reason="another length")
    for policy in ("refuse", "rerun"):
        message, remedy = told(seen(extract=stale), stale=policy)
        assert message == "extract is borrowed from lend/extract and stale: another length"
        assert "Rerun it in lend (`eagledeck start lend --rerun-stale`)" in remedy
    assert told(seen(extract=stale), first="train") is None
    assert told(seen(extract=stale), first="train", stale="rerun") is not None
    assert "`eagledeck restart lend extract`" in told(seen(extract=BORROWED), restart="extract", stale="keep")[1]
