"""Every panel as the lines it draws: states by glyph and word, unknown as `—`, nothing wider than its room."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len

from console.acceptance import OLDER, acceptance_of, simulated_rates
from console.command.printing import stage_line, status_json, status_lines
from console.snapshot import ConductorView, Curve, EventView, GpuView, ServiceView
from console.views import acceptance_length
from console.widgets.acceptance import acceptance_lines
from console.widgets.alerts import Alert, alert_lines, alert_rows, alerts
from console.widgets.chart.views import views_of
from console.widgets.events import event_lines
from console.widgets.footer import footer_line
from console.widgets.gpus import gpu_lines, gpu_summary
from console.widgets.ink import Line, fold, text_of, width_of
from console.widgets.log import line_role, log_lines
from console.widgets.palette import roles
from console.widgets.rail import rail_lines
from console.widgets.targets import target_lines
from console.widgets.truth import Moment, truth_line

NOW_TEXT = "14:02:07"
LINK_STATES = ("IDLE", "CONNECTING", "BOOTSTRAP", "LIVE", "STALE", "LOST", "BACKOFF", "BLOCKED", "SOMETHING-NEW")
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


def shown(lines: list[Line]) -> list[str]:
    return [text_of(line).rstrip() for line in lines]


def fits(lines: list[Line], width: int, height: int) -> None:
    assert len(lines) <= height
    known = set(roles())
    for line in lines:
        assert width_of(line) == width, text_of(line)
        assert {role for _, role in line} <= known


# ---------------------------------------------------------------- the line of truth


def truth(scenes: Any, width: int = 80, moment: Moment | None = None, **link: Any) -> str:
    snapshot = replace(scenes.training(), link=scenes.link(**link))
    line = truth_line(snapshot, moment or Moment(clock=NOW_TEXT), width)
    assert width_of(line) == width
    return text_of(line).rstrip()


def test_the_truth_at_80_columns(scenes: Any) -> None:
    assert truth(scenes) == " ● LIVE 0.4s  ssh 38 ms   gpu-box › kimi-k25-10k     plan 3   8 GPUs   14:02:07"


@pytest.mark.parametrize("state", LINK_STATES)
def test_every_link_state_is_a_glyph_and_a_word_at_every_width(scenes: Any, state: str) -> None:
    for width in (40, 60, 80, 120, 200):
        text = truth(scenes, width, state=state)
        assert text.split()[1] == state
        assert not text.split()[0].isalnum()
        assert text.endswith(NOW_TEXT)


def test_the_age_grows_between_snapshots(scenes: Any) -> None:
    assert "STALE 20s" in truth(scenes, state="STALE", age_s=12.0, moment=Moment(8.0, NOW_TEXT))
    assert "BACKOFF 55s retry 0.0s" in truth(
        scenes, state="BACKOFF", age_s=47.0, retry_in_s=6.0, moment=Moment(8.0, NOW_TEXT)
    )


def test_an_unknown_age_is_a_dash(scenes: Any) -> None:
    assert "CONNECTING —" in truth(scenes, state="CONNECTING", age_s=None, rtt_ms=None)
    assert "waiting for the first data" in text_of(truth_line(None, Moment(clock=NOW_TEXT), 80))


def test_a_freeze_says_how_much_it_holds_back(scenes: Any) -> None:
    assert "FROZEN +312" in truth(scenes, 60, Moment(0.0, NOW_TEXT, True, 312))


def test_long_names_keep_both_ends(scenes: Any) -> None:
    snapshot = replace(scenes.training(), run="r" * 40 + "-end", host="h" * 60)
    for width in (60, 80, 120):
        text = text_of(truth_line(snapshot, Moment(clock=NOW_TEXT), width))
        assert "-end" in text
        assert NOW_TEXT in text


def test_gpus_are_named_when_they_are_alike_and_there_is_room(scenes: Any) -> None:
    assert "8 × RTX PRO 6000 Blackwell" in truth(scenes, 120)
    none = replace(scenes.training(), gpus=(), gpu_note="no GPU on this host")
    assert "no GPU" in text_of(truth_line(none, Moment(clock=NOW_TEXT), 80))


# ---------------------------------------------------------------- the stages


def test_the_rail_at_80_columns(scenes: Any) -> None:
    assert shown(rail_lines(scenes.training().stages, "deploy", 80, 2)) == [
        " ✓ generate   ✓ extract    ✓ vocab      ▶ train ━━━━━━╸───────── 41%   · deploy",
        " DONE 9h20m   DONE 6h41m   DONE 1m04s   RUNNING 4h12m eta 6h02m        PENDING",
    ]


@pytest.mark.parametrize("state", STAGE_STATES)
@pytest.mark.parametrize(("width", "height"), [(60, 2), (80, 2), (100, 2), (120, 3), (200, 3)])
def test_every_state_of_a_stage_is_a_glyph_and_a_word(scenes: Any, state: str, width: int, height: int) -> None:
    for stale in (False, True):
        one = scenes.stage("train", state, done=3, total=7, elapsed_s=4e5, eta_s=9e5, stale=stale)
        lines = rail_lines(scenes.stages("DONE", "DONE", "DONE", train=one), "deploy", width, height)
        fits(lines, width, height)
        text = "\n".join(shown(lines))
        assert state in text
        assert ("STALE" in text) == stale


def test_a_stopping_stage_counts_its_grace(scenes: Any) -> None:
    one = scenes.stage("train", "STOPPING", stop_since=1000.0, stop_grace_s=60.0, elapsed_s=99.0)
    assert "STOPPING 37/60s" in shown(rail_lines(scenes.stages(train=one), "deploy", 80, 2, now_host=1037.0))[1]


def test_stages_beyond_the_last_planned_one_say_so(scenes: Any) -> None:
    text = shown(rail_lines(scenes.stages("DONE"), "vocab", 120, 2))
    assert text[1].count("not planned") == 2


def test_the_rail_before_the_first_data() -> None:
    assert "generate" in shown(rail_lines((), "", 80, 2))[0]


# ---------------------------------------------------------------- alerts


def test_a_failure_is_told_with_its_remedy(scenes: Any) -> None:
    found = alerts(scenes.failed())
    assert [alert.role for alert in found] == ["bad", "warn"]
    text = shown(alert_lines(found, 80, 4))
    assert text[0].startswith(" ! train FAILED: CUDA ran out of memory")
    assert "→ Lower train.batch_tokens" in text[2]
    assert text[3].startswith(" ! vocab STALE: vocab.size is 16000 now, was 32000")


def test_alerts_that_do_not_fit_are_counted(scenes: Any) -> None:
    found = [Alert("bad", "one"), Alert("warn", "two"), Alert("warn", "three")]
    assert shown(alert_lines(found, 40, 1)) == [" ! one                          +2 more"]
    assert shown(alert_lines(found, 40, 3)) == [" ! one", " ! two", " ! three"]
    assert alert_rows(found, 40) == 3


def test_long_alerts_never_break_a_line() -> None:
    found = [Alert("bad", "word " * 60, "remedy " * 40), Alert("warn", "x" * 500)]
    for width in (20, 60, 80, 120):
        for height in (1, 2, 3, 6):
            fits(alert_lines(found, width, height), width, height)


def test_what_a_person_must_know_is_an_alert(scenes: Any) -> None:
    base = scenes.training()

    def told(**fields: Any) -> str:
        return " | ".join(f"{alert.message} {alert.remedy}" for alert in alerts(replace(base, **fields)))

    assert told() == ""
    assert "full" not in told(disk=scenes.disk(2.31e12, 1e3))
    assert "reaches its reserve in 1h" in told(disk=scenes.disk(2.31e12, 1.5e8))
    assert told(disk=scenes.disk(0.3e12, 1.5e8)) == "", "a burst on an empty volume"
    assert "free, the reserve is 100 GB" in told(disk=scenes.disk(2.95e12, None))
    assert "service vllm FAILED: out of memory" in told(services=(ServiceView("vllm", "FAILED", "", "out of memory"),))
    silent = ServiceView("vllm", "SILENT", "", "not answering since Tue 14:02:11: it answers 503")
    assert "service vllm is not answering since Tue 14:02:11: it answers 503" in told(services=(silent,))
    lost = GpuView(5, "", None, None, None, None, None, None, "GPU is lost")
    assert "GPU 5: GPU is lost" in told(gpus=(lost,))
    assert "5.73 TB is too much" in told(budget=replace(base.budget, fits=False, text="5.73 TB is too much"))
    assert told(conductor=ConductorView("failed", message="there is no run demo")) == "there is no run demo "
    assert "halted: service vllm did not become ready" in told(
        conductor=ConductorView("halted", message="service vllm did not become ready")
    )
    assert "the conductor is gone" in told(conductor=ConductorView("lost"))
    assert (
        told(conductor=ConductorView("running"))
        == told(conductor=ConductorView("waiting", message="service vllm"))
        == told(conductor=ConductorView("idle"))
        == ""
    )
    blocked = scenes.link("BLOCKED", message="The key was refused", remedy="Add the key to the host")
    assert told(link=blocked) == "The key was refused Add the key to the host"


def test_a_host_that_stays_away_keeps_its_alert_while_it_is_tried_again(scenes: Any) -> None:
    away = scenes.link("BACKOFF", message="gpu-box does not answer")
    trying = replace(scenes.training(), link=scenes.link("CONNECTING"))
    assert alerts(trying) == []
    assert [alert.message for alert in alerts(trying, None, away)] == ["gpu-box does not answer"]
    assert alerts(scenes.training(), None, away) == []


# ---------------------------------------------------------------- GPUs


def test_gpu_rows(scenes: Any) -> None:
    assert shown(gpu_lines(scenes.gpus(2), "", 27, 3)) == [
        "gpus  1.15 kW · 173/191 GiB",
        " 0 ━━━━━━━╸ 97%  572W   88G",
        " 1 ━━━━━━━╸ 98%  580W   85G",
    ]
    assert shown(gpu_lines(scenes.gpus(1), "", 43, 3))[1] == " 0 ━━━━━━━━╸ 97% 572/600W ━━━━━╸ 88/96G 67°"
    assert (
        shown(gpu_lines(scenes.gpus(1), "", 74, 3))[1]
        == " 0 ━━━━━━━━━━━━━━━━━━╸ 97%  572/600 W   ━━━━━━━━━━━━━━━━╸─ 88/96 GiB  67°C"
    )


@pytest.mark.parametrize("width", [20, 27, 34, 43, 58, 74])
@pytest.mark.parametrize("height", [1, 2, 5, 9, 20])
@pytest.mark.parametrize("count", [0, 1, 8, 16])
def test_gpus_fit_and_none_is_forgotten(scenes: Any, count: int, width: int, height: int) -> None:
    lines = gpu_lines(scenes.gpus(count), "", width, height)
    fits(lines, width, height)
    if count and height >= 5:
        text = "\n".join(shown(lines))
        hidden = int(text.rpartition("and ")[2].partition(" more")[0]) if "more" in text else 0
        rows = sum(row.count("%") for row in shown(lines)[1:])
        assert rows + hidden == count


def test_a_missing_reading_is_a_dash_and_never_zero(scenes: Any) -> None:
    blind = GpuView(0, "", None, math.nan, None, None, 96e9, None, "")
    for width in (27, 34, 43, 74):
        row = shown(gpu_lines((blind,), "", width, 2))[1]
        assert "—" in row
        assert "0%" not in row
        assert " 0W" not in row
    lost = GpuView(3, "", None, None, None, None, None, None, "GPU is lost")
    assert shown(gpu_lines((lost,), "", 40, 2))[1] == " 3 ! GPU is lost"


def test_a_sum_without_all_readings_is_a_lower_bound(scenes: Any) -> None:
    one, two = scenes.gpus(2)
    assert "≥572 W" in shown(gpu_lines((one, replace(two, power_w=None)), "", 60, 3))[0]


def test_no_gpu_is_said_in_words() -> None:
    assert shown(gpu_lines((), "no GPU on this host", 40, 5)) == ["gpus  no GPU on this host ──────────────"]
    assert shown(gpu_lines((), "", 20, 5))[0].startswith("gpus  —")
    assert text_of(gpu_summary((), "no GPU on this host", 40)).rstrip() == "gpus     no GPU on this host"


# ---------------------------------------------------------------- progress


def test_progress_at_50_columns(scenes: Any) -> None:
    assert shown(target_lines(scenes.training(), 50, 5)) == [
        "progress  budget 2.29 TB fits ────────────────────",
        "train   ━━━────   18.4k/45.0k  41%  1.2 steps/s",
        "samples ━━━━━━━ 10,000/10,000 100%",
        "tokens             21,033,536       2,103/sample",
        "volume  ━━━━━╸│  2.31/3.00 TB  77%  full in 15h27m",
    ]


def test_the_volume_says_when_it_is_full_only_where_that_can_matter(scenes: Any) -> None:
    def volume(used: float, rate: float) -> str:
        return shown(target_lines(replace(scenes.training(), disk=scenes.disk(used, rate)), 120, 5))[4]

    assert "full in 16h" in volume(2.31e12, 1.0e7)
    assert "full in" not in volume(0.3e12, 5.0e7)
    assert "+180 GB/h" in volume(0.3e12, 5.0e7)
    shrinking = replace(scenes.disk(2.31e12, None), fill_rate_bps=-1.0e7)
    assert "-" not in shown(target_lines(replace(scenes.training(), disk=shrinking), 120, 5))[4]


def test_more_samples_than_a_lowered_target_are_all_of_them(scenes: Any) -> None:
    lowered = replace(scenes.training(), samples=720, samples_target=600)
    assert shown(target_lines(lowered, 60, 5))[2].split()[-4:] == ["720", "100%", "target", "600"]


def test_no_budget_is_told_when_everything_is_written(scenes: Any) -> None:
    done = scenes.done()
    written = replace(done, budget=replace(done.budget, need_bytes=0, text="everything is written; 1 GB free"))
    assert "budget" not in shown(target_lines(written, 50, 5))[0]


@pytest.mark.parametrize("width", [30, 40, 50, 58, 74, 120])
@pytest.mark.parametrize("height", [0, 1, 2, 3, 5, 8])
def test_progress_fits(scenes: Any, width: int, height: int) -> None:
    huge = replace(scenes.training(), samples=987_654_321, samples_target=10**9, tokens=10**13, tokens_target=10**14)
    for snapshot in (scenes.before_start(), scenes.generating(), scenes.training(), scenes.done(), huge, None):
        fits(target_lines(snapshot, width, height), width, max(1, height))


def test_the_volume_is_the_last_row_to_go(scenes: Any) -> None:
    assert "volume" in shown(target_lines(scenes.training(), 60, 2))[1]


def test_unknown_counts_are_dashes(scenes: Any) -> None:
    blank = replace(scenes.before_start(), disk=None, samples_target=None)
    rows = [row.split() for row in shown(target_lines(blank, 60, 5))[1:]]
    assert rows == [["samples", "—"], ["tokens", "—"], ["volume", "—"]]


def test_services_in_use_are_told(scenes: Any) -> None:
    services = (
        ServiceView("vllm", "STARTING", "http://127.0.0.1:8000", ""),
        ServiceView("sglang", "IDLE", "", ""),
        ServiceView("a-very-long-name", "READY", "", ""),
        ServiceView("hung", "SILENT", "", ""),
    )
    rows = shown(target_lines(replace(scenes.before_start(), services=services), 120, 7))
    assert rows[1].split() == ["vllm", "○", "STARTING", "http://127.0.0.1:8000"]
    assert rows[2].split() == ["a-very…", "●", "READY"]
    assert rows[3].split() == ["hung", "!", "SILENT"]
    assert not any("sglang" in row for row in rows)


def test_a_failed_stage_is_told_once(scenes: Any) -> None:
    halted = replace(
        scenes.failed(), conductor=ConductorView("halted", "train", message="train failed: CUDA ran out of memory")
    )
    assert [alert.message.split(":")[0] for alert in alerts(halted)] == ["train FAILED", "vocab STALE"]


def stale(scenes: Any, *names: str, root: str, **fields: Any) -> dict[str, Any]:
    return {
        name: scenes.stage(
            name, fields.get("state", "DONE"), stale=True, stale_reason="vocab.size is 16000 now", stale_root=root
        )
        for name in names
    }


def test_a_cause_is_told_once_with_all_that_is_stale_for_it(scenes: Any) -> None:
    row = scenes.stages(*["DONE"] * 5, **stale(scenes, "vocab", "train", "deploy", root="vocab"))
    found = alerts(replace(scenes.done(), stages=row))
    assert [alert.message for alert in found] == ["vocab STALE: vocab.size is 16000 now; with it train, deploy"]
    assert found[0].remedy == "s asks whether to rerun or keep it"
    both = scenes.stages(
        *["DONE"] * 5, **stale(scenes, "extract", root="extract"), **stale(scenes, "vocab", root="vocab")
    )
    assert [alert.message for alert in alerts(replace(scenes.done(), stages=both))] == [
        "extract, vocab STALE: vocab.size is 16000 now"
    ]
    busy = replace(scenes.done(), stages=row, conductor=ConductorView("running", "train"))
    assert alerts(busy)[0].remedy == "once the run rests, s asks what becomes of it"
    settling = ConductorView("running", "vocab", settles=("vocab", "train", "deploy"))
    assert alerts(replace(scenes.done(), stages=row, conductor=settling)) == []
    kept = tuple(replace(one, kept=one.stale) for one in row)
    assert alerts(replace(scenes.done(), stages=kept)) == []


def test_a_stage_that_waits_says_for_what(scenes: Any) -> None:
    waiting = scenes.stage("generate", "RUNNING", phase="waiting", note="http://h:1 does not answer (refused)")
    found = alerts(replace(scenes.generating(), stages=scenes.stages(generate=waiting)))
    assert [alert.message for alert in found] == ["generate waits: http://h:1 does not answer (refused)"]
    assert "http://h:1 does not answer (refused)." in stage_line(waiting)


def test_a_halt_is_told_unless_its_own_stage_says_it(scenes: Any) -> None:
    def told(*states: str, conductor: ConductorView, **by_name: Any) -> list[str]:
        base = replace(scenes.done(), stages=scenes.stages(*states, **by_name), conductor=conductor)
        return [f"{alert.message} / {alert.remedy}" for alert in alerts(base)]

    halted = ConductorView("halted", "deploy", "deploy can't be resumed: the samples have changed")
    stopped = scenes.stage("deploy", "STOPPED", resumable=True)
    assert told(*["DONE"] * 4, conductor=halted, deploy=stopped) == []
    other = scenes.stage("train", "STOPPED", resumable=True)
    assert told(*["DONE"] * 3, conductor=halted, train=other) == [
        "the run has halted: deploy can't be resumed: the samples have changed / s starts it again"
    ]
    undone = ConductorView("halted", "vocab", "vocab is stale: vocab.size is 16000 now", cause="stale")
    assert told(*["DONE"] * 5, conductor=undone) == [
        "the run rests: it halted for vocab, which is no longer STALE / s goes on"
    ]
    assert told(*["DONE"] * 5, conductor=ConductorView("stopped", message="stopped on request")) == []


def test_rejected_samples_and_the_phase_are_told(scenes: Any) -> None:
    loading = scenes.stage("generate", "RUNNING", phase="loading", unit="samples", counts={"rejected": 12})
    text = "\n".join(shown(target_lines(replace(scenes.generating(), stages=scenes.stages(generate=loading)), 90, 5)))
    assert "loading" in text
    assert "12 rejected" in text


# ---------------------------------------------------------------- acceptance, events, log, footer


def test_acceptance_is_simulated_until_it_is_measured(scenes: Any) -> None:
    simulated, measured = acceptance_of(scenes.training()), acceptance_of(scenes.done())
    assert simulated is not None
    assert (simulated.kind, len(simulated.rates)) == ("simulated", 3)
    assert measured is not None
    assert (measured.kind, measured.rates) == ("measured", (0.742, 0.551, 0.402))
    assert acceptance_of(scenes.before_start()) is None
    assert shown(acceptance_lines(measured, 44, 5)) == [
        "acceptance  2.47 measured ──────────────────",
        " 1 ━━━━━━━━━━━━━━━━━━━━━━━━━───────── 74.2%",
        " 2 ━━━━━━━━━━━━━━━━━━╸─────────────── 55.1%",
        " 3 ━━━━━━━━━━━━━╸──────────────────── 40.2%",
        "119 tok/s drafted, 61 plain ×1.94",
    ]
    assert shown(acceptance_lines(measured, 30, 2))[1] == "1 74.2%  2 55.1%  3 40.2%"
    assert shown(acceptance_lines(measured, 27, 5))[4] == "119 tok/s, ×1.94 plain"


def test_a_measurement_says_when_it_is_of_another_drafter(scenes: Any) -> None:
    snapshot = scenes.done()
    report = snapshot.stages[4].report

    def remade(reason: str, train: str, **known: Any) -> Any:
        deploy = scenes.stage("deploy", "DONE", stale=True, stale_reason=reason, report=report)
        stages = scenes.stages(deploy=deploy, train=scenes.stage("train", train))
        curves = scenes.curves() if known.get("simulated") else ()
        length = acceptance_length(stages, known.get("simulated"))
        return replace(snapshot, stages=stages, curves=curves, acceptance_length=length)

    training = remade("its input train is being continued", "RUNNING")
    found = acceptance_of(training)
    assert found is not None
    assert (found.length, found.kind) == (2.47, OLDER)
    assert shown(acceptance_lines(found, 44, 5))[0].startswith("acceptance  2.47 older drafter ─")
    assert shown(acceptance_lines(found, 27, 2))[0].startswith("acceptance  2.47 older one")
    assert any(line.endswith("acceptance length 2.470 (older drafter)") for line in status_lines(training))
    assert status_json(training)["acceptance_length"] is None

    validated = acceptance_of(remade("its input train is being continued", "RUNNING", simulated=1.5))
    assert validated is not None
    assert (validated.length, validated.kind, validated.speed) == (1.5, "simulated", None)

    for reason in ("its input train is stale: vocab.size is 9 now, was 8", "deploy.k is 4 now, was 3"):
        otherwise = acceptance_of(remade(reason, "DONE", simulated=1.5))
        assert otherwise is not None
        assert (otherwise.length, otherwise.kind) == (2.47, "STALE")


def test_status_names_stages_beyond_the_plan(scenes: Any) -> None:
    snapshot = replace(scenes.generating(), through="vocab")
    lines = status_lines(snapshot)
    assert [line.split(maxsplit=1)[1] for line in lines[3:6]] == ["PENDING", "not planned", "not planned"]
    stages = status_json(snapshot)["stages"]
    assert [(row["state"], row["planned"]) for row in stages[2:]] == [
        ("PENDING", True), ("PENDING", False), ("PENDING", False)
    ]  # fmt: skip
    made = replace(scenes.done(), through="vocab")
    assert status_lines(made)[4].split()[:2] == ["train", "DONE"]


def test_status_tells_the_last_losses_though_training_ended_with_a_validation(scenes: Any) -> None:
    snapshot = scenes.training()
    curves = (
        Curve("train/loss", (1.0, 2.0), (None, None), (3.25, None)),
        Curve("val/loss", (1.0, 2.0), (None, None), (None, 3.5)),
    )
    lines = status_lines(replace(snapshot, curves=curves))
    assert any(line.startswith("loss 3.250, validation 3.500") for line in lines)


def test_status_tells_what_a_stage_waits_for_instead_of_a_rate(scenes: Any) -> None:
    waiting = replace(scenes.stage("generate", "RUNNING"), phase="waiting", done=3.0, unit="samples", rate=0.0)
    assert "3 samples  waiting" in stage_line(waiting)
    assert "samples/s" in stage_line(replace(waiting, phase="running"))


def test_metrics_with_odd_names_do_no_harm(scenes: Any) -> None:
    def odd(name: str) -> tuple[Curve, ...]:
        return tuple(Curve(f"{name}_{end}", (1.0,), (None,), (0.5,)) for end in ("²", "9" * 5000, "x", "", "1"))

    assert simulated_rates(odd("val/rate")) == (None, 0.5)
    assert [view.name for view in views_of(odd("val/acc"))] == ["accuracy by position"]


def test_a_report_of_another_shape_does_no_harm(scenes: Any) -> None:
    odd = {"acceptance_length": 2.0, "rate_by_position": [0.5, "x", None], "tokens_per_s": {"plain": 0}}
    snapshot = replace(scenes.done(), stages=scenes.stages(deploy=scenes.stage("deploy", "DONE", report=odd)))
    found = acceptance_of(snapshot)
    assert found is not None
    assert found.rates == (0.5, None, None)
    assert found.speed is None
    assert "—" in shown(acceptance_lines(found, 30, 2))[1]


def test_events_newest_last_and_dated_by_the_day(scenes: Any) -> None:
    found = shown(event_lines(scenes.training().events, scenes.NOW, 60, 4))
    assert found[0].startswith("events  last 3 of 5 ─")
    assert found[3] == "13:57 ◆ train    step-018000, val loss 2.031"
    assert shown(event_lines(scenes.training().events, scenes.NOW, 60, 9))[1].startswith("11-29 ◆ generate 10,000")
    assert shown(event_lines((), 0.0, 30, 4)) == ["events  none yet ─────────────"]


def test_an_event_is_told_to_its_end_where_there_is_room() -> None:
    long = EventView(0.0, "generate", "warning", "3 sequences longer than 2048 tokens were cut")
    done = EventView(0.0, "generate", "ended", "done")
    assert shown(event_lines((long,), 0.0, 27, 4))[1:] == [
        "00:00 ! 3 sequences longer",
        "        than 2048 tokens",
        "        were cut",
    ]
    assert shown(event_lines((done, long), 0.0, 27, 3))[1:] == ["00:00 · generate done", "00:00 ! 3 sequences longer…"]
    rows = shown(event_lines((done, done, done, long), 0.0, 27, 5))
    assert rows[0].startswith("events  last 3 of 4 ─")
    assert rows[3:] == ["00:00 ! 3 sequences longer", "        than 2048 tokens…"]


def test_an_impossible_time_is_a_dash() -> None:
    odd = (EventView(1e300, "train", "info", "from the far future"),)
    assert shown(event_lines(odd, 0.0, 50, 3))[1].startswith("—")


def test_the_log_shows_its_end_or_what_it_is_held_at() -> None:
    lines = tuple(f"line {number}" for number in range(10))
    assert shown(log_lines(lines, "train", 0, True, False, 40, 4))[1:] == ["line 7", "line 8", "line 9"]
    held = shown(log_lines(lines, "train", 5, False, True, 40, 4))
    assert held[0].startswith("log  train  held, 5 below")
    assert held[1:] == ["line 2", "line 3", "line 4"]


def test_a_folded_line_is_all_there() -> None:
    text = "  File /a/long/path.py, 漢字漢字漢字漢字漢字漢字漢字 in " + "x" * 50 + " end"
    rows = fold(text, 20, indent=2)
    assert "".join("".join(rows).split()) == "".join(text.split())
    assert all(cell_len(row) <= (20 if row is rows[0] else 18) for row in rows)
    assert fold("short", 20) == ["short"]
    assert len(fold("漢字" * 3, 1)) == 6


@pytest.mark.parametrize(
    ("text", "role"),
    [
        ("RuntimeError: CUDA error", "bad"),
        ("Traceback (most recent call last)", "bad"),
        ("UserWarning: slow", "log"),
        ("warning: slow", "warn"),
        ("step 1 loss 2", "log"),
        ("terror of the errors", "log"),
    ],
)
def test_lines_of_trouble_stand_out(text: str, role: str) -> None:
    assert line_role(text) == role


def test_markup_and_wide_characters_in_a_log_are_only_text() -> None:
    lines = log_lines(("[bold red]not markup[/] 漢字", "[/nonsense"), "train", 0, True, False, 30, 3)
    fits(lines, 30, 3)
    assert shown(lines)[1].startswith("[bold red]not markup[/] 漢")


@pytest.mark.parametrize("width", [20, 60, 80, 100, 200])
def test_the_footer_keeps_help_and_detach(width: int) -> None:
    line = footer_line(frozenset({"run.stop"}), "stop train" if width > 60 else "", width)
    fits([line], width, 1)
    assert "? help" in text_of(line)
    if width >= 60:
        assert "q detach" in text_of(line)
        assert "s start" in text_of(line)


def test_a_narrow_footer_keeps_the_keys_that_act() -> None:
    resting = text_of(footer_line(frozenset({"run.stop", "run.kill", "chart.next"}), "start", 80))
    assert "n restart" in resting
    assert "K kill" not in resting
    at_work = text_of(footer_line(frozenset({"run.start", "run.resume", "run.restart"}), "stop train", 80))
    assert "n restart" not in at_work
    assert "K kill" in at_work


@pytest.mark.parametrize("idle", [(), ("run.start", "run.resume", "run.restart"), ("run.stop", "run.kill")])
def test_80_columns_hold_every_key_that_does_something_to_the_run(idle: Any) -> None:
    line = text_of(footer_line(frozenset(idle), "", 80)).split("  ")
    wanted = ["s start", "x stop", "r resume", "n restart", "K kill", "e edit", "z zoom", "? help", "q detach"]
    assert [part.strip() for part in line if part.strip()] == wanted


def test_idle_keys_are_faint() -> None:
    roles_of = {text.strip(): role for text, role in footer_line(frozenset({"run.stop"}), "", 120)}
    assert roles_of["x"] == "faint"
    assert roles_of["s"] == "key"
