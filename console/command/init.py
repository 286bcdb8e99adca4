"""`eagledeck init`: an eagledeck.toml to start from; `eagledeck init RUN`: the run it describes, made on its host."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from console.command.astyped import as_typed
from console.command.refusal import Refusal
from console.config import FILE

TEMPLATE = """\
# Eagledeck: hosts, services and runs. `eagledeck budget` says beforehand whether a run fits its volume.
# A wrong key, type or value is answered with its line and with what is allowed.
version = 1

[hosts.gpu]
ssh = "root@203.0.113.7:40022"   # what you would give to ssh: [user@]host[:port], or a name from ~/.ssh/config
volume = "/data"                 # where the data volume is mounted; runs go to VOLUME/eagledeck
# root = "/data/eagledeck"       # another folder for runs, telemetry and the uploaded code
# capacity = "3TB"               # a quota of that folder, where it is smaller than what the filesystem says
reserve = "50GB"                 # bytes that are never filled
# python = "/venv/bin/python"    # the Python of the agent and, unless a stage names its own, of the stages
# identity = "~/.ssh/id_ed25519"
# backend = "openssh"            # the system's ssh connects: for a ProxyCommand that signs in, hardware keys, Kerberos

# A server that answers prompts, started when a stage needs it. A server that runs anyway needs no entry:
# give generate its endpoint instead.
[services.vllm]
command = ["vllm", "serve", "{verifier}", "--port", "{port}", "--reasoning-parser", "kimi_k2"]
port = 8000
# deploy can measure in it too (deploy.engine = "vllm"): what only the engine with the drafter is given goes between
# "{drafted}" and "{/drafted}", with {drafter} and {k} where its folder and deploy.k belong (docs/formats.md)
# gpus = [0, 1, 2, 3]            # "all" by default
# ready_timeout_s = 1800

[runs.first]
host = "gpu"
verifier = "/data/models/VERIFIER"   # its folder on the host
# reasoning = true                   # left out: found out from the chat template
# through = "deploy"                 # the last stage to run

[runs.first.generate]
prompts = "/data/eagledeck/files/prompts.jsonl"   # `eagledeck put gpu prompts.jsonl` puts it there
service = "vllm"                                  # or: endpoint = "http://127.0.0.1:8000/v1"
services = ["vllm"]
max_samples = 10_000
max_tokens = 4096
# token_budget = 20_000_000

[runs.first.extract]
length = 2048

[runs.first.vocab]
size = 32_000

[runs.first.train]
epochs = 5
lr = 1e-4
# from_run = "OTHER/train" and the like borrow what another run has made, without a copy

[runs.first.deploy]
k = 3
samples = 64
"""


def init(args: argparse.Namespace) -> int:
    if args.run is None:
        return _write_template(args)
    from console.command.session import ask_host, find_run

    target = find_run(args)
    if target.config is None:
        raise Refusal(f"{target.run} is not in your {FILE}.", f"Add a [runs.{target.run}] first.")
    ask_host(target, args.accept_host_key, "create", name=target.run, plan=target.config.plan.to_json())
    if args.json:
        print(json.dumps({"created": target.run, "host": target.host.name}))
    else:
        print(f"Made run {target.run} on {target.host.name}.")
        print(as_typed(f"`eagledeck start {target.run}` starts it; `eagledeck open {target.run}` shows it.", args))
    return 0


def _write_template(args: argparse.Namespace) -> int:
    path = Path(args.config or FILE)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(TEMPLATE)
    except FileExistsError:
        raise Refusal(f"{path} is there already.", "`eagledeck init RUN` makes one of its runs on its host.") from None
    except OSError as error:
        raise Refusal(f"{path} can't be written: {error.strerror}.", "Choose another folder.") from None
    print(
        json.dumps({"written": str(path)})
        if args.json
        else as_typed(f"Wrote {path}. Edit it, then `eagledeck init first` makes its run.", args)
    )
    return 0
