"""What is asked before something happens, and what is said when there is nothing to ask."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from console.screens import intents, restarting
from console.screens.hostkey import host_key_intent, host_key_question
from console.screens.intents import Intent, Refusal
from console.screens.plan_summary import what_follows
from console.snapshot import ConductorView
from console.widgets.ink import text_of
from remote.errors import AuthenticationError, HostKeyChanged, HostKeyUnknown

NEW = "SHA256:" + "A1b2" * 10 + "xyz"
OLD = "SHA256:" + "C3d4" * 10 + "uvw"


def keys(intent: Intent | Refusal) -> list[str]:
    assert isinstance(intent, Intent)
    return [answer.key for answer in intent.answers]


def words(intent: Intent | Refusal) -> str:
    assert isinstance(intent, Intent)
    return "\n".join(intent.facts)


def refusal(intent: Intent | Refusal) -> str:
    assert isinstance(intent, Refusal)
    return f"{intent.message} / {intent.remedy}"


@pytest.mark.parametrize("ask", [intents.start, intents.stop, intents.resume, intents.kill, restarting.choose])
@pytest.mark.parametrize("state", ["IDLE", "CONNECTING", "LOST", "BACKOFF", "BLOCKED"])
def test_nothing_is_asked_without_a_connection(scenes: Any, ask: Any, state: str) -> None:
    away = replace(scenes.training(), link=scenes.link(state))
    assert refusal(ask(away)) == f"Not connected to gpu-box ({state}) / R connects now"
    assert isinstance(ask(None), Refusal)


def test_start_tells_the_order_the_target_and_that_the_laptop_may_leave(scenes: Any) -> None:
    intent = intents.start(scenes.before_start())
    assert keys(intent) == ["refuse"]
    text = words(intent)
    assert "generate (10,000 samples), then extract, then vocab, then train, then deploy" in text
    assert "this console may be closed at any time" in text


def test_start_ends_at_the_last_planned_stage(scenes: Any) -> None:
    assert "deploy" not in words(intents.start(replace(scenes.before_start(), through="train")))


def test_start_with_stale_stages_asks_rerun_or_keep(scenes: Any) -> None:
    intent = intents.start(scenes.failed())
    assert keys(intent) == ["keep", "rerun"]
    text = words(intent)
    assert "vocab STALE: vocab.size is 16000 now, was 32000." in text
    assert "train (goes on at 18,000 of 45,000 steps; it was at 18,450), then deploy" in text
    assert "Left alone: generate, extract." in text


def test_start_says_beforehand_that_it_will_not_fit(scenes: Any) -> None:
    base = scenes.before_start()
    tight = replace(base, budget=replace(base.budget, fits=False, text="5.73 TB needed, 2.89 TB available"))
    assert "The host will refuse it" in words(intents.start(tight))
    assert "5.73 TB needed" in words(intents.start(tight))
    base = scenes.failed()
    later = replace(base, budget=replace(base.budget, fits=False, text="export 2 GB to be written: does not fit"))
    assert "It may not fit the volume: export 2 GB" in words(intents.start(later))
    assert "refuse it" not in words(intents.start(later))


def test_start_has_nothing_to_do_while_running_or_when_done(scenes: Any) -> None:
    assert refusal(intents.start(scenes.training())) == "train is already RUNNING / x stops it"
    assert (
        refusal(intents.start(scenes.done())) == "Every stage up to deploy is DONE / n restarts one, e edits the plan"
    )


def test_stop_tells_the_ladder(scenes: Any) -> None:
    intent = intents.stop(scenes.training())
    assert keys(intent) == ["stop"]
    assert isinstance(intent, Intent)
    assert intent.stage == "train"
    assert "after 1m00s, its processes get SIGTERM, then SIGKILL" in words(intent)
    assert "r resumes it" in words(intent)


def test_stop_is_asked_once(scenes: Any) -> None:
    one = scenes.stage("train", "STOPPING", stop_since=1000.0)
    stopping = replace(scenes.training(), stages=scenes.stages(train=one))
    assert refusal(intents.stop(stopping, 1037.0)) == "train is already STOPPING 37/60s / K kills it"
    assert refusal(intents.stop(scenes.done())) == "No stage is at work / s starts the run"


def test_resume_tells_from_where(scenes: Any) -> None:
    intent = intents.resume(scenes.failed())
    assert keys(intent) == ["keep"]
    text = words(intent)
    assert "vocab STALE: vocab.size is 16000 now, was 32000." in text
    assert "train (FAILED) goes on at 18,000 of 45,000 steps; it was at 18,450 (attempt 3 on output 1)" in text
    assert "CUDA ran out of memory" in text
    assert "After it: deploy." in text


def test_what_cannot_be_resumed_says_so(scenes: Any) -> None:
    base = scenes.failed()
    hopeless = replace(base.stages[3], resumable=False)
    found = refusal(intents.resume(replace(base, stages=(*base.stages[:3], hopeless, base.stages[4]))))
    assert found.startswith("train FAILED and can't be resumed / Lower train.batch_tokens")
    assert refusal(intents.resume(scenes.training())) == "train is already RUNNING / x stops it"
    assert refusal(intents.resume(scenes.done())) == "There is nothing to resume / s starts the run"


def test_kill_wants_the_name_and_reaches_a_lost_stage(scenes: Any) -> None:
    intent = intents.kill(scenes.training())
    assert isinstance(intent, Intent)
    assert (intent.typed, intent.danger, keys(intent)) == ("train", True, ["kill"])
    assert "SIGKILL" in words(intent)
    lost = replace(scenes.training(), stages=scenes.stages("DONE", "LOST"))
    found = intents.kill(lost)
    assert isinstance(found, Intent)
    assert found.stage == "extract"
    assert isinstance(intents.kill(scenes.done()), Refusal)


def test_leaving_never_claims_what_is_not_known(scenes: Any) -> None:
    assert intents.leaving(scenes.training()) == "Detached. kimi-k25-10k keeps going on gpu-box: train is RUNNING."
    assert "when it was last heard of" in intents.leaving(scenes.lost())
    assert "No stage" in intents.leaving(scenes.done())
    assert intents.leaving(None) == "Detached."


# ---------------------------------------------------------------- host keys, in the words of the link itself


def test_an_unknown_host_key_is_confirmed(scenes: Any) -> None:
    error = HostKeyUnknown("gpu-box", "ssh-ed25519", NEW, "")
    question = host_key_question(scenes.link("BLOCKED", message=error.message, remedy=error.remedy))
    assert question is not None
    assert (question.host, question.offered, question.pinned) == ("gpu-box", NEW, "")
    intent = host_key_intent(question)
    assert (intent.typed, keys(intent)) == ("", ["confirm"])
    assert NEW in words(intent)


def test_what_the_persons_known_hosts_say_is_shown(scenes: Any) -> None:
    error = HostKeyUnknown("gpu-box", "ssh-ed25519", NEW, "", "~/.ssh/known_hosts has the same key for it.")
    question = host_key_question(scenes.link("BLOCKED", message=error.message, remedy=error.remedy))
    assert question is not None and question.hint == error.hint
    assert error.hint in words(host_key_intent(question))


def test_a_changed_host_key_wants_the_name(scenes: Any) -> None:
    error = HostKeyChanged("jump:203.0.113.7:22", OLD, "ssh-ed25519", NEW, "")
    question = host_key_question(scenes.link("BLOCKED", message=error.message, remedy=error.remedy))
    assert question is not None
    assert (question.host, question.offered, question.pinned) == ("jump:203.0.113.7:22", NEW, OLD)
    intent = host_key_intent(question)
    assert (intent.typed, intent.danger) == ("jump:203.0.113.7:22", True)
    assert OLD in words(intent)
    assert NEW in words(intent)


def test_a_refused_login_asks_nothing(scenes: Any) -> None:
    error = AuthenticationError("gpu-box refused every key", "Name the right one")
    assert host_key_question(scenes.link("BLOCKED", message=error.message)) is None
    assert host_key_question(scenes.link("LIVE", message=f"{NEW}")) is None


# ---------------------------------------------------------------- before the first stage


def follows(snapshot: Any) -> list[str]:
    return [text_of(line) for line in what_follows(snapshot)]


def test_what_follows_is_told_before_the_start(scenes: Any) -> None:
    assert follows(scenes.before_start()) == [
        "s starts the run",
        "",
        "· generate  10,000 samples, up to 4,096 tokens",
        "· extract   by transformers, up to 2,048 tokens",
        "· vocab     up to 32,000 tokens",
        "· train     5 epochs, learning rate 0.0001, TTT 3",
        "· deploy    k = 3, 64 prompts, engine bundled",
        "",
        "train draws its loss here",
    ]
    borrowed = replace(
        scenes.before_start(), plan=scenes.plan_json(**{"extract.from_run": "other/extract"}), through="extract"
    )
    assert follows(borrowed)[-1] == "· extract   borrowed from other/extract"


def test_what_follows_needs_no_plan(scenes: Any) -> None:
    assert follows(replace(scenes.before_start(), plan=None))[0] == "s starts the run"
    assert follows(replace(scenes.before_start(), plan={"stages": 7}, through="vocab")) == ["s starts the run"]
    assert follows(replace(scenes.before_start(), stages=())) == ["waiting for the host"]


def test_what_happens_now_is_told_while_there_is_no_curve(scenes: Any) -> None:
    """The clock: 14:02:07 and 4,860 seconds."""
    found = follows(scenes.generating())
    assert found[0] == "the verifier answers the prompts · until ~15:23"
    assert found[2] == "▶ generate  4,120 of 10,000 samples · 1.2/s"
    assert found[5] == "· train     5 epochs, learning rate 0.0001, TTT 3"
    soon = replace(scenes.generating().stages[0], eta_s=30.0)
    assert (
        follows(replace(scenes.generating(), stages=scenes.stages(generate=soon)))[0]
        == "the verifier answers the prompts"
    )
    at_work = scenes.stage("extract", "RUNNING", done=8_100_000, total=21_033_536, rate=182_000.0, eta_s=172_800.0)
    made = scenes.stage("generate", "DONE", done=10_000, total=10_000)
    found = follows(
        replace(
            scenes.generating(), samples=10_000, tokens=21_033_536, stages=scenes.stages(generate=made, extract=at_work)
        )
    )
    assert found[0] == "hidden states are written to disk · until ~Tue 14:02"
    assert found[2] == "✓ generate  10,000 samples, 21,033,536 tokens"
    assert found[3] == "▶ extract   8.10M of 21.0M tokens · 182k/s"


def test_what_each_stage_has_made_or_waits_for_is_told(scenes: Any) -> None:
    made = {
        "extract": scenes.stage("extract", "DONE", counts={"bytes": 1.2e12, "shards": 600.0}),
        "vocab": scenes.stage("vocab", "DONE", counts={"size": 32_000.0, "coverage": 0.973}),
        "train": scenes.stage("train", "RUNNING", phase="loading"),
    }
    found = follows(replace(scenes.generating(), stages=scenes.stages("DONE", **made)))
    assert found[0] == "the drafter learns"
    assert found[3] == "✓ extract   1.20 TB of hidden states in 600 shards"
    assert found[4] == "✓ vocab     32,000 tokens, 97% of the text"
    assert found[5] == "▶ train     loading"


def test_what_to_do_is_told_of_a_run_that_rests(scenes: Any) -> None:
    def first(**states: Any) -> str:
        return follows(replace(scenes.generating(), stages=scenes.stages(**states), through="vocab"))[0]

    stopped = scenes.stage("generate", "STOPPED", resumable=True, done=3, total=4)
    assert first(generate=stopped) == "generate STOPPED: r resumes it"
    assert first(generate=scenes.stage("generate", "STOPPING")) == "generate saves and ends"
    assert first(generate=scenes.stage("generate", "DONE")) == "s goes on"
    all_done = {name: scenes.stage(name, "DONE") for name in ("generate", "extract", "vocab")}
    assert first(**all_done) == "every stage up to vocab is DONE"


# ---------------------------------------------------------------- between two stages


def waiting(scenes: Any) -> Any:
    return replace(scenes.before_start(), conductor=ConductorView("waiting", message="service vllm"))


def test_a_run_that_waits_for_a_service_is_under_way(scenes: Any) -> None:
    assert follows(waiting(scenes))[0] == "kimi-k25-10k is waiting for service vllm"
    assert refusal(intents.start(waiting(scenes))) == "kimi-k25-10k is waiting for service vllm / x stops it"
    assert "keeps going" in intents.leaving(waiting(scenes))


def test_a_run_between_two_stages_can_be_stopped(scenes: Any) -> None:
    intent = intents.stop(waiting(scenes))
    assert keys(intent) == ["stop"]
    assert isinstance(intent, Intent)
    assert intent.stage == ""
    assert "kimi-k25-10k is waiting for service vllm." in words(intent)


def test_between_its_stages_a_run_says_where_it_is(scenes: Any) -> None:
    def said(*states: str) -> str:
        return words(
            intents.stop(replace(scenes.done(), conductor=ConductorView("running"), stages=scenes.stages(*states)))
        )

    assert said().startswith("kimi-k25-10k is starting its first stage. It stops going on")
    assert said("DONE").startswith("kimi-k25-10k goes on after generate.")
    assert said(*["DONE"] * 5).startswith("kimi-k25-10k has ended deploy.")
    between = replace(scenes.done(), conductor=ConductorView("running"), stages=scenes.stages("DONE"))
    assert intents.leaving(between) == "Detached. kimi-k25-10k goes on after generate, and keeps going on gpu-box."


def test_a_lost_conductor_is_replaced_under_a_running_stage(scenes: Any) -> None:
    intent = intents.start(replace(scenes.training(), conductor=ConductorView("lost")))
    assert keys(intent) == ["refuse"]
    assert "train is RUNNING without a conductor" in words(intent)


def test_a_restart_asks_which_stage_and_tells_what_follows(scenes: Any) -> None:
    intent = restarting.choose(scenes.failed())
    assert keys(intent) == ["generate", "extract", "vocab", "train"]
    assert "it stays on disk" in words(intent)
    intent = restarting.confirm(scenes.failed(), "extract")
    assert keys(intent) == ["keep", "rerun"]
    assert "Output 1 no longer counts" in words(intent)
    assert "STALE already: vocab." in words(intent)
    assert isinstance(intent, Intent) and intent.danger and intent.stage == "extract"
    assert [answer.label for answer in intent.answers] == ["Keep the rest", "Rerun the rest"]
    assert intent.answers[0].effect == "what is STALE then stays as it is, and counts"
    assert intent.answers[1].effect == "new outputs for what is STALE then; the old ones stay on disk"


def test_a_restart_of_the_last_stage_needs_no_choice(scenes: Any) -> None:
    intent = restarting.confirm(scenes.done(), "deploy")
    assert keys(intent) == ["refuse"]
    assert refusal(restarting.confirm(scenes.before_start(), "train")).startswith("train has no output to replace")


def test_each_cause_of_stale_is_told_once(scenes: Any) -> None:
    row = [
        scenes.stage(name, "DONE", stale=True, stale_reason=f"reason of {name}", stale_root="vocab")
        for name in ("vocab", "train", "deploy")
    ]
    stages = scenes.stages("DONE", "DONE", **{one.name: one for one in row})
    text = words(intents.start(replace(scenes.done(), stages=stages)))
    assert "vocab STALE: reason of vocab; with it train, deploy." in text
    kept = tuple(replace(one, kept=one.stale) for one in stages)
    assert refusal(intents.start(replace(scenes.done(), stages=kept))).startswith("Every stage up to deploy is DONE")


def test_what_is_unfinished_and_stale_can_only_be_rerun(scenes: Any) -> None:
    train = scenes.stage("train", "STOPPED", stale=True, stale_reason="train.lr is 0.01 now", stale_root="train")
    intent = intents.start(replace(scenes.done(), stages=scenes.stages(*["DONE"] * 3, train=train)))
    assert keys(intent) == ["rerun"]
    assert "train can't go on under the plan as it is now" in words(intent)


def test_resume_goes_on_where_was_saved(scenes: Any) -> None:
    killed = scenes.stage("train", "KILLED", resumable=True, done=290, total=600, saved=150)
    row = scenes.stages(*["DONE"] * 3, train=killed)
    text = words(intents.resume(replace(scenes.done(), stages=row)))
    assert "train (KILLED) goes on at 150 of 600 steps; it was at 290 (attempt 2 on output 1)." in text
    lost = scenes.stage("generate", "LOST", resumable=True, done=290, total=600)
    text = words(intents.resume(replace(scenes.done(), stages=scenes.stages(generate=lost))))
    assert "generate (LOST) goes on from what it has saved" in text


def test_resume_asks_about_what_is_stale_before_it(scenes: Any) -> None:
    train = scenes.stage("train", "STOPPED", resumable=True, done=150, total=600, saved=150)
    vocab = scenes.stage("vocab", "DONE", stale=True, stale_reason="vocab.size is 16000 now", stale_root="vocab")
    deploy = scenes.stage("deploy", "DONE", stale=True, stale_reason="its input", stale_root="deploy")
    row = scenes.stages("DONE", "DONE", vocab=vocab, train=train, deploy=deploy)
    intent = intents.resume(replace(scenes.done(), stages=row))
    assert keys(intent) == ["keep"]
    assert isinstance(intent, Intent) and intent.answers[0].effect.startswith("goes on with vocab as before")
    plain = scenes.stages("DONE", "DONE", "DONE", train=train, deploy=deploy)
    intent = intents.resume(replace(scenes.done(), stages=plain))
    assert keys(intent) == ["refuse"]
    assert "After it: deploy with a new output." in words(intent)
