"""eagledeck.toml: hosts, runs and services as a person writes them, checked, and turned into what the other rooms take.

Every refusal names the key, its line in the file, the value and what is allowed. Imports pipeline's light modules;
remote only when there is a host. tomllib, no Textual.
"""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from console.toml_lines import key_lines
from pipeline.config import PARAMS, STAGES, ConfigError, Plan, ServicePlan, StagePlan
from pipeline.fields import read, show, spec, suggest

if TYPE_CHECKING:
    from remote.resolve import HostSpec

VERSION = 1
"""The newest `version` of eagledeck.toml that is understood."""
FILE = "eagledeck.toml"

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


class ConfigFileError(Exception):
    """The configuration can't be used: `message` says where and what, `remedy` what to do."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(f"{message} {remedy}")
        self.message = message
        self.remedy = remedy


@dataclass(frozen=True)
class HostConfig:
    """One `[hosts.NAME]`."""

    name: str
    ssh: str = spec("", "str", "[user@]host[:port], or a name from ~/.ssh/config")
    root: str = spec("", "str", "Eagledeck's folder on the host; empty: VOLUME/eagledeck")
    volume: str = spec("", "str", "where the data volume is mounted")
    capacity: int = spec(0, "size", "quota of the volume's folder; 0: what the filesystem says")
    reserve: int = spec(1 << 30, "size", "bytes of the volume that are never filled")
    python: str = spec("", "str", "the host's Python that runs the agent; empty: looked for")
    user: str = spec("", "str", "login name; wins over ssh and ~/.ssh/config")
    port: int = spec(0, "int", "SSH port; wins over ssh and ~/.ssh/config", low=0, high=65535)
    identity: tuple[str, ...] = spec((), "words", "private key files; empty: those of ssh")
    ssh_config: bool = spec(True, "bool", "whether ~/.ssh/config is read")
    backend: str = spec(
        "asyncssh",
        "choice",
        "who connects; openssh: the system's ssh, for a ProxyCommand that signs in, hardware keys, PKCS#11, Kerberos",
        choices=("asyncssh", "openssh"),
    )

    def to_spec(self) -> HostSpec:
        from remote.resolve import HostSpec

        return HostSpec(
            alias=self.name,
            ssh=self.ssh,
            root=self.root or f"{self.volume.rstrip('/')}/eagledeck",
            python=self.python,
            volume=self.volume,
            port=self.port,
            user=self.user,
            identity_files=self.identity,
            ssh_config=self.ssh_config,
            backend=self.backend,
        )


@dataclass(frozen=True)
class RunConfig:
    """One `[runs.NAME]`; `plan` is what the run is created with."""

    name: str
    plan: Plan
    host: str = spec("", "str", "one of [hosts]; empty: the only one")
    verifier: str = spec("", "str", "folder of the verifier on the host")
    verifier_name: str = spec("", "str", "what it is called on screen; empty: the name of its folder")
    reasoning: bool | None = spec(None, "flag", "whether the verifier reasons before it answers; left out: found out")
    through: str = spec("deploy", "choice", "the last stage to run", choices=STAGES)


@dataclass(frozen=True)
class Config:
    """A whole file. `path` is None where there is none; `state` holds the pinned host keys."""

    path: Path | None
    state: Path
    hosts: Mapping[str, HostConfig]
    runs: Mapping[str, RunConfig]


def state_folder() -> Path:
    """$XDG_STATE_HOME/eagledeck, by default ~/.local/state/eagledeck: pinned host keys, traces of errors, the demo."""
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state") / "eagledeck"


def find_config(given: str | None = None) -> Path | None:
    """The file to use: `given`, $EAGLEDECK_CONFIG, ./eagledeck.toml, then the user's. None where there is none.

    Raises ConfigFileError when a file that was asked for by name isn't there.
    """
    for source, name in (("--config", given), ("EAGLEDECK_CONFIG", os.environ.get("EAGLEDECK_CONFIG"))):
        if name:
            path = Path(name).expanduser()
            if not path.is_file():
                raise ConfigFileError(f"There is no file {path} ({source}).", "Correct the path.")
            return path
    base = os.environ.get("XDG_CONFIG_HOME", "")
    user = (Path(base) if os.path.isabs(base) else Path.home() / ".config") / "eagledeck" / FILE
    return next((path for path in (Path(FILE), user) if path.is_file()), None)


def load_config(path: Path | None) -> Config:
    """The checked configuration of a file; an empty one without a file. Raises ConfigFileError."""
    if path is None:
        return Config(None, state_folder(), {}, {})
    try:
        content = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigFileError(
            f"{path} can't be read: {error.strerror}.", "Check the path and its permissions."
        ) from None
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise ConfigFileError(f"{path}, line {line}: this is no UTF-8 text.", "Save the file as UTF-8.") from None
    return parse_config(content, path)


def parse_config(content: str, path: Path) -> Config:
    """`content` is the text of the file at `path`, which names it in errors and anchors relative paths."""
    try:
        raw = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise _broken(content, path, str(error)) from None
    return _Reader(raw, content, path).config()


def _broken(content: str, path: Path, said: str) -> ConfigFileError:
    match = re.fullmatch(r"(.*?) \(at (?:line (\d+), column (\d+)|end of document)\)", said, re.DOTALL)
    what, line, column = match.groups() if match else (said, None, None)
    what = re.sub(r"\(('[^)]*'),?\)", lambda names: "[" + ".".join(re.findall(r"'([^']*)'", names[1])) + "]", what)
    line = line or str(content.rstrip("\n").count("\n") + 1)
    where = f"line {line}, column {column}" if column else f"line {line} (the end of the file)"
    return ConfigFileError(f"{path}, {where}: {what[:1].lower()}{what[1:]}.", "Correct the TOML there.")


class _Reader:
    def __init__(self, raw: Mapping[str, Any], content: str, path: Path) -> None:
        self.raw = raw
        self.path = path
        self.lines = key_lines(content)

    def config(self) -> Config:
        version = self.raw.get("version", VERSION)
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise self.error(("version",), f"version = {show(version)} is not allowed", f"It takes {VERSION}")
        if version > VERSION:
            raise self.error(
                ("version",),
                f"version = {version} was written for a newer Eagledeck; this one reads version {VERSION}",
                "Update Eagledeck",
            )
        self.only_keys(self.raw, ("version", "state", "hosts", "services", "runs"), ())
        hosts = {name: self.host(name, raw) for name, raw in self.tables("hosts").items()}
        state = self.raw.get("state", "")
        if not isinstance(state, str):
            raise self.error(("state",), f"state = {show(state)} is not allowed", "It takes the path of a folder")
        folder = self.path.parent / Path(state).expanduser() if state else state_folder()
        services = self.tables("services")
        for name, raw in services.items():
            self.fields(ServicePlan, raw, ("services", name))
        runs = {name: self.run(name, raw, hosts, services) for name, raw in self.tables("runs").items()}
        return Config(self.path, folder, hosts, runs)

    def host(self, name: str, raw: Mapping[str, Any]) -> HostConfig:
        at = ("hosts", name)
        host = HostConfig(name, **self.fields(HostConfig, raw, at))
        if not host.ssh:
            raise self.error(at, f"hosts.{name} has no ssh", 'Say how it is reached: ssh = "root@ADDRESS:PORT"')
        if not (host.root or host.volume):
            raise self.error(
                at, f"hosts.{name} has neither root nor volume", 'Say where the data goes: volume = "/data"'
            )
        self.target(host.ssh, (*at, "ssh"))
        for key in ("root", "volume"):
            value = getattr(host, key)
            if value and not value.startswith(("/", "~/")):
                raise self.error(
                    (*at, key), f"hosts.{name}.{key} = {show(value)} is not allowed", "It takes a path from / or ~/"
                )
        return host

    def target(self, ssh: str, at: tuple[str, ...]) -> None:
        from remote.errors import HostConfigError
        from remote.resolve import split_target

        try:
            split_target(ssh)
        except HostConfigError as error:
            said, remedy = error.message.rstrip("."), error.remedy.rstrip(".")
            raise self.error(at, f"{'.'.join(at)}: {said}", remedy) from None

    def run(
        self, name: str, raw: Mapping[str, Any], hosts: Mapping[str, HostConfig], services: Mapping[str, Any]
    ) -> RunConfig:
        at = ("runs", name)
        own = {key: value for key, value in raw.items() if key not in STAGES}
        values = self.fields(RunConfig, own, at, extra=STAGES)
        host = values.get("host") or (next(iter(hosts)) if len(hosts) == 1 else "")
        if host not in hosts:
            said = f"runs.{name}.host = {show(host)}: there is no such host" if host else f"runs.{name} has no host"
            raise self.error((*at, "host"), said, suggest(host, hosts) if hosts else "Add a [hosts.NAME]")
        values["host"] = host
        if not values.get("verifier"):
            raise self.error(
                at, f"runs.{name} has no verifier", 'Name its folder on the host: verifier = "/data/models/NAME"'
            )
        stages = {stage: self.stage(stage, raw[stage], (*at, stage)) for stage in STAGES if stage in raw}
        wanted = _services_of(stages)
        for key, service in wanted:
            if service not in services:
                said = f"runs.{name}.{'.'.join(key)} = {show(service)}: there is no such service"
                remedy = suggest(service, services) if services else f"Add a [services.{service}]"
                raise self.error((*at, *key), said, remedy)
        plan = self.plan(name, values, hosts[host], stages, {service: services[service] for _, service in wanted})
        return RunConfig(name, plan, **values)

    def stage(self, stage: str, raw: object, at: tuple[str, ...]) -> dict[str, Any]:
        table = self.table(raw, at)
        params = [item.name for item in dataclasses.fields(PARAMS[stage])]
        settings = [item.name for item in dataclasses.fields(StagePlan) if item.metadata]
        self.only_keys(table, [*params, *settings], at)
        self.fields(PARAMS[stage], {key: value for key, value in table.items() if key in params}, at)
        self.fields(StagePlan, {key: value for key, value in table.items() if key in settings}, at)
        return {
            **{key: value for key, value in table.items() if key in settings},
            "params": {key: value for key, value in table.items() if key in params},
        }

    def plan(
        self,
        name: str,
        values: Mapping[str, Any],
        host: HostConfig,
        stages: Mapping[str, Any],
        services: Mapping[str, Any],
    ) -> Plan:
        verifier = {"path": values["verifier"], "name": values.get("verifier_name") or Path(values["verifier"]).name}
        if values.get("reasoning") is not None:
            verifier["reasoning"] = values["reasoning"]
        try:
            return Plan.from_json(
                {
                    "verifier": verifier,
                    "volume": {"path": host.volume, "capacity_bytes": host.capacity, "reserve_bytes": host.reserve},
                    "through": values.get("through", "deploy"),
                    "stages": stages,
                    "services": services,
                }
            )
        except ConfigError as error:
            head, *rest = error.key.split(".")
            at = ("services", *rest) if head == "services" else ("runs", name, head, *rest)
            message = error.message
            if head == "volume":
                written = {"reserve_bytes": "reserve", "capacity_bytes": "capacity"}.get(rest[0], "")
                at = ("hosts", host.name, written)
                message = message.replace(error.key, ".".join(at), 1)
            raise self.error(at, message, error.remedy) from None

    def fields(self, cls: Any, raw: object, at: tuple[str, ...], extra: tuple[str, ...] = ()) -> dict[str, Any]:
        """The typed values of the keys that are there; `extra` only adds to what a wrong key is told is allowed."""
        table = self.table(raw, at)
        known = {item.name: item.metadata for item in dataclasses.fields(cls) if item.metadata}
        self.only_keys(table, [*known, *extra], at)
        values = {}
        for key, value in table.items():
            if key == "identity" and isinstance(value, str):
                value = [value]
            try:
                values[key] = read(known[key], value, ".".join((*at, key)))
            except ConfigError as error:
                raise self.error((*at, key), error.message, error.remedy) from None
        return values

    def tables(self, head: str) -> dict[str, Mapping[str, Any]]:
        """The named tables under `[HEAD.NAME]`, names checked."""
        found = {}
        for name, raw in self.table(self.raw.get(head, {}), (head,)).items():
            if not _NAME.fullmatch(name):
                raise self.error(
                    (head, name),
                    f"{head}.{show(name)}: this is no name",
                    "Names are a-z, 0-9, '.', '_' and '-', up to 64",
                )
            found[name] = self.table(raw, (head, name))
        return found

    def table(self, raw: object, at: tuple[str, ...]) -> Mapping[str, Any]:
        if not isinstance(raw, Mapping):
            raise self.error(at, f"{'.'.join(at)} = {show(raw)} is not allowed", f"It takes a table: [{'.'.join(at)}]")
        return raw

    def only_keys(self, raw: Mapping[str, Any], allowed: Any, at: tuple[str, ...]) -> None:
        for key in raw:
            if key not in allowed:
                full = ".".join((*at, key))
                raise self.error((*at, key), f"{full} = {show(raw[key])}: there is no such key", suggest(key, allowed))

    def error(self, at: tuple[str, ...], message: str, remedy: str) -> ConfigFileError:
        """The line is that of the key, or of the nearest table around it that is in the file."""
        while at and at not in self.lines:
            at = at[:-1]
        where = f"{self.path}, line {self.lines[at]}" if at else str(self.path)
        return ConfigFileError(f"{where}: {message}.", f"{remedy[:1].upper()}{remedy[1:]}.")


def _services_of(stages: Mapping[str, Any]) -> list[tuple[tuple[str, ...], str]]:
    """(key, service) for every service that a stage names."""
    found: list[tuple[tuple[str, ...], str]] = []
    for stage, table in stages.items():
        params = table["params"]
        found += [((stage, "services"), name) for name in table.get("services", ())]
        if params.get("service"):
            found.append(((stage, "service"), params["service"]))
        if stage == "deploy" and params.get("engine", "bundled") != "bundled":
            found.append(((stage, "engine"), params["engine"]))
    return found
