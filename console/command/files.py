"""`eagledeck put` and `fetch`: prompts up, drafters home. Resumable, hashed; repeated, they go on where they were."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from console import format as shown
from console.command.refusal import Refusal
from console.command.session import connected, find_where, run_async

if TYPE_CHECKING:
    from remote.link import Link
    from remote.transfer import Transferred

UPLOADS = "files"
"""Where `put` puts things under the host's root unless it is told otherwise."""
DRAFTER = "deploy/current/drafter-eagle3"


def put(args: argparse.Namespace) -> int:
    target = find_where(args)
    local = Path(args.local)
    remote = args.remote or f"{UPLOADS}/{local.name}"
    if remote.endswith("/"):
        remote += local.name
    if args.key and not target.run:
        raise Refusal(f"--as {args.key} changes a plan, and {args.where} is a host.", "Name a run.", 2)

    async def work() -> Transferred:
        from remote.transfer import put

        async with connected(target.state, target.host, args.accept_host_key) as link:
            done = await put(link, local, remote, _Progress(local.name))
            if args.key:
                await link.request("set", run=target.run, changes={args.key: done.path}, note=f"put {local.name}")
            return done

    done = run_async(work())
    _tell(args, [done], f"on {target.host.name}")
    return 0


def fetch(args: argparse.Namespace) -> int:
    target = find_where(args)
    if args.remote is None and not target.run:
        raise Refusal(f"{args.where} is a host.", "Name a run, or what to fetch: `eagledeck fetch HOST PATH`", 2)
    remote = args.remote or f"{target.run}/{DRAFTER}"

    async def work() -> list[Transferred]:
        async with connected(target.state, target.host, args.accept_host_key) as link:
            return await _fetch_all(link, remote, Path(args.local))

    _tell(args, run_async(work()), "here")
    return 0


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
    folder.mkdir(parents=True, exist_ok=True)
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


def _tell(args: argparse.Namespace, files: list[Transferred], where: str) -> None:
    if args.json:
        rows = [{"path": file.path, "size": file.size, "sha256": file.sha256} for file in files]
        print(json.dumps({"files": rows}, indent=2))
        return
    for file in files:
        print(f"{file.path}  {shown.si_bytes(file.size)}  {where}")
