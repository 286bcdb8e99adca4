"""What is said before an errand begins about what is stale, or would become so. Pure."""

from __future__ import annotations

from dataclasses import replace

from pipeline.config import STAGES
from pipeline.rundir import StageState, StageStatus
from remote.agent.errand import Errand
from remote.agent.staleness import for_resume, refusal

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


def test_a_resume_reruns_what_follows_the_stage_and_nothing_else():
    failed = StageStatus(StageState.FAILED, resumable=True)
    done = dict.fromkeys(STAGES, DONE)
    assert for_resume({**done, "train": failed}, "train") == "refuse"
    assert for_resume({**done, "train": failed, "deploy": STALE}, "train") == "rerun"
    assert for_resume({**done, "train": failed, "vocab": STALE, "deploy": STALE}, "train") == "refuse"
    assert for_resume({**done, "generate": failed, "extract": STALE, "vocab": STALE}, "generate") == "rerun"
    assert for_resume({**done, "generate": failed, "extract": replace(BORROWED, stale=True)}, "generate") == "refuse"


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
