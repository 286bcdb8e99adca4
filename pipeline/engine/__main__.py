"""`python -m pipeline.engine --model DIR --port N`: binds, loads, serves, ends at SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from pathlib import Path

from pipeline.engine.loading import PARSERS, LoadError, check_folder, load
from pipeline.engine.server import Ready, Server
from pipeline.failure import missing_module

_SMALL = 20_000_000
"""Parameters below which the threads of a step wait for each other longer than they work."""
_DTYPES = ("float32", "bfloat16")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.engine", description="A small OpenAI-compatible server over a transformers model."
    )
    parser.add_argument("--model", type=Path, required=True, help="model folder in Hugging Face layout")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one and says which")
    parser.add_argument("--served-model-name", default="", help="default: the folder's name")
    parser.add_argument("--dtype", choices=_DTYPES, default="float32")
    parser.add_argument("--threads", type=_positive, default=0, help="default: one a core; one in all for a tiny model")
    parser.add_argument("--max-batch", type=_positive, default=64, help="answers decoded together")
    parser.add_argument(
        "--drafter", type=Path, default=None, help="folder of an EAGLE-3 drafter; decoding is then greedy"
    )
    parser.add_argument("--k", type=_positive, default=3, help="draft tokens a verification")
    parser.add_argument(
        "--reasoning-parser", choices=PARSERS, default="auto", help="auto: kimi where the model has </think>"
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    # Waiting OpenMP threads that spin for long take the core from whoever the engine waits for; those that never spin
    # are woken at each operation, which halves the speed of a small model. This many turns are some ten microseconds.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    name = options.served_model_name or options.model.resolve().name
    try:
        server = Server(options.host, options.port)
    except (OSError, OverflowError) as error:
        print(
            f"pipeline.engine: can't listen on {options.host}:{options.port}: {error}. "
            "Choose another --port or --host.",
            file=sys.stderr,
        )
        return 1
    host = f"[{options.host}]" if ":" in options.host else options.host
    print(f"pipeline.engine: {name} on http://{host}:{server.server_address[1]}/v1", flush=True)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    failures: list[str] = []

    def work() -> None:
        try:
            _prepare(options, name, server)
        except LoadError as error:
            failures.append(str(error))
        except Exception as error:
            module = missing_module(error)
            failures.append(
                f"{sys.executable} has no module {module}, which the engine needs. "
                "Install the pipeline there: pip install '.[pipeline]' in a clone of Eagledeck."
                if module
                else f"{options.model} could not be served: {error!r}"
            )
        ready = server.state.ready
        if ready is not None and not failures:
            ready.work.run()
        stopping.set()

    worker = threading.Thread(target=work, name="decoding", daemon=True)
    listener = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="listening", daemon=True
    )
    worker.start()
    listener.start()
    while not stopping.wait(0.5):
        pass
    if server.state.ready is not None:
        server.state.ready.work.stop()
        worker.join(10)
    server.shutdown()
    server.drain(2.0)
    server.server_close()
    for failure in failures:
        print(f"pipeline.engine: {failure}", file=sys.stderr, flush=True)
    return 1 if failures else 0


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _prepare(options: argparse.Namespace, name: str, server: Server) -> None:
    """Loads everything in the thread that will decode. Raises LoadError."""
    check_folder(options.model)
    import torch

    from pipeline.engine.work import Work

    # Sharp attention leaves denormal numbers behind, which cost a hundred times a normal one.
    torch.set_flush_denormal(True)
    verifier = load(options.model, name, options.dtype, options.reasoning_parser)
    small = sum(parameter.numel() for parameter in verifier.model.parameters()) < _SMALL
    torch.set_num_threads(options.threads or (1 if small else _cores()))
    work = Work(verifier, options.max_batch, server.state.metrics)
    if options.drafter is not None:
        try:
            work.draft_with(options.drafter, options.k)
        except Exception as error:
            raise LoadError(f"The drafter in {options.drafter} does not load: {error}") from error
    server.state.ready = Ready(verifier, work, int(time.time()))


if __name__ == "__main__":
    raise SystemExit(main())
