"""`eagledeck put` and `fetch`: prompts up, drafters home. Resumable, hashed; repeated, they go on where they were."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from console import format as shown
from console.command.astyped import as_typed
from console.command.refusal import Refusal
from console.command.session import connected, find_where, run_async, run_section
from console.command.set import change_lines, change_plan
from console.views import stage_views
from pipeline.config import Plan, set_values

if TYPE_CHECKING:
    from remote.link import Link
    from remote.transfer import Transferred

UPLOADS = "files"
"""Where `put` puts things under the host's root unless it is told otherwise."""
DRAFTER = "deploy/current/drafter-eagle3"


def put(args: argparse.Namespace) -> int:
    local = Path(args.local)
    if not local.is_file():
        what = "is no file" if local.exists() else "is not there"
        raise Refusal(f"{local} {what}.", "`eagledeck put` takes one file of this machine.")
    target = find_where(args)
    remote = args.remote or f"{UPLOADS}/{local.name}"
    if remote.endswith("/"):
        remote += local.name
    if args.key and not target.run:
        raise Refusal(f"--as {args.key} changes a plan, and {args.where} is a host.", "Name a run.", 2)

    async def work() -> tuple[Transferred, list[str]]:
        from remote.transfer import put

        async with connected(target.state, target.host, args.accept_host_key) as link:
            if args.key:  # a key that isn't there is said before the file travels
                set_values(Plan.from_json(await link.request("plan", run=target.run)), {args.key: remote})
            done = await put(link, local, remote, _Progress(local.name))
            said = [f"{done.path}  {shown.si_bytes(done.size)}  on {target.host.name}"]
            if args.key:
                changes = {args.key: done.path}
                changed = await change_plan(link, target.run, changes, f"put {local.name}")
                said += change_lines(target, args.where, changes, changed)
            return done, said

    done, said = run_async(work())
    _tell(args, [done], "\n".join(said))
    return 0


def fetch(args: argparse.Namespace) -> int:
    target = find_where(args)
    if args.remote is None and not target.run:
        raise Refusal(f"{args.where} is a host.", "Name a run, or what to fetch: `eagledeck fetch HOST PATH`", 2)
    remote = args.remote or f"{target.run}/{DRAFTER}"

    async def work() -> list[Transferred]:
        async with connected(target.state, target.host, args.accept_host_key) as link:
            if remote.endswith(DRAFTER) and target.run and (said := await _stale(link, target.run, args.where)):
                print(as_typed(f"eagledeck: {said}", args), file=sys.stderr, flush=True)
            return await _fetch_all(link, remote, Path(args.local))

    files = run_async(work())
    _tell(args, files, _arrived(files))
    return 0


async def _stale(link: Link, run: str, named: str) -> str:
    """What there is to say of a drafter that isn't what the plan asks for; "" for one that is."""
    stages = {stage.name: stage for stage in stage_views(await run_section(link, run))}
    deploy = stages.get("deploy")
    if deploy is None or not deploy.stale:
        return ""
    kept = " (kept)" if deploy.kept else ""
    return (
        f"This drafter is STALE{kept}: {deploy.stale_reason}. It is fetched all the same; "
        f"`eagledeck start {named} --rerun-stale` makes one that isn't."
    )


def _arrived(files: list[Transferred]) -> str:
    """What came and where it lies; of several files the folder once, and their paths in it."""
    if not files:
        return "There is no file in it."
    home = Path(os.path.commonpath([file.path for file in files])).resolve()
    if len(files) == 1:
        return f"{home}  {shown.si_bytes(files[0].size)}"
    rows = [f"  {Path(file.path).resolve().relative_to(home)}  {shown.si_bytes(file.size)}" for file in files]
    return "\n".join([f"{home}  {len(files)} files, {shown.si_bytes(sum(file.size for file in files))}", *rows])


async def _fetch_all(link: Link, remote: str, folder: Path) -> list[Transferred]:
    """A file into `folder`, or a folder with everything in it under its own name."""
    from remote.transfer import fetch

    found = await link.request("stat", path=remote)
    if found["kind"] == "none":
        raise Refusal(
            f"There is no {found['path']} on {link.spec.alias}.",
            "The drafter is there when deploy is DONE." if remote.endswith(DRAFTER) else "Check the path.",
        )
    if found["more"]:
        raise Refusal(f"{found['path']} holds more files than one fetch takes.", "Fetch its parts.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal(f"{folder} can't be a folder: {error.strerror}.", "Name another with --to.") from None
    if found["kind"] == "file":
        return [await fetch(link, remote, folder, _Progress(PurePosixPath(remote).name))]
    done = []
    home = folder / PurePosixPath(remote).name
    for entry in found["entries"]:
        name = str(entry["path"])
        place = home / name
        if not place.resolve().is_relative_to(home.resolve()):
            raise Refusal(f"The host names a file {name!r}, outside the folder.", "Nothing of it was fetched.")
        done.append(await fetch(link, f"{remote}/{name}", place, _Progress(name)))
    return done


class _Progress:
    """One line on a terminal, rewritten as bytes arrive; nothing without one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.shows = sys.stderr.isatty()

    def __call__(self, done: int, total: int) -> None:
        if self.shows:
            text = f"{self.name}  {shown.percent(done, total)} of {shown.si_bytes(total)}"
            print(f"\r{text:<78}", end="\n" if done >= total else "", file=sys.stderr, flush=True)


def _tell(args: argparse.Namespace, files: list[Transferred], said: str) -> None:
    if args.json:
        rows = [{"path": file.path, "size": file.size, "sha256": file.sha256} for file in files]
        print(json.dumps({"files": rows}, indent=2))
    else:
        print(said)
