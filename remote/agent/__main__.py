"""The subcommands that run on a host. Each imports only what it needs, so that a supervisor stays small."""

from __future__ import annotations

import os
import sys
from pathlib import Path

USAGE = """usage: python -B -u -m remote.agent COMMAND …
  serve     --root ROOT --nonce N     speak the protocol over stdin and stdout
  receive   --root ROOT --nonce N     take a file
  send      --root ROOT --nonce N     give a file
  supervise --attempt PATH            run one attempt, detached
  conduct   --run DIR                 go from stage to stage, detached
  keep      --service DIR             keep a service up, detached
  linger    --root ROOT --nonce N     leave a detached process behind for a minute, to see whether it lives on
  record    --root ROOT               record the host's telemetry, detached
  doctor    --root ROOT [--run DIR] [--json]
                                      check the host
"""


def _options(argv: list[str]) -> dict[str, str]:
    """``--name value`` pairs and ``--flag``; argparse would cost a supervisor a megabyte."""
    options: dict[str, str] = {}
    at = 0
    while at < len(argv):
        name = argv[at]
        if not name.startswith("--"):
            raise SystemExit(f"unexpected {name!r}\n{USAGE}")
        takes = at + 1 < len(argv) and not argv[at + 1].startswith("--")
        options[name[2:]] = argv[at + 1] if takes else ""
        at += 2 if takes else 1
    return options


def main(argv: list[str]) -> int:
    """Exit status of the subcommand; 2 for a command line that makes no sense."""
    if not argv:
        sys.stderr.write(USAGE)
        return 2
    command, options = argv[0], _options(argv[1:])
    if command in ("receive", "send"):
        from remote.agent import transfer

        root = Path(_need(options, "root"))
        os.write(1, _need(options, "nonce").encode() + b"\n")
        return (transfer.receive if command == "receive" else transfer.send)(root, 0, 1)
    if command == "supervise":
        from remote.agent.supervisor import supervise

        attempt = Path(_need(options, "attempt")).absolute()
        return supervise(attempt, int(options.get("lock-fd") or -1), adopt="adopt" in options)
    if command == "conduct":
        from remote.agent.conductor import conduct

        return conduct(Path(_need(options, "run")).absolute(), options)
    if command == "keep":
        from remote.agent.keeper import keep

        return keep(Path(_need(options, "service")).absolute())
    if command == "linger":
        from remote.agent.doctor import linger

        os.write(1, _need(options, "nonce").encode() + b"\n")
        return linger()
    if command == "serve":
        from remote.agent.agent import main as serve

        return serve(_need(options, "root"), _need(options, "nonce"))
    if command == "record":
        from remote.agent.recorder import record

        return record(Path(_need(options, "root")).absolute())
    if command == "doctor":
        return _doctor(Path(_need(options, "root")).absolute(), options.get("run", ""), "json" in options)
    sys.stderr.write(USAGE)
    return 2


def _doctor(root: Path, run: str, as_json: bool) -> int:
    from pipeline.rundir import RunDir
    from remote.agent.doctor import examine
    from remote.protocol import dump_json

    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    report = examine(root, RunDir.open(Path(run).absolute()) if run else None)
    if as_json:
        print(dump_json(report).decode())
    else:
        for finding in report["findings"]:
            mark = {True: "ok", False: "bad", None: "note"}[finding["ok"]]
            print(f"{mark:<5} {finding['message']}" + (f"\n      -> {finding['remedy']}" if finding["remedy"] else ""))
    return 0 if report["ok"] else 1


def _need(options: dict[str, str], name: str) -> str:
    if not options.get(name):
        raise SystemExit(f"--{name} is missing\n{USAGE}")
    return options[name]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
