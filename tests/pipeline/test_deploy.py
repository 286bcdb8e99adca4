"""The deploy stage: with a stand-in service that can be slow or wrong, and once with the bundled engine."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import Plan, set_values
from pipeline.deploy.body import deploy
from pipeline.rundir import RunDir, iter_jsonl, status
from pipeline.stage import run_stage
from pipeline.train.body import train

Make = Callable[..., RunDir]

SERVICE = """
import http.server, json, sys, time
port, wrong, slow = int(sys.argv[1]), "--wrong" in sys.argv, "--slow" in sys.argv
drafter = next((word for word in sys.argv if "eagle3" in word), None)
if drafter:
    open(drafter + "/config.json").close()
drafts = 0
class Handler(http.server.BaseHTTPRequestHandler):
    def reply(self, text):
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())
    def do_GET(self):
        if self.path == "/metrics" and drafter:
            name = "vllm:spec_decode_num_"
            lines = [f"{name}drafts_total {drafts}", f"{name}draft_tokens_total {3 * drafts}"]
            lines += [f"{name}accepted_tokens_total {2 * drafts}"]
            lines += [f'{name}accepted_tokens_per_pos_total{{position="{p}"}} {n * drafts / 10}' for p, n in enumerate((9, 7, 4))]
            self.reply("\\n".join(lines))
        else:
            self.reply(json.dumps({"data": [{"id": "m"}]}))
    def do_POST(self):
        global drafts
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if slow and body["max_tokens"] > 8:
            time.sleep(60)
        drafts += 10
        ids = [5, 6, 7] + ([8] if wrong and drafter else [9])
        choice = {"token_ids": ids, "finish_reason": "length", "message": {}}
        self.reply(json.dumps({"prompt_token_ids": [3, 4], "choices": [choice]}))
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""  # noqa: E501


SGLANG = """
import argparse, http.server, json, threading
parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int)
parser.add_argument("--enable-metrics", action="store_true")
parser.add_argument("--idle", action="store_true")  # loads the drafter, says nothing, and never drafts
for name in ("algorithm", "draft-model-path", "num-steps", "eagle-topk", "num-draft-tokens"):
    parser.add_argument(f"--speculative-{name}")
options = parser.parse_args()
speculative = options.speculative_algorithm is not None
if speculative:
    assert options.speculative_draft_model_path, "EAGLE3 without a drafter"
    open(options.speculative_draft_model_path + "/config.json").close()
    assert int(options.speculative_num_draft_tokens) == int(options.speculative_num_steps) + 1
lock, answers, verified = threading.Lock(), 0, 0
class Handler(http.server.BaseHTTPRequestHandler):
    def reply(self, text, status=200):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())
    def do_GET(self):
        if self.path != "/metrics":
            return self.reply(json.dumps({"data": [{"id": "m"}]}))
        if not options.enable_metrics:
            return self.reply('{"detail":"Not Found"}', 404)
        lines = [f"sglang:spec_accept_length 9.5", f"sglang:num_requests_total {answers}"]
        lines.append(f"sglang:generation_tokens_total {5 * answers}")
        if verified or options.idle:
            lines.append(f"sglang:spec_verify_calls_total {verified}")
        self.reply("\\n".join(lines))
    def do_POST(self):
        global answers, verified
        self.rfile.read(int(self.headers["Content-Length"]))
        with lock:
            answers += 1
            verified += 2 if speculative and not options.idle else 0
        ids = {"prompt_token_ids": [3, 4], "response_token_ids": [5, 6, 7, 8, 9]}
        self.reply(json.dumps({"choices": [{**ids, "finish_reason": "length", "message": {}}]}))
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", options.port), Handler).serve_forever()
"""


@pytest.fixture
def trained(make_run: Make, tmp_path: Path) -> Callable[..., RunDir]:
    """trained("--wrong"): a run through train whose deploy uses the stand-in service with these options."""

    def make(*options: str, drafter: bool = True, server: str = SERVICE, words: tuple[str, ...] = ()) -> RunDir:
        run = make_run("run", **{"train.max_steps": 2, "train.batch_tokens": 128, "train.val_fraction": 0.2})
        script = tmp_path / "service.py"
        script.write_text(server)
        command = ["{python}", str(script), "{port}", *options, *(["--drafter", "{drafter}"] if drafter else [])]
        command = ["{python}", str(script), *words] if words else command
        plan = run.plan().to_json()
        plan["services"] = {"standin": {"command": command, "ready_timeout_s": 60}}
        plan["stages"]["deploy"]["params"] |= {"engine": "standin", "samples": 3, "max_tokens": 16}
        run.write_plan(Plan.from_json(plan), "test")
        assert run_stage("train", train, ["--run", str(run.path)]) == 0
        return run

    return make


def go(run: RunDir) -> int:
    return run_stage("deploy", deploy, ["--run", str(run.path)])


def report_of(run: RunDir) -> dict[str, Any]:
    output = run.stage("deploy").current()
    assert output is not None
    report = output.report()
    assert report is not None
    return report


def test_a_service_is_started_without_and_with_the_drafter(trained: Callable[..., RunDir]) -> None:
    run = trained()
    assert go(run) == 0
    report = report_of(run)
    assert report["acceptance_length"] == 3.0
    assert report["rate_by_position"] == pytest.approx([0.9, 0.7, 0.4])
    agreement = report["greedy_agreement"]
    assert [agreement[key] for key in ("prompts", "identical", "near_ties", "different")] == [3, 3, 0, 0]
    assert report["tokens_per_s"]["plain"] > 0 and report["tokens_per_s"]["drafted"] > 0
    assert report["samples"] == 3 and report["engine"] == "standin"
    assert report["acceptance_from"] == "vllm:spec_decode_num_drafts_total"
    # deploy.k is 3 too, but this command doesn't take it: the engine's own counters say what it drafts
    assert report["k"] == 3 and any("deploy.k = 3 has no effect" in one for one in warnings_of(run))
    output = run.stage("deploy").current()
    assert output is not None
    assert sorted(path.name for path in (output.path / report["drafter"]).iterdir()) == [
        "config.json",
        "model.safetensors",
    ]
    held = {answer["id"] for answer in json.loads((output.path / "plain.json").read_text())["answers"]}
    assert len(held) == 3  # of the validation split: test_train_data says that training never sees these


def test_a_difference_that_is_no_near_tie_is_reported(trained: Callable[..., RunDir]) -> None:
    run = trained("--wrong")
    assert go(run) == 0
    agreement = report_of(run)["greedy_agreement"]
    assert agreement["different"] == 3 and agreement["identical"] == 0
    assert {(one["position"], one["plain"], one["drafted"]) for one in agreement["differences"]} == {(3, 9, 8)}
    assert all(one["gap"] >= 0 for one in agreement["differences"])
    assert agreement["not_judged"] == ""
    assert any("not by a near tie" in one for one in warnings_of(run))


def test_a_verifier_that_cannot_judge_does_not_fail_the_deploy(
    trained: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path, dtype: object) -> None:
        raise AttributeError("this verifier's code wants a GPU")

    monkeypatch.setattr("pipeline.extract.capture.load_verifier", fail)
    run = trained("--wrong")
    assert go(run) == 0
    report = report_of(run)
    assert report["acceptance_length"] == 3.0 and report["greedy_agreement"]["different"] == 3
    assert "wants a GPU" in report["greedy_agreement"]["not_judged"]
    assert any("could not be judged" in one and "wants a GPU" in one for one in warnings_of(run))


def warnings_of(run: RunDir) -> list[str]:
    attempt = run.stage("deploy").latest()
    assert attempt is not None
    events = [row for row, _ in iter_jsonl(attempt.path / "events.jsonl")]
    return [event["message"] for event in events if event["kind"] == "warning"]


def test_a_stop_ends_the_engine_and_resume_keeps_what_was_measured(trained: Callable[..., RunDir]) -> None:
    run = trained("--slow")
    measured = []

    def stop_when_measuring() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            attempt = run.stage("deploy").latest()
            if attempt is not None and "measuring" in str((attempt.progress() or {}).get("phase")):
                measured.append(time.monotonic())
                attempt.request("stop", by="test")
                return
            time.sleep(0.02)

    stopper = threading.Thread(target=stop_when_measuring)
    stopper.start()
    assert go(run) == 0
    stopper.join()
    assert measured and status(run.stage("deploy")).state.name == "STOPPED"
    output = run.stage("deploy").current()
    assert output is not None and not (output.path / "plain.json").exists()
    # the drafter is exported already; what an earlier attempt measured is not measured again
    kept = {"answers": [], "seconds": 2.0, "counters": None}
    questions = [{"id": f"x{n}", "prompt_ids": [3, 4], "output_ids": [5], "finish_reason": "stop"} for n in range(3)]
    for name in ("plain", "drafted"):
        counters = {"drafts": 4.0, "draft_tokens": 12.0, "accepted": 6.0, "accepted_by_position": [4.0, 2.0, 0.0]}
        kept |= {"answers": questions, "counters": counters if name == "drafted" else None}
        (output.path / f"{name}.json").write_text(json.dumps(kept))
    assert go(run) == 0
    assert report_of(run)["acceptance_length"] == 2.5


def test_a_service_without_a_place_for_the_drafter(trained: Callable[..., RunDir]) -> None:
    run = trained(drafter=False)
    assert go(run) == 1
    attempt = run.stage("deploy").latest()
    assert attempt is not None
    ended = attempt.exit()
    assert ended is not None
    assert "has no place for the drafter" in ended["message"] and "{drafter}" in ended["remedy"]


EAGLE = (
    "{drafted}", "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "{drafter}",
    "--speculative-num-steps", "{k}", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens",
    "{k+1}", "{/drafted}",
)  # fmt: skip


def test_sglang_is_started_plain_and_with_the_drafter_and_its_verifications_are_counted(
    trained: Callable[..., RunDir],
) -> None:
    run = trained(server=SGLANG, words=("--port", "{port}", *EAGLE, "--enable-metrics"))
    run.write_plan(set_values(run.plan(), {"deploy.k": 5}), "test")
    assert go(run) == 0
    report = report_of(run)
    assert report["acceptance_length"] == 2.0  # four tokens after the first, by two verifications
    assert report["rate_by_position"] == [] and report["k"] == 5
    assert "sglang:spec_verify_calls_total" in report["acceptance_from"]
    assert (report["counts"]["verifications"], report["counts"]["accepted"]) == (6, 6)
    assert warnings_of(run) == []
    output = run.stage("deploy").current()
    assert output is not None
    assert json.loads((output.path / "plain.json").read_text())["counters"] is None


def test_an_engine_without_metrics_is_measured_and_its_acceptance_unknown(trained: Callable[..., RunDir]) -> None:
    run = trained(server=SGLANG, words=("--port", "{port}", *EAGLE))
    assert go(run) == 0
    report = report_of(run)
    assert report["acceptance_length"] is None and "--enable-metrics" in report["acceptance_from"]
    assert report["greedy_agreement"]["identical"] == 3 and report["tokens_per_s"]["drafted"] > 0
    assert any("acceptance is unknown" in one for one in warnings_of(run))


def test_an_engine_that_never_drafts_is_a_failure_that_a_resume_measures_again(trained: Callable[..., RunDir]) -> None:
    run = trained(server=SGLANG, words=("--port", "{port}", *EAGLE, "--enable-metrics", "--idle"))
    assert go(run) == 1
    attempt = run.stage("deploy").latest()
    assert attempt is not None
    assert "spec_verify_calls_total did not move" in (attempt.exit() or {})["message"]
    assert (attempt.output().path / "plain.json").exists() and not (attempt.output().path / "drafted.json").exists()
    plan = run.plan().to_json()
    plan["services"]["standin"]["command"].remove("--idle")
    run.write_plan(Plan.from_json(plan), "drafts now")
    assert go(run) == 0
    assert report_of(run)["acceptance_length"] == 2.0


def test_fewer_prompts_than_asked_for_are_told_and_counted(trained: Callable[..., RunDir], tmp_path: Path) -> None:
    run = trained()
    run.change_plan({"deploy.samples": "500"}, "more than there are")
    assert go(run) == 0
    counts = report_of(run)["counts"]
    assert 0 < counts["prompts"] < counts["prompts_total"] == 500
    measured = counts["prompts"]
    wanted = f"{measured} prompts are measured, not 500 (deploy.samples): no more were held out from training"
    assert wanted in warnings_of(run)
    path = tmp_path / "held.jsonl"
    path.write_text(json.dumps({"id": "h", "prompt": "one"}) + "\n")
    run.change_plan({"deploy.prompts": str(path)}, "one prompt")
    assert run_stage("deploy", deploy, ["--run", str(run.path), "--restart"]) == 0
    assert report_of(run)["counts"]["prompts"] == 1
    assert any("the file of deploy.prompts has no more" in one for one in warnings_of(run))


def test_prompts_of_a_file(trained: Callable[..., RunDir], tmp_path: Path) -> None:
    run = trained()
    path = tmp_path / "held.jsonl"
    path.write_text("".join(json.dumps({"id": f"h{n}", "prompt": f"question {n}"}) + "\n" for n in range(9)))
    plan = run.plan().to_json()
    plan["stages"]["deploy"]["params"]["prompts"] = str(path)
    run.write_plan(Plan.from_json(plan), "prompts")
    assert go(run) == 0
    output = run.stage("deploy").current()
    assert output is not None
    answers = json.loads((output.path / "plain.json").read_text())["answers"]
    assert [answer["id"] for answer in answers] == ["h0", "h1", "h2"]


def test_the_bundled_engine_measures_a_real_drafter(tmp_path: Path) -> None:
    """The bundled verifier, a drafter trained for some steps, plain and drafted in the real engine."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from pipeline.extract.work import extract
    from pipeline.stage import StageRun
    from pipeline.verifier import bundled_path
    from pipeline.verifier.tasks import prompts
    from pipeline.vocab.work import vocab

    folder = bundled_path()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = []
    for row in prompts(5, 8):
        messages = [{"role": "user", "content": row["prompt"]}]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        with torch.inference_mode():
            out = model.generate(**ids, max_new_tokens=16, do_sample=False)[0].tolist()
        count = ids["input_ids"].shape[1]
        reason = "stop" if out[-1] == model.config.eos_token_id else "length"
        rows.append({"id": row["id"], "messages": messages, "prompt_ids": out[:count], "output_ids": out[count:]})
        rows[-1] |= {"finish_reason": reason}
    plan = {
        "verifier": {"path": str(folder)},
        "volume": {"reserve_bytes": 0},
        "stages": {
            "train": {"params": {"max_steps": 6, "epochs": 30, "batch_tokens": 256, "lr": 2e-3, "val_fraction": 0.25}},
            "deploy": {"params": {"samples": 2, "max_tokens": 16, "threads": 1}},
        },
    }
    run = RunDir.create(tmp_path, "r1", Plan.from_json(plan))

    def generate(stage: StageRun) -> None:
        with (stage.output / "samples.jsonl").open("w") as file, (stage.output / "tokenized.jsonl").open("w") as view:
            for row in rows:
                file.write(json.dumps(row) + "\n")
                mask = [0] * len(row["prompt_ids"]) + [1] * len(row["output_ids"])
                both = row["prompt_ids"] + row["output_ids"]
                view.write(json.dumps({"id": row["id"], "input_ids": both, "loss_mask": mask}) + "\n")
        stage.finish({"samples": len(rows)}, "samples")

    bodies = {"generate": generate, "extract": extract, "vocab": vocab, "train": train, "deploy": deploy}
    for name, body in bodies.items():
        assert run_stage(name, body, ["--run", str(run.path)]) == 0, name
    report = report_of(run)
    assert 1.0 <= report["acceptance_length"] <= 4.0 and len(report["rate_by_position"]) == 3
    agreement = report["greedy_agreement"]
    assert agreement["different"] == 0 and agreement["identical"] + agreement["near_ties"] == report["samples"]
    assert report["lint"] == []
    counts = report["counts"]
    assert counts["accepted"] == pytest.approx((report["acceptance_length"] - 1) * counts["verifications"])
