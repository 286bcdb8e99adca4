"""The plan of a run: verifier, volume, and every stage's and service's parameters, typed and checked.

`Plan.from_json` is strict: a wrong key, type or value is a ConfigError naming key, value and what is allowed.
Standard library only, Python >= 3.9. Imports only pipeline.fields, pipeline.command and pipeline.stages.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, Union

from pipeline import command as commands
from pipeline.fields import (
    HOW,
    TARGET,
    ConfigError,
    parse_size,
    read,
    read_text,
    show,
    size_text,
    spec,
    suggest,
)
from pipeline.stages import STAGES

__all__ = [
    "LIVE", "PARAMS", "SCHEMA", "STAGES", "ConfigError", "DeployParams", "ExtractParams", "GenerateParams", "Plan",
    "ServicePlan", "StageParams", "StagePlan", "TrainParams", "VerifierPlan", "VocabParams", "VolumePlan", "check",
    "parse_size", "set_value", "set_values", "size_text", "unused_services",
]  # fmt: skip

SCHEMA = 1
LIVE = frozenset({"generate.max_samples"})
"""Keys whose new value a running stage takes up without a restart."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_DEVICE = re.compile(r"auto|cpu|mps|cuda(:[0-9]+)?")


@dataclass(frozen=True)
class GenerateParams:
    prompts: str = spec("", "str", "JSONL file of prompts on the host (prompt, messages or ShareGPT rows)")
    endpoint: str = spec(
        "", "str", "base URL of an OpenAI-compatible server, such as http://127.0.0.1:8000/v1", role=HOW
    )
    service: str = spec("", "str", "name of the run's service that answers; instead of endpoint", role=HOW)
    model: str = spec("", "str", "model name sent to the server; empty: the only one it lists")
    max_samples: int = spec(10_000, "int", "stop after this many samples; 0: all prompts", role=TARGET, low=0)
    max_tokens: int = spec(4096, "int", "longest answer, tokens", low=1)
    expected_tokens: int = spec(
        0, "int", "tokens a sample, for the budget before any is there; 0: the worst case", role=HOW, low=0
    )
    token_budget: int = spec(0, "int", "stop after this many tokens; 0: no limit", role=TARGET, low=0)
    byte_budget: int = spec(0, "size", "stop when the samples take this many bytes; 0: no limit", role=TARGET)
    temperature: float = spec(0.7, "float", "sampling temperature; 0: greedy", low=0, high=10)
    top_p: float = spec(0.95, "float", "nucleus of the sampling", low=0.0001, high=1)
    concurrency: int = spec(32, "int", "requests in flight", role=HOW, low=1, high=4096)
    timeout_s: float = spec(600.0, "float", "seconds for one answer", role=HOW, low=1)
    retries: int = spec(5, "int", "tries again after a failed request", role=HOW, low=0, high=100)
    expect_reasoning: str = spec(
        "auto", "choice", "whether every answer must carry reasoning", role=HOW, choices=("auto", "yes", "no")
    )
    api_key_file: str = spec("", "str", "0600 file on the host with the server's key", role=HOW)
    system: str = spec("", "str", "system message put before every prompt")


@dataclass(frozen=True)
class ExtractParams:
    backend: str = spec("transformers", "choice", "what runs the verifier", choices=("transformers",))
    length: int = spec(2048, "int", "longest sequence kept, tokens", low=8)
    batch_tokens: int = spec(8192, "int", "tokens of one forward pass", role=HOW, low=8)
    shard_bytes: int = spec(2_000_000_000, "size", "size at which a shard is closed", role=HOW)
    dtype: str = spec("bfloat16", "choice", "how hidden states are stored", choices=("bfloat16",))
    compute: str = spec("auto", "choice", "what the verifier computes in", choices=("auto", "float32", "bfloat16"))
    device: str = spec("auto", "str", "auto, cpu, cuda, cuda:N or mps", role=HOW)
    threads: int = spec(0, "int", "CPU threads; 0: what torch chooses", role=HOW, low=0, high=1024)


@dataclass(frozen=True)
class VocabParams:
    size: int = spec(
        32_000, "int", "tokens of the draft vocabulary; the verifier's own size when that is smaller", low=1
    )


@dataclass(frozen=True)
class TrainParams:
    epochs: int = spec(5, "int", "passes over the sequences", role=TARGET, low=1)
    max_steps: int = spec(0, "int", "stop after this many steps; 0: as many as the epochs take", role=TARGET, low=0)
    lr: float = spec(1e-4, "float", "highest learning rate", low=1e-12, high=1)
    warmup_ratio: float = spec(0.015, "float", "share of the steps with rising learning rate", low=0, high=1)
    batch_tokens: int = spec(8192, "int", "tokens of one step", low=8)
    ttt_steps: int = spec(3, "int", "TTT steps", low=1, high=16)
    ttt_decay: float = spec(1.0, "float", "weight of a TTT step's loss relative to the one before", low=0, high=1)
    length: int = spec(2048, "int", "longest sequence trained on, tokens", low=8)
    noise_std: float = spec(0.0, "float", "noise added to the hidden states", low=0)
    val_fraction: float = spec(0.05, "float", "share of the sequences kept for validation", low=0, high=0.5)
    weight_decay: float = spec(0.0, "float", "AdamW's weight decay", low=0)
    grad_clip: float = spec(0.5, "float", "largest gradient norm; 0: no clipping", low=0)
    seed: int = spec(0, "int", "seed of initialisation, order and noise", low=0)
    init: str = spec("verifier", "str", "verifier, random, or the folder of a drafter to continue from")
    precision: str = spec("auto", "choice", "what the drafter computes in", choices=("auto", "float32", "bfloat16"))
    device: str = spec("auto", "str", "auto, cpu, cuda, cuda:N or mps", role=HOW)
    threads: int = spec(0, "int", "CPU threads; 0: what torch chooses", role=HOW, low=0, high=1024)
    checkpoint_every_s: float = spec(300, "float", "seconds between checkpoints", role=HOW, low=0)
    keep_checkpoints: int = spec(2, "int", "checkpoints kept", role=HOW, low=1)
    log_every: int = spec(10, "int", "steps between metrics", role=HOW, low=1)


@dataclass(frozen=True)
class DeployParams:
    k: int = spec(3, "int", "tokens drafted per verification; a service takes it where {k} stands", low=1, high=16)
    prompts: str = spec("", "str", "JSONL file of prompts to measure on; empty: held out from the run's samples")
    samples: int = spec(64, "int", "prompts measured", low=1)
    max_tokens: int = spec(256, "int", "longest answer measured, tokens", low=1)
    engine: str = spec("bundled", "str", "bundled, or the name of a service")
    dtype: str = spec("float32", "choice", "what the bundled engine computes in", choices=("float32", "bfloat16"))
    threads: int = spec(0, "int", "CPU threads; 0: what torch chooses", role=HOW, low=0, high=1024)


StageParams = Union[GenerateParams, ExtractParams, VocabParams, TrainParams, DeployParams]
PARAMS: Mapping[str, type[StageParams]] = {
    "generate": GenerateParams,
    "extract": ExtractParams,
    "vocab": VocabParams,
    "train": TrainParams,
    "deploy": DeployParams,
}


@dataclass(frozen=True)
class StagePlan:
    params: StageParams
    python: str = spec("", "str", "the Python that runs it; empty: the one that runs the agent")
    gpus: tuple[int, ...] | str = spec("all", "gpus", "GPUs it may see")
    env_allow: tuple[str, ...] = spec((), "words", "names taken over from the host's environment")
    env: Mapping[str, str] = spec({}, "env", "variables set for it")
    grace_s: float = spec(60.0, "float", "seconds between a stop request and SIGTERM", low=0)
    services: tuple[str, ...] = spec((), "words", "services it needs while it runs")
    from_run: str = spec("", "str", "RUN/STAGE whose output is used instead of running the stage")


@dataclass(frozen=True)
class VerifierPlan:
    path: str = spec("", "str", "folder of the verifier on the host")
    name: str = spec("", "str", "what it is called on screen")
    reasoning: bool | None = spec(None, "flag", "whether it reasons before it answers; null: found out")


@dataclass(frozen=True)
class VolumePlan:
    path: str = spec("", "str", "where the run's data lies; empty: the root of the runs")
    capacity_bytes: int = spec(0, "size", "quota of that folder; 0: what the filesystem says")
    reserve_bytes: int = spec(1 << 30, "size", "bytes that are never filled")


@dataclass(frozen=True)
class ServicePlan:
    command: tuple[str, ...] = spec(
        (), "words", "argv; {port} {host} {verifier} {python} are filled in, in deploy {drafter} {k} {k+1} too"
    )
    port: int = spec(8000, "int", "TCP port on the host; 0: any free one", low=0, high=65535)
    health: str = spec("/health", "str", "path that answers 200 when it is ready")
    ready_timeout_s: float = spec(600.0, "float", "seconds until it must be ready", low=1)
    answer_timeout_s: float = spec(300.0, "float", "seconds it may leave its health path unanswered once ready", low=1)
    gpus: tuple[int, ...] | str = spec("all", "gpus", "GPUs it may see")
    env_allow: tuple[str, ...] = spec((), "words", "names taken over from the host's environment")
    env: Mapping[str, str] = spec({}, "env", "variables set for it")
    python: str = spec("", "str", "the Python that runs it")
    restart: str = spec("on-failure", "choice", "what happens when it ends", choices=("on-failure", "never"))
    keep: bool = spec(False, "bool", "left running when no stage needs it")

    def words(self, drafted: bool) -> list[str]:
        """argv with its placeholders, for an engine with a drafter or one without (`pipeline.command`)."""
        return commands.words(self.command, drafted)


@dataclass(frozen=True)
class Plan:
    """One revision of a run's plan. `revision` is 0 until it is written into a run; `created` is wall seconds."""

    schema: int = SCHEMA
    revision: int = 0
    created: float = 0.0
    note: str = ""
    verifier: VerifierPlan = VerifierPlan()
    volume: VolumePlan = VolumePlan()
    through: str = "deploy"
    stages: Mapping[str, StagePlan] = dataclasses.field(
        default_factory=lambda: {name: StagePlan(PARAMS[name]()) for name in STAGES}
    )
    services: Mapping[str, ServicePlan] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Plan:
        """A checked plan from decoded JSON; keys left out take their defaults. Raises ConfigError."""
        _table(raw, "the plan")
        schema = raw.get("schema", SCHEMA)
        if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
            raise ConfigError(f"schema = {show(schema)} is not allowed", f"It takes {SCHEMA}", "schema")
        if schema > SCHEMA:
            raise ConfigError(
                f"This plan has schema {schema} and was written by a newer Eagledeck; this one reads up to {SCHEMA}",
                "Update Eagledeck, or use the version that wrote it",
                "schema",
            )
        _known(raw, [item.name for item in dataclasses.fields(cls)], "")
        stages = _table(raw.get("stages", {}), "stages")
        services = _table(raw.get("services", {}), "services")
        _known(stages, STAGES, "stages")
        plan = cls(
            schema=schema,
            revision=read({**_COUNT, "kind": "int"}, raw.get("revision", 0), "revision"),
            created=read({**_COUNT, "kind": "float"}, raw.get("created", 0.0), "created"),
            note=read({**_COUNT, "kind": "str"}, raw.get("note", ""), "note"),
            verifier=_build(VerifierPlan, raw.get("verifier", {}), "verifier"),
            volume=_build(VolumePlan, raw.get("volume", {}), "volume"),
            through=read({**_COUNT, "kind": "choice", "choices": STAGES}, raw.get("through", "deploy"), "through"),
            stages={name: _stage(name, stages.get(name, {})) for name in STAGES},
            services={name: _service(name, value) for name, value in services.items()},
        )
        if "length" not in _table(_table(stages.get("train", {}), "train").get("params", {}), "train"):
            plan = _train_follows(plan)
        check(plan)
        return plan

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON values; `from_json` reads it back equal."""
        decoded: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return decoded

    def params(self, stage: str) -> StageParams:
        return self.stages[stage].params


_COUNT: Mapping[str, Any] = {"low": 0, "high": None, "choices": ()}
_Section = TypeVar("_Section", StagePlan, VerifierPlan, VolumePlan, ServicePlan)


def _table(raw: object, key: str) -> Mapping[str, Any]:
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{key} = {show(raw)} is not allowed", "It takes a table of keys and values", key)
    return raw


def _known(raw: Mapping[str, Any], allowed: Any, where: str) -> None:
    for key in raw:
        if key not in allowed:
            full = f"{where}.{key}" if where else str(key)
            raise ConfigError(f"{full} = {show(raw[key])}: there is no such key", suggest(str(key), allowed), full)


def _fields(cls: Any) -> dict[str, Mapping[str, Any]]:
    return {item.name: item.metadata for item in dataclasses.fields(cls) if item.metadata}


def _values(cls: Any, raw: object, where: str, extra: tuple[str, ...] = ()) -> dict[str, Any]:
    table, fields = _table(raw, where), _fields(cls)
    _known(table, [*extra, *fields], where)
    return {name: read(meta, table[name], f"{where}.{name}") for name, meta in fields.items() if name in table}


def _build(cls: type[_Section], raw: object, where: str) -> _Section:
    return cls(**_values(cls, raw, where))


def _stage(name: str, raw: object) -> StagePlan:
    settings = _values(StagePlan, raw, name, extra=("params",))
    params = _values(PARAMS[name], _table(raw, name).get("params", {}), name)
    return StagePlan(params=PARAMS[name](**params), **settings)


def _service(name: str, raw: object) -> ServicePlan:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"services.{name}: this is no name", "Names are a-z, 0-9, '.', '_' and '-', up to 64", f"services.{name}"
        )
    return _build(ServicePlan, raw, f"services.{name}")


def _train_follows(plan: Plan) -> Plan:
    """train.length, where nobody has set it, is no more than what extract keeps."""
    extract, train = plan.params("extract"), plan.params("train")
    assert isinstance(extract, ExtractParams) and isinstance(train, TrainParams)
    if plan.stages["extract"].from_run or train.length <= extract.length:
        return plan
    stage = dataclasses.replace(plan.stages["train"], params=dataclasses.replace(train, length=extract.length))
    return dataclasses.replace(plan, stages={**plan.stages, "train": stage})


def check(plan: Plan) -> None:
    """What no single value can break: references between parts of the plan. Raises ConfigError."""

    def refuse(key: str, value: object, why: str, remedy: str) -> None:
        raise ConfigError(f"{key} = {show(value)}: {why}", remedy, key)

    def known_service(key: str, name: str, extra: tuple[str, ...] = ()) -> None:
        if name not in plan.services and name not in extra:
            names = [*extra, *plan.services]
            remedy = f"{suggest(name, names)} " if names else ""
            remedy += f"services.{name}.command adds one, its words between commas or as a JSON list"
            refuse(key, name, "the plan has no such service", remedy)

    for name in STAGES:
        stage = plan.stages[name]
        device = getattr(stage.params, "device", "auto")
        if not _DEVICE.fullmatch(device):
            refuse(f"{name}.device", device, "there is no such device", "It takes auto, cpu, cuda, cuda:N or mps")
        for service in stage.services:
            known_service(f"{name}.services", service)
        other, _, of_stage = stage.from_run.partition("/")
        if stage.from_run and not (_NAME.fullmatch(other) and of_stage == name):
            refuse(f"{name}.from_run", stage.from_run, "this names no output", f"It takes RUN/{name}")
    generate, extract, train, deploy = (plan.params(name) for name in ("generate", "extract", "train", "deploy"))
    assert isinstance(generate, GenerateParams) and isinstance(extract, ExtractParams)
    assert isinstance(train, TrainParams) and isinstance(deploy, DeployParams)
    if generate.service:
        known_service("generate.service", generate.service)
        if generate.endpoint:
            refuse("generate.endpoint", generate.endpoint, "generate.service is set too", "Give one of the two")
    if generate.endpoint and not re.match(r"https?://[^/\s]+", generate.endpoint):
        refuse("generate.endpoint", generate.endpoint, "this is no URL", "It takes http://HOST:PORT/v1")
    if deploy.engine != "bundled":
        known_service("deploy.engine", deploy.engine, ("bundled",))
    if train.length > extract.length and not plan.stages["extract"].from_run:
        refuse(
            "train.length",
            train.length,
            f"longer than what extract keeps (extract.length = {extract.length})",
            f"Set train.length to at most {extract.length}, or raise extract.length. One `eagledeck set` takes both: "
            f"extract.length={extract.length} train.length={extract.length}",
        )
    if plan.volume.capacity_bytes and plan.volume.reserve_bytes >= plan.volume.capacity_bytes:
        refuse(
            "volume.reserve_bytes",
            plan.volume.reserve_bytes,
            f"the reserve takes the whole capacity of {size_text(plan.volume.capacity_bytes)}",
            "Lower the reserve",
        )
    ports: dict[int, str] = {}
    for name, server in plan.services.items():
        if not server.command:
            refuse(f"services.{name}.command", [], "a service needs one", 'Such as ["vllm", "serve", "{verifier}"]')
        if commands.flaw(server.command):
            remedy = f"Put what only the engine with the drafter is given between {commands.OPEN} and {commands.CLOSE}"
            refuse(f"services.{name}.command", server.command, commands.flaw(server.command), remedy)
        if server.port and server.port in ports:
            refuse(f"services.{name}.port", server.port, f"{ports[server.port]} has it too", "Give each its own port")
        ports[server.port] = name


def unused_services(plan: Plan) -> list[str]:
    """Services of the plan that no stage names: they are never started."""
    generate, deploy = plan.params("generate"), plan.params("deploy")
    assert isinstance(generate, GenerateParams) and isinstance(deploy, DeployParams)
    named = {generate.service, deploy.engine, *(name for stage in plan.stages.values() for name in stage.services)}
    return [name for name in plan.services if name not in named]


def set_value(plan: Plan, key: str, value: object) -> Plan:
    """The plan with one key changed: `STAGE.PARAM`, `STAGE.gpus`, `services.NAME.port`, `through`, `verifier.path`, …

    A str is taken as typed by a person (`10000`, `3TB`, `0,1`), anything else as JSON. Raises ConfigError.
    """
    return set_values(plan, {key: value})


def set_values(plan: Plan, changes: Mapping[str, object]) -> Plan:
    """The plan with several keys changed at once; only the result has to hold together. Raises ConfigError.

    A train.length that still has its default goes down with extract.length; an empty services.NAME.command takes the
    service out.
    """
    for key, value in changes.items():
        plan = _changed(plan, key, value)
    length = getattr(plan.params("train"), "length")  # noqa: B009
    if "train.length" not in changes and length == TrainParams().length:
        plan = _train_follows(plan)
    check(plan)
    return plan


def _changed(plan: Plan, key: str, value: object) -> Plan:
    head, _, rest = key.partition(".")
    if key == "through":
        return dataclasses.replace(plan, through=_typed({**_COUNT, "kind": "choice", "choices": STAGES}, value, key))
    if head in ("verifier", "volume") and rest:
        section = getattr(plan, head)
        return dataclasses.replace(plan, **{head: _replaced(section, rest, value, head)})
    if head in STAGES and rest:
        stage = plan.stages[head]
        if rest in _fields(type(stage.params)):
            stage = dataclasses.replace(stage, params=_replaced(stage.params, rest, value, head))
        else:
            stage = _replaced(stage, rest, value, head, extra=tuple(_fields(type(stage.params))))
        return dataclasses.replace(plan, stages={**plan.stages, head: stage})
    if head == "services" and rest:
        name = max((one for one in plan.services if rest.startswith(f"{one}.")), key=len, default="")
        new = rest.removesuffix(".command")
        if not name and new != rest and _NAME.fullmatch(new):
            name = new
        if name:
            item = rest[len(name) + 1 :]
            service = _replaced(plan.services.get(name, ServicePlan()), item, value, f"services.{name}")
            found = {**plan.services, name: service}
            if not service.command and name in plan.services:
                del found[name]
            return dataclasses.replace(plan, services=found)
    heads = [
        "through",
        *(f"{name}.…" for name in ("verifier", "volume", *STAGES)),
        *(f"services.{n}.…" for n in plan.services),
    ]
    whole = [f"{name}.{key}" for name in STAGES if key in {**_fields(PARAMS[name]), **_fields(StagePlan)}]
    near = f"did you mean {' or '.join(whole)}? " if whole else ""
    near = near or suggest(head, ["through", "verifier", "volume", "services", *STAGES]).split("Allowed:")[0]
    raise ConfigError(f"{key} = {show(value)}: there is no such key", f"{near}Allowed: {', '.join(heads)}", key)


def _replaced(section: Any, name: str, value: object, where: str, extra: tuple[str, ...] = ()) -> Any:
    fields, key = _fields(type(section)), f"{where}.{name}"
    head, _, variable = name.partition(".")
    if variable and fields.get(head, {}).get("kind") == "env":
        table = {**getattr(section, head), variable: str(value)}
        return dataclasses.replace(section, **{head: read(fields[head], table, key)})
    if name not in fields:
        raise ConfigError(f"{key} = {show(value)}: there is no such key", suggest(name, [*extra, *fields]), key)
    return dataclasses.replace(section, **{name: _typed(fields[name], value, key)})


def _typed(meta: Mapping[str, Any], value: object, key: str) -> Any:
    return read_text(meta, value, key) if isinstance(value, str) else read(meta, value, key)
