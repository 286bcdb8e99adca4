"""The plan: defaults, strict reading that names key, value and what is allowed, typed words, sizes, cross checks."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config import (
    LIVE,
    PARAMS,
    STAGES,
    ConfigError,
    DeployParams,
    ExtractParams,
    GenerateParams,
    Plan,
    TrainParams,
    parse_size,
    set_value,
    set_values,
    size_text,
    unused_services,
)


def refusal(raw: dict[str, Any]) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        Plan.from_json(raw)
    return caught.value


def params(plan: Plan, stage: str) -> Any:
    return plan.params(stage)


def test_a_plan_survives_json() -> None:
    plan = set_values(
        Plan.from_json({"services": {"vllm": {"command": ["vllm", "serve", "{verifier}"], "port": 8001}}}),
        {
            "generate.service": "vllm",
            "generate.env.HF_HOME": "/data/hf",
            "train.gpus": [0, 3],
            "extract.shard_bytes": "1.5GiB",
            "verifier.reasoning": "yes",
            "deploy.engine": "vllm",
        },
    )
    again = Plan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again == plan
    assert again.stages["train"].gpus == (0, 3)
    assert again.stages["generate"].env == {"HF_HOME": "/data/hf"}
    assert again.verifier.reasoning is True
    assert params(again, "extract").shard_bytes == 1610612736


def test_keys_left_out_take_their_defaults() -> None:
    assert Plan.from_json({}) == Plan()
    plan = Plan.from_json({"stages": {"train": {"params": {"lr": 3e-5}}}})
    assert params(plan, "train") == TrainParams(lr=3e-5)
    assert [type(plan.params(name)) for name in STAGES] == list(PARAMS.values())


def test_a_live_key_exists() -> None:
    for key in LIVE:
        stage, _, name = key.partition(".")
        assert name in {field.name for field in dataclasses.fields(PARAMS[stage])}


@pytest.mark.parametrize(
    ("raw", "key", "message", "remedy"),
    [
        (
            {"stages": {"generate": {"params": {"max_sampels": 5}}}},
            "generate.max_sampels", "generate.max_sampels = 5: there is no such key", "did you mean max_samples?",
        ),
        (
            {"stages": {"train": {"params": {"lr": "fast"}}}},
            "train.lr", 'train.lr = "fast" is not allowed', "It takes a number from 1e-12 to 1",
        ),
        (
            {"stages": {"train": {"params": {"epochs": 2.5}}}},
            "train.epochs", "train.epochs = 2.5 is not allowed", "It takes a whole number of at least 1",
        ),
        (
            {"stages": {"train": {"params": {"epochs": True}}}},
            "train.epochs", "train.epochs = true is not allowed", "whole number",
        ),
        (
            {"stages": {"train": {"params": {"lr": float("nan")}}}},
            "train.lr", "train.lr = NaN is not allowed", "a number",
        ),
        (
            {"stages": {"extract": {"params": {"compute": "fp16"}}}},
            "extract.compute", 'extract.compute = "fp16" is not allowed', "It takes one of auto, float32, bfloat16",
        ),
        (
            {"stages": {"extract": {"params": {"shard_bytes": "2 apples"}}}},
            "extract.shard_bytes", 'extract.shard_bytes = "2 apples" is not allowed', "such as 2000000000, 3TB or",
        ),
        (
            {"stages": {"extract": {"params": {"device": "gpu"}}}},
            "extract.device", 'extract.device = "gpu": there is no such device', "auto, cpu, cuda, cuda:N or mps",
        ),
        ({"stages": {"distil": {}}}, "stages.distil", "stages.distil = {}: there is no such key", "generate, extract"),
        ({"stages": {"train": {"gpus": [0, 0]}}}, "train.gpus", "train.gpus = [0, 0] is not allowed", "GPU indexes"),
        ({"stages": {"train": {"gpus": "some"}}}, "train.gpus", 'train.gpus = "some" is not allowed', '"all"'),
        ({"stages": {"train": {"gpus": [-1]}}}, "train.gpus", "train.gpus = [-1] is not allowed", "GPU indexes"),
        ({"stages": {"train": {"env": {"A B": "x"}}}}, "train.env", "is not allowed", "NAME = text"),
        ({"stages": {"train": {"env_allow": "PATH"}}}, "train.env_allow", "is not allowed", "a list of words"),
        ({"stages": {"train": {"python": None}}}, "train.python", "train.python = null is not allowed", "text"),
        ({"stages": {"train": []}}, "train", "train = [] is not allowed", "a table of keys and values"),
        ({"stages": 3}, "stages", "stages = 3 is not allowed", "a table"),
        ({"through": "trian"}, "through", 'through = "trian" is not allowed', "one of generate, extract"),
        ({"verifier": {"paht": "/m"}}, "verifier.paht", 'verifier.paht = "/m": there is no', "did you mean path?"),
        ({"volumes": {}}, "volumes", "volumes = {}: there is no such key", "did you mean volume?"),
        (
            {"volume": {"capacity_bytes": "1GB", "reserve_bytes": "1GB"}},
            "volume.reserve_bytes", "the reserve takes the whole capacity of 1 GB", "Lower the reserve",
        ),
        (
            {"stages": {"train": {"params": {"length": 4096}}}},
            "train.length", "longer than what extract keeps (extract.length = 2048)", "at most 2048, or raise",
        ),
        (
            {"stages": {"generate": {"params": {"service": "vlm"}}},
             "services": {"vllm": {"command": ["x"]}}},
            "generate.service", 'generate.service = "vlm": the plan has no such service', "did you mean vllm?",
        ),
        (
            {"stages": {"generate": {"params": {"service": "v", "endpoint": "http://h:1"}}},
             "services": {"v": {"command": ["x"]}}},
            "generate.endpoint", "generate.service is set too", "Give one of the two",
        ),
        (
            {"stages": {"generate": {"params": {"endpoint": "localhost:8000"}}}},
            "generate.endpoint", "this is no URL", "http://HOST:PORT/v1",
        ),
        (
            {"stages": {"train": {"services": ["vllm"]}}},
            "train.services",
            "no such service",
            "services.vllm.command adds one",
        ),
        ({"stages": {"deploy": {"params": {"engine": "vllm"}}}}, "deploy.engine", "no such service", "bundled"),
        ({"stages": {"extract": {"from_run": "one/train"}}}, "extract.from_run", "names no output", "RUN/extract"),
        ({"stages": {"extract": {"from_run": "../x/extract"}}}, "extract.from_run", "names no output", "RUN/extract"),
        ({"services": {"V 1": {"command": ["x"]}}}, "services.V 1", "services.V 1: this is no name", "a-z, 0-9"),
        ({"services": {"v": {}}}, "services.v.command", "a service needs one", "vllm"),
        (
            {"services": {"a": {"command": ["x"]}, "b": {"command": ["x"]}}},
            "services.b.port", "services.b.port = 8000: a has it too", "Give each its own port",
        ),
        ({"services": {"v": {"command": ["x"], "port": 65536}}}, "services.v.port", "65536 is not allowed", "to 65535"),
        ({"services": {"v": {"command": ["x"], "restart": "always"}}}, "services.v.restart", "is not allowed", "never"),
        ({"services": {"v": {"command": ["x"], "keep": None}}}, "services.v.keep", "null is not", "true or false"),
        ({"schema": 2}, "schema", "schema 2 and was written by a newer Eagledeck", "Update Eagledeck"),
        ({"schema": "1"}, "schema", 'schema = "1" is not allowed', "It takes 1"),
        ({"revision": -1}, "revision", "revision = -1 is not allowed", "at least 0"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_key_value_and_what_is_allowed(
    raw: dict[str, Any], key: str, message: str, remedy: str
) -> None:
    error = refusal(raw)
    assert error.key == key
    assert message in error.message
    assert remedy in error.remedy
    assert str(error) == f"{error.message}. {error.remedy}."


def test_a_plan_that_is_no_table() -> None:
    with pytest.raises(ConfigError, match=r"the plan = \[\] is not allowed"):
        Plan.from_json([])  # type: ignore[arg-type]


def test_a_long_value_is_cut_in_the_message() -> None:
    error = refusal({"stages": {"train": {"params": {"lr": "x" * 500}}}})
    assert len(error.message) < 130


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("generate.max_samples", "10000", 10_000),
        ("generate.max_samples", "25_000", 25_000),
        ("generate.byte_budget", "3TB", 3 * 10**12),
        ("generate.temperature", "0", 0.0),
        ("generate.system", " keep the spaces ", " keep the spaces "),
        ("train.lr", "3e-5", 3e-5),
        ("train.init", "/models/drafter", "/models/drafter"),
        ("vocab.size", "8", 8),
    ],
)
def test_a_parameter_is_set_from_a_typed_word(key: str, text: str, value: object) -> None:
    stage, _, name = key.partition(".")
    assert getattr(set_value(Plan(), key, text).params(stage), name) == value


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("gpus", "0,1", (0, 1)),
        ("gpus", "[2, 3]", (2, 3)),
        ("gpus", "all", "all"),
        ("gpus", "", ()),
        ("gpus", [4], (4,)),
        ("env_allow", "HF_HOME CUDA_HOME", ("HF_HOME", "CUDA_HOME")),
        ("grace_s", "90", 90.0),
        ("python", "/opt/vllm/bin/python", "/opt/vllm/bin/python"),
        ("from_run", "other/train", "other/train"),
        ("env.OMP_NUM_THREADS", "4", {"OMP_NUM_THREADS": "4"}),
    ],
)
def test_a_setting_of_a_stage_is_set_from_a_typed_word(key: str, text: object, value: object) -> None:
    plan = set_value(Plan(), f"train.{key}", text)
    assert getattr(plan.stages["train"], key.partition(".")[0]) == value


def test_the_rest_of_the_plan_is_set_too() -> None:
    plan = Plan.from_json({"services": {"v.1": {"command": ["x"]}}})
    plan = set_values(
        plan,
        {
            "through": "train",
            "volume.reserve_bytes": "100GiB",
            "verifier.reasoning": "auto",
            "services.v.1.port": "9000",
            "services.v.1.command": "vllm serve",
            "services.v.1.keep": "yes",
        },
    )
    assert plan.through == "train"
    assert plan.volume.reserve_bytes == 100 * 2**30
    assert plan.verifier.reasoning is None
    assert (plan.services["v.1"].port, plan.services["v.1"].command) == (9000, ("vllm", "serve"))
    assert plan.services["v.1"].keep is True


@pytest.mark.parametrize(
    ("key", "value", "message", "remedy"),
    [
        ("generate.max_sampels", "5", "there is no such key", "did you mean max_samples?"),
        ("generate.grase_s", "5", "there is no such key", "did you mean grace_s?"),
        ("genrate.max_samples", "5", "there is no such key", "did you mean generate?"),
        ("max_samples", "5", "there is no such key", "did you mean generate.max_samples? Allowed: through, verifier.…"),
        ("length", "5", "there is no such key", "did you mean extract.length or train.length? "),
        ("generate", "5", "there is no such key", "Allowed: through"),
        ("services.x.port", "5", "there is no such key", "Allowed: through"),
        ("revision", "5", "there is no such key", "Allowed: through"),
        ("generate.max_samples", "many", 'generate.max_samples = "many" is not allowed', "a whole number"),
        ("generate.max_samples", "1.5", 'generate.max_samples = "1.5" is not allowed', "a whole number"),
        ("generate.max_samples", "-1", 'generate.max_samples = "-1" is not allowed', "at least 0"),
        ("train.gpus", "0,x", 'train.gpus = "0,x" is not allowed', "GPU indexes"),
        ("train.lr", "inf", 'train.lr = "inf" is not allowed', "a number"),
        ("verifier.reasoning", "maybe", 'verifier.reasoning = "maybe" is not allowed', "true, false or null"),
        ("train.env.A-B", "x", "is not allowed", "NAME = text"),
        ("train.length", "4096", "longer than what extract keeps", "raise extract.length"),
    ],
)
def test_what_cannot_be_set_is_named(key: str, value: str, message: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        set_value(Plan(), key, value)
    assert message in caught.value.message
    assert remedy in caught.value.remedy


def test_the_length_that_nobody_set_for_train_is_what_extract_keeps() -> None:
    plan = Plan.from_json({"stages": {"extract": {"params": {"length": 512}}}})
    assert params(plan, "train").length == 512
    assert params(set_value(Plan(), "extract.length", "512"), "train").length == 512
    assert params(set_value(Plan(), "extract.length", "4096"), "train").length == 2048
    assert params(set_value(plan, "extract.length", "1024"), "train").length == 512
    borrowed = {"stages": {"extract": {"params": {"length": 512}, "from_run": "big/extract"}}}
    assert params(Plan.from_json(borrowed), "train").length == 2048


def test_a_length_that_somebody_set_for_train_is_not_changed_silently() -> None:
    with pytest.raises(ConfigError) as caught:
        Plan.from_json({"stages": {"extract": {"params": {"length": 512}}, "train": {"params": {"length": 2048}}}})
    assert caught.value.key == "train.length"
    with pytest.raises(ConfigError) as caught:
        set_value(set_value(Plan(), "train.length", "1024"), "extract.length", "512")
    assert "One `eagledeck set` takes both: extract.length=512 train.length=512" in caught.value.remedy


def test_a_service_goes_with_its_command() -> None:
    plan = set_values(Plan(), {"services.vllm.command": "vllm serve", "generate.service": "vllm"})
    assert unused_services(plan) == []
    with pytest.raises(ConfigError, match="no such service"):
        set_value(plan, "services.vllm.command", "")
    plan = set_value(plan, "generate.service", "")
    assert unused_services(plan) == ["vllm"]
    assert set_value(plan, "services.vllm.command", "").services == {}
    with pytest.raises(ConfigError, match="a service needs one"):
        set_value(Plan(), "services.vllm.command", "")


def test_changes_that_only_hold_together_are_made_together() -> None:
    plan = set_values(Plan(), {"train.length": "4096", "extract.length": "4096"})
    assert (params(plan, "train").length, params(plan, "extract").length) == (4096, 4096)


def test_the_length_of_a_borrowed_extract_is_the_lenders_business() -> None:
    plan = set_values(Plan(), {"extract.from_run": "big/extract", "train.length": "8192"})
    assert params(plan, "train").length == 8192


def test_setting_leaves_the_old_plan_alone() -> None:
    plan = Plan()
    set_value(plan, "train.env.A", "1")
    set_value(plan, "train.epochs", 9)
    assert plan == Plan()


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0), ("512", 512), ("1kB", 1000), ("1KiB", 1024), ("3TB", 3_000_000_000_000), ("3 tb", 3_000_000_000_000),
        ("100GiB", 107_374_182_400), ("1.5GB", 1_500_000_000), ("2G", 2_000_000_000), ("2Gi", 2_147_483_648),
        ("1PB", 10**15), ("2_000_000_000", 2_000_000_000), ("7b", 7), (" 5 MB ", 5_000_000),
    ],
)  # fmt: skip
def test_sizes(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1e9", "1.5.2GB", "10 XB", "1,5GB", "1GBs", "０", "_1", "nan"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        parse_size(text)


@given(st.integers(0, 10**15))
def test_whole_bytes_are_exact(count: int) -> None:
    assert parse_size(str(count)) == count
    assert parse_size(f"{count}B") == count


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (512, "512 bytes"), (999, "999 bytes"), (1000, "1 kB"), (999_999, "1 MB"),
     (2_293_760_000_000, "2.29 TB"), (5_734_400_000_000, "5.73 TB"), (2 * 10**18, "2e+03 PB")],
)  # fmt: skip
def test_sizes_in_sentences(count: int, text: str) -> None:
    assert size_text(count) == text


def test_every_parameter_explains_itself_and_its_default_is_allowed() -> None:
    for cls in (GenerateParams, ExtractParams, TrainParams, DeployParams):
        for field in dataclasses.fields(cls):
            assert field.metadata["doc"], field.name
    Plan.from_json(Plan().to_json())


def test_a_service_is_added_by_its_command() -> None:
    words = '["{python}", "-m", "pipeline.engine", "--model", "{verifier}"]'
    added = {"services.engine.command": words, "services.engine.port": "0", "generate.service": "engine"}
    plan = set_values(Plan(), added)
    assert plan.services["engine"].command == ("{python}", "-m", "pipeline.engine", "--model", "{verifier}")
    assert plan.services["engine"].port == 0
    with pytest.raises(ConfigError, match=r"services\.other\.port"):
        set_value(plan, "services.other.port", "1")
    with pytest.raises(ConfigError, match="the plan has no such service") as refused:
        set_value(plan, "deploy.engine", "nowhere")
    assert "services.nowhere.command adds one" in refused.value.remedy
