"""`eagledeck budget`: the arithmetic of a plan in the head, of a verifier's folder, or of a run on its host."""

from __future__ import annotations

import argparse
import json

from console.command.astyped import as_typed
from console.command.refusal import Refusal
from pipeline.budget import BudgetRequest, default_reserve, explain, plan_bytes
from pipeline.config import parse_size
from pipeline.geometry import Geometry, from_hidden_size, read_geometry


def budget(args: argparse.Namespace) -> int:
    """Prints the arithmetic and the largest count that fits; 1 when it does not fit."""
    if args.run:
        return _of_run(args)
    result = plan_bytes(_request(args))
    print(json.dumps(result.to_json(), indent=2) if args.json else "\n".join(explain(result)))
    return 0 if result.fits else 1


def _request(args: argparse.Namespace) -> BudgetRequest:
    named = {"--samples": args.samples, "--mean-tokens": args.mean_tokens, "--volume": args.volume}
    named["--hidden-size (or --verifier FOLDER)"] = args.hidden_size or args.verifier
    missing = [name for name, value in named.items() if not value]
    if missing:
        raise Refusal(
            f"A budget without a run needs {', '.join(missing)}.",
            "For example: `eagledeck budget --hidden-size 7168 --samples 25000 --mean-tokens 4000 --volume 3TB`",
            status=2,
        )
    capacity = _size(args.volume, "--volume")
    geometry: Geometry = read_geometry(args.verifier) if args.verifier else from_hidden_size(args.hidden_size)
    return BudgetRequest(
        geometry=geometry,
        samples=args.samples,
        mean_tokens=args.mean_tokens,
        capacity_bytes=capacity,
        free_bytes=max(0, capacity - _size(args.used, "--used")),
        reserve_bytes=default_reserve(capacity) if args.reserve is None else _size(args.reserve, "--reserve"),
        length=args.length or 0,
        draft_vocab=args.draft_vocab,
        checkpoints=args.checkpoints,
    )


def _size(text: str, option: str) -> int:
    try:
        return parse_size(text)
    except ValueError:
        raise Refusal(
            f"{option} {text} is no size.", "It takes bytes, such as 3TB, 2.7TiB or 500_000_000.", 2
        ) from None


def _of_run(args: argparse.Namespace) -> int:
    from console.command.session import ask_host, find_run

    sizes = {"--samples": args.samples, "--mean-tokens": args.mean_tokens, "--volume": args.volume}
    sizes |= {"--verifier": args.verifier, "--hidden-size": args.hidden_size, "--reserve": args.reserve}
    given = [name for name, value in {**sizes, "--length": args.length}.items() if value]
    if given:
        raise Refusal(
            f"The budget of a run is that of its plan; {', '.join(given)} can't be given with it.",
            f"Leave {'it' if len(given) == 1 else 'them'} out, or change the plan with `eagledeck set`.",
            status=2,
        )
    target = find_run(args)
    reply = ask_host(target, args.accept_host_key, "budget", run=target.run)
    lines = reply.pop("lines", [])
    print(json.dumps(reply, indent=2) if args.json else as_typed("\n".join(map(str, lines)), args))
    return 1 if reply.get("fits") is False else 0
