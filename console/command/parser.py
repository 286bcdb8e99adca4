"""The grammar of the command line: verbs, their options, and the module that carries each out.

argparse only. A first word that is no verb is taken for a run to open: `eagledeck kimi`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

ON_SERVICES = ("list", "start", "stop")
STAGES = ("generate", "extract", "vocab", "train", "deploy")

DESCRIPTION = "Terminal operations console for training EAGLE-3 draft models on a remote GPU container."
EPILOG = """\
eagledeck RUN opens the console on a run; q detaches and nothing stops.
Start with `eagledeck demo` (no GPU, no network, no account) or `eagledeck init`.
`eagledeck VERB --help` says more; what stands there in parentheses at the end is the default.
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        """One sentence and where to read on, instead of the whole usage."""
        print(f"{self.prog}: {message}. See `{self.prog} --help`.", file=sys.stderr)
        raise SystemExit(2)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The parsed arguments; `handler` names the function that takes them. SystemExit(2) on wrong usage.

    `instead_of` holds the verbs where the run stands in the place of one, for the nearest spelling.
    """
    parser, verbs = _build()
    words = list(argv)
    first = _first_word(words)
    bare = first is not None and words[first] not in verbs
    if bare:
        words.insert(first or 0, "open")
    elif first is not None and words[first] == "service":
        after = _first_word(words[first + 1 :])
        if after is not None and words[first + 1 + after] not in ON_SERVICES:
            words.insert(first + 1, "list")
    return parser.parse_args(words, argparse.Namespace(instead_of=sorted(verbs) if bare else []))


def _first_word(words: Sequence[str]) -> int | None:
    """Where the verb stands: after the options that come before it."""
    position = 0
    while position < len(words):
        if words[position] == "--config":
            position += 2
        elif words[position].startswith("-"):
            position += 1
        else:
            return position
    return None


def _build() -> tuple[argparse.ArgumentParser, frozenset[str]]:
    parser = _Parser(
        prog="eagledeck", description=DESCRIPTION, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="the eagledeck.toml to use ($EAGLEDECK_CONFIG, the one here, or ~/.config/eagledeck/eagledeck.toml)",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version")
    parser.set_defaults(handler="console.command.open:open_only_run", run=None)
    verbs = parser.add_subparsers(metavar="VERB", title="verbs", parser_class=_Parser)

    def verb(name: str, handler: str, text: str) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=text)
        added.set_defaults(handler=f"console.command.{handler}")
        # Before or after the verb: without a default, or it would undo one given before.
        added.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        return added

    _add_demo(verb("demo", "demo:demo", "the whole pipeline on this machine, over a real SSH connection"))
    _add_init(verb("init", "init:init", "write an eagledeck.toml to start from, or create a run on its host"))
    watch = verb("open", "open:open_run", "open the console on a run (the same as `eagledeck RUN`)")
    _run(watch)
    _host_key(watch)
    _add_status(verb("status", "status:status", "the state of a run, or of all runs of the hosts"))
    _add_start(verb("start", "runs:start", "go from stage to stage; nothing on this machine has to stay"))
    for name, text, otherwise in (
        ("stop", "ask the running stage to save and end; resume goes on from there", "the run"),
        ("resume", "go on with a stopped, failed or interrupted stage", "the one that can go on"),
        ("kill", "end every process of the running stage at once; what it has not saved is lost", "the run"),
    ):
        stage = verb(name, f"runs:{name}", text)
        _run(stage)
        stage.add_argument("stage", nargs="?", choices=STAGES, metavar="STAGE", help=f"a stage; otherwise {otherwise}")
        if name == "kill":
            stage.add_argument("--yes", action="store_true", help="don't have its name typed first")
        if name == "resume":
            stage.add_argument(
                "--keep-stale",
                dest="stale",
                action="store_const",
                const="keep",
                default="refuse",
                help="use stale outputs that it reads as they are",
            )
        _host_key(stage)
    _add_restart(verb("restart", "runs:restart", "begin a new output of a stage; the old one stays on disk, uncounted"))
    change = verb("set", "set:set_plan", "change the plan of a run: `eagledeck set RUN generate.max_samples=10000`")
    _run(change)
    change.add_argument("changes", nargs="+", metavar="KEY=VALUE", help="as in eagledeck.toml: train.lr=3e-5")
    change.add_argument("--note", default="", metavar="TEXT", help="why, kept with the revision (the command)")
    _json(change)
    _host_key(change)
    _add_logs(verb("logs", "logs:logs", "the log of a stage or service"))
    _add_service(
        verb("service", "service:list_service", "the servers that the stages of a run need: list, start, stop")
    )
    doctor = verb("doctor", "doctor:doctor", "check a host, and what a run needs there; a remedy for each finding")
    doctor.add_argument("where", metavar="HOST", help="a host of eagledeck.toml, or a run: then what it needs as well")
    _json(doctor)
    _host_key(doctor)
    _add_files(verb("put", "files:put", "copy a file up to the host; resumable, hashed"), up=True)
    _add_files(
        verb("fetch", "files:fetch", "copy a file or folder home: the drafter, unless another is named"), up=False
    )
    _add_budget(verb("budget", "budget:budget", "what a run needs of its volume, and whether it fits"))
    return parser, frozenset(verbs.choices)


class _Version(argparse.Action):
    """Reads the package's metadata only when it is asked for: that takes longer than parsing."""

    def __call__(self, *_: object) -> None:
        from importlib.metadata import version

        print(f"eagledeck {version('eagledeck')}")
        raise SystemExit(0)


def _run(parser: argparse.ArgumentParser, otherwise: str = "") -> None:
    """`otherwise` says what happens without a run, where one may be left out."""
    text = f"a run of eagledeck.toml, or HOST:RUN for any run on a host{otherwise}"
    parser.add_argument("run", metavar="RUN", nargs="?" if otherwise else None, help=text)


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _host_key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--accept-host-key",
        metavar="SHA256:…",
        help="trust a host that is new if its key has exactly this fingerprint (for scripts)",
    )


def _add_demo(demo: argparse.ArgumentParser) -> None:
    demo.add_argument("--headless", action="store_true", help="no console: a line a stage and a final table")
    demo.add_argument(
        "--verifier",
        choices=("bundled", "smollm2"),
        default="bundled",
        help="the model that answers: bundled (4 M parameters, the default) or smollm2, a real chat model",
    )
    demo.add_argument(
        "--samples", type=_positive, metavar="N", help="samples to generate; another number begins a new run"
    )
    demo.add_argument(
        "--keep",
        metavar="DIR",
        help="the folder of its configuration and runs (~/.local/state/eagledeck/demo; headless: one that goes)",
    )
    demo.add_argument("--fresh", action="store_true", help="a new run; otherwise the one that is there goes on")
    demo.add_argument("--json", metavar="FILE", help="write the final numbers there; implies --headless")


def _add_init(init: argparse.ArgumentParser) -> None:
    init.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help="make this run of eagledeck.toml on its host; otherwise the file is written",
    )
    _json(init)
    _host_key(init)


def _add_status(status: argparse.ArgumentParser) -> None:
    _run(status, "; otherwise all runs of all hosts")
    status.add_argument("--host", metavar="NAME", help="all runs of this host")
    _json(status)
    _host_key(status)


def _add_start(start: argparse.ArgumentParser) -> None:
    _run(start)
    start.add_argument(
        "--from",
        dest="first",
        choices=STAGES,
        metavar="STAGE",
        help="the stage to begin with (the first that isn't DONE)",
    )
    start.add_argument(
        "--through", choices=STAGES, metavar="STAGE", help="the last stage (the plan's: deploy, unless it is changed)"
    )
    _stale(start)
    start.add_argument("--verifier", metavar="FOLDER", help="change the verifier first (its folder on the host)")
    _host_key(start)


def _add_restart(restart: argparse.ArgumentParser) -> None:
    _run(restart)
    restart.add_argument("stage", choices=STAGES, metavar="STAGE", help="the stage; the ones after it follow")
    restart.add_argument("--yes", action="store_true", help="don't have its name typed first")
    _stale(restart)
    _host_key(restart)


def _stale(parser: argparse.ArgumentParser) -> None:
    stale = parser.add_mutually_exclusive_group()
    stale.add_argument(
        "--rerun-stale", dest="stale", action="store_const", const="rerun", help="make outputs that are STALE anew"
    )
    stale.add_argument(
        "--keep-stale",
        dest="stale",
        action="store_const",
        const="keep",
        help="use them as they are; without either, a start that meets one is refused",
    )
    parser.set_defaults(stale="refuse")


def _add_logs(logs: argparse.ArgumentParser) -> None:
    _run(logs)
    source = logs.add_mutually_exclusive_group()
    source.add_argument(
        "--stage", choices=STAGES, metavar="STAGE", help="the one at work, or the last one, unless it is named"
    )
    source.add_argument("--service", metavar="NAME", help="the log of a service of the run instead")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until Ctrl-C, through reconnects")
    logs.add_argument("-n", "--lines", type=_positive, default=50, metavar="N", help="how many lines of its end (50)")
    logs.add_argument("--attempt", type=_positive, metavar="N", help="an earlier attempt of the stage (the newest)")
    _host_key(logs)


def _add_service(service: argparse.ArgumentParser) -> None:
    actions = service.add_subparsers(metavar="ACTION", title="actions", parser_class=_Parser, required=True)
    for name, text in (
        ("list", "their state, address and users (the same as `eagledeck service RUN`)"),
        ("start", "start one without a stage; it is kept up, and stopped when a run that used it needs it no longer"),
        ("stop", "stop one; asks first when a stage uses it"),
    ):
        action = actions.add_parser(name, help=text, description=text)
        action.set_defaults(handler=f"console.command.service:{name}_service")
        action.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        _run(action)
        if name == "list":
            _json(action)
        else:
            action.add_argument("service", metavar="NAME", help="a service of the run's plan")
        if name == "stop":
            action.add_argument("--yes", action="store_true", help="don't have its name typed first")
        _host_key(action)


def _add_files(parser: argparse.ArgumentParser, up: bool) -> None:
    text = "a host of eagledeck.toml, or a run: then its host"
    if up:
        parser.add_argument("where", metavar="HOST", help=text)
        parser.add_argument("local", metavar="FILE", help="a file of this machine")
        parser.add_argument(
            "remote", nargs="?", metavar="REMOTE", help="where to on the host, under its root (files/FILE)"
        )
        parser.add_argument(
            "--as", dest="key", metavar="KEY", help="set this key of the run's plan to it: generate.prompts"
        )
    else:
        parser.add_argument("where", metavar="RUN", help="a run, or a host of eagledeck.toml and what to fetch")
        parser.add_argument(
            "remote", nargs="?", metavar="REMOTE", help="a path on the host, under its root (the run's drafter)"
        )
        parser.add_argument(
            "--to",
            dest="local",
            metavar="FOLDER",
            default=".",
            help="the folder of this machine that it comes into (.)",
        )
    _json(parser)
    _host_key(parser)


def _add_budget(budget: argparse.ArgumentParser) -> None:
    _run(budget, "; without one, say the sizes")
    shape = budget.add_mutually_exclusive_group()
    shape.add_argument("--verifier", metavar="FOLDER", help="read the sizes from its config.json on this machine")
    shape.add_argument("--hidden-size", type=_positive, metavar="N", help="or say only the verifier's hidden size")
    budget.add_argument("--samples", type=_positive, metavar="N", help="samples to generate")
    budget.add_argument("--mean-tokens", type=float, metavar="N", help="tokens of a sample, prompt and answer")
    budget.add_argument("--volume", metavar="SIZE", help="capacity of the volume: 3TB, 2.7TiB")
    budget.add_argument("--used", metavar="SIZE", default="0", help="bytes of it that are taken already (0)")
    budget.add_argument("--reserve", metavar="SIZE", help="bytes to leave free (2%% of the volume)")
    budget.add_argument(
        "--length", type=_positive, metavar="N", help="longest sequence kept; nothing is cut without it"
    )
    budget.add_argument("--checkpoints", type=_positive, default=3, metavar="N", help="checkpoints of train kept (3)")
    budget.add_argument(
        "--draft-vocab", type=_positive, default=32_000, metavar="N", help="tokens of the draft vocabulary (32,000)"
    )
    _json(budget)
    _host_key(budget)


def _positive(text: str) -> int:
    try:
        value = int(text.replace("_", "").replace(",", ""))
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return value
