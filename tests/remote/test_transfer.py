"""put and fetch: whole, hashed, resumed after a loss and after the process that did it; refusals in words."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import random
import resource
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import Plan
from pipeline.rundir import RunDir
from remote import transfer as module
from remote.errors import AuthenticationError, NotConnected, RemoteError
from remote.link import Kind, Link, Pace
from remote.transfer import Transferred, fetch, put

QUICK = Pace(keepalive=0.5, ping=0.2, stale=1, silence=2, backoff=0.05, backoff_cap=0.2)
SIZE = 3_000_000
pytestmark = pytest.mark.usefixtures("shared_code")
EMBEDDED = pytest.mark.parametrize("host", ["embedded"], indirect=True)


@asynccontextmanager
async def linked(target: Any, port: int = 0) -> AsyncIterator[Link]:
    spec = target.through(port) if port else target.spec
    async with Link(spec, target.hostkeys, pace=QUICK) as link:
        yield link


def data(size: int = SIZE) -> bytes:
    return random.Random(size).randbytes(size)


@pytest.fixture
def local(tmp_path: Path) -> Path:
    path = tmp_path / "local.bin"
    path.write_bytes(data())
    return path


def parts(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.endswith(".part"))


async def test_a_file_goes_up_and_comes_home_the_same(host: Any, local: Path, tmp_path: Path) -> None:
    up: list[tuple[int, int]] = []
    down: list[tuple[int, int]] = []
    async with linked(host) as link:
        sent = await put(link, local, "prompts/up.bin", lambda *now: up.append(now))
        got = await fetch(link, "prompts/up.bin", tmp_path / "home" / "down.bin", lambda *now: down.append(now))
    digest = hashlib.sha256(data()).hexdigest()
    assert sent == Transferred(str(host.root / "prompts" / "up.bin"), SIZE, digest)
    assert got == Transferred(str(tmp_path / "home" / "down.bin"), SIZE, digest)
    assert (tmp_path / "home" / "down.bin").read_bytes() == data()
    for seen in (up, down):
        assert seen == sorted(seen) and seen[-1] == (SIZE, SIZE) and len(seen) > 5
    assert parts(host.root / "prompts") == parts(tmp_path / "home") == []


@EMBEDDED
async def test_sizes_at_the_edges_and_names_that_need_care(host: Any, tmp_path: Path) -> None:
    source, target = tmp_path / "s", tmp_path / "t"
    async with linked(host) as link:
        for size, name in ((0, "empty"), (1, "one byte 'x' $y.bin"), (262_144, "-piece"), (262_145, "p\\iéce")):
            source.write_bytes(data(size))
            assert (await put(link, source, f"f/{name}")).size == size
            assert (await fetch(link, f"f/{name}", target)).size == size
            assert target.read_bytes() == data(size)


@EMBEDDED
async def test_a_folder_keeps_the_name_and_what_was_there_is_replaced(host: Any, local: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "up.bin").write_bytes(b"old")
    async with linked(host) as link:
        for _ in range(2):
            await put(link, local, "up.bin")
            assert (await fetch(link, "up.bin", tmp_path / "mine")).path == str(tmp_path / "mine" / "up.bin")
    assert (tmp_path / "mine" / "up.bin").read_bytes() == data()


class Cut:
    """A progress callback that breaks the connection once, when a share of the bytes is there."""

    def __init__(self, proxy: Any, share: float) -> None:
        self.proxy, self.share, self.seen = proxy, share, []  # type: ignore[var-annotated]

    def __call__(self, done: int, total: int) -> None:
        self.seen.append(done)
        if self.share and done >= self.share * total:
            self.share = 0
            self.proxy.reset_all()


async def test_a_loss_half_way_is_waited_out_and_gone_on_from(
    host: Any, proxy: Any, local: Path, tmp_path: Path
) -> None:
    async with linked(host, proxy.port) as link:
        up = Cut(proxy, 0.5)
        await put(link, local, "up.bin", up)
        down = Cut(proxy, 0.5)
        await fetch(link, "up.bin", tmp_path / "down.bin", down)
    assert (host.root / "up.bin").read_bytes() == (tmp_path / "down.bin").read_bytes() == data()
    assert proxy.accepted == 3
    for cut in (up, down):  # it began once, and ended once
        assert cut.seen.count(0) <= 1 and cut.seen.count(SIZE) == 1
    assert parts(tmp_path) == parts(host.root) == []


@EMBEDDED
async def test_a_put_that_was_ended_is_continued_by_the_next(host: Any, local: Path) -> None:
    async with linked(host) as link:
        await link.wait_for(Kind.LIVE)
        putting: asyncio.Task[Any]

        def stop_half_way(done: int, total: int) -> None:
            if done > total / 2:
                putting.cancel()

        putting = asyncio.create_task(put(link, local, "up.bin", stop_half_way))
        with pytest.raises(asyncio.CancelledError):
            await putting
        assert not (host.root / "up.bin").exists()
        starts: list[int] = []
        await put(link, local, "up.bin", lambda done, total: starts.append(done))
    assert starts[0] > 0
    assert (host.root / "up.bin").read_bytes() == data()


@EMBEDDED
async def test_an_upload_that_still_holds_the_file_is_waited_for_after_a_loss(
    host: Any, proxy: Any, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BUSY_S", 0.2)
    async with linked(host, proxy.port) as link:

        def swallow(done: int, total: int) -> None:
            if proxy.accepted == 1 and done > total / 3:
                proxy.mode = "swallow"  # the host is not told: its end of this upload lives on

        link.on_state(lambda state: setattr(proxy, "mode", "pass") if state.kind == Kind.LOST else None)
        putting = asyncio.create_task(put(link, local, "up.bin", swallow))
        while proxy.accepted < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        with pytest.raises(RemoteError) as caught:
            async with linked(host) as other:
                await put(other, local, "up.bin")
        assert caught.value.code == "busy"
        proxy.end_old()
        assert (await putting).size == SIZE
    assert (host.root / "up.bin").read_bytes() == data()


@EMBEDDED
async def test_a_fetch_that_was_ended_is_continued_by_the_next(host: Any, tmp_path: Path) -> None:
    (host.root / "big.bin").write_bytes(data())
    (tmp_path / ".down.bin.part").write_bytes(data()[: SIZE // 2])
    seen: list[int] = []
    async with linked(host) as link:
        await fetch(link, "big.bin", tmp_path / "down.bin", lambda done, total: seen.append(done))
    assert seen[0] > SIZE // 2
    assert (tmp_path / "down.bin").read_bytes() == data()


@EMBEDDED
@pytest.mark.parametrize("stale", [b"another version" * 1000, data(SIZE + 10)], ids=["other bytes", "longer"])
async def test_what_came_of_another_version_is_not_mixed_in(host: Any, tmp_path: Path, stale: bytes) -> None:
    (host.root / "big.bin").write_bytes(data())
    (tmp_path / ".down.bin.part").write_bytes(stale)
    async with linked(host) as link:
        await fetch(link, "big.bin", tmp_path / "down.bin")
    assert (tmp_path / "down.bin").read_bytes() == data()
    assert parts(tmp_path) == []


@EMBEDDED
async def test_a_file_that_is_being_written_is_not_taken(host: Any, tmp_path: Path) -> None:
    grown = host.root / "grown.bin"
    grown.write_bytes(data())

    def grow(done: int, total: int) -> None:
        with grown.open("ab") as file:
            file.write(b"more")

    async with linked(host) as link:
        with pytest.raises(RemoteError, match="being written") as caught:
            await fetch(link, "grown.bin", tmp_path / "down.bin", grow)
    assert caught.value.code == "busy"
    assert not (tmp_path / "down.bin").exists() and parts(tmp_path) == []


@EMBEDDED
async def test_nothing_comes_that_was_not_asked_for(host: Any) -> None:
    """What the host sends unasked fills the pipe of a slow link."""
    (host.root / "big.bin").write_bytes(data())
    async with linked(host) as link:
        await link.wait_for(Kind.LIVE)
        channel = await link.session.open_helper("send")
        await channel.write(b'{"path":"big.bin","offset":10}\n')
        assert json.loads(await channel.read_until(b"\n"))["offset"] == 10
        await channel.write(b'{"take":400}\n{"take":0}\n{"take":600}\n')
        channel.write_eof()
        came = b""
        while piece := await channel.read():
            came += piece
        await channel.close()
    assert came[:1000] == data()[10:1010]
    assert "input ended" in json.loads(came[1000:])["error"]["message"]


@EMBEDDED
async def test_the_host_refuses_in_words(host: Any, local: Path, tmp_path: Path) -> None:
    (host.root / "folder").mkdir()
    async with linked(host) as link:
        for path in ("../out.bin", "/etc/out.bin", "", "folder", "code/x"):
            with pytest.raises(RemoteError) as caught:
                await put(link, local, path)
            assert caught.value.code in ("refused", "bad-request") and caught.value.message
        with pytest.raises(RemoteError) as caught:
            await fetch(link, "no-such-file", tmp_path / "x")
        assert caught.value.code == "not-found" and "no-such-file" in caught.value.message
        with pytest.raises(RemoteError):
            await fetch(link, "/etc/hostname", tmp_path / "x")
    assert not (tmp_path / "x").exists()
    assert not (host.root.parent / "out.bin").exists()


OWN = (
    "locks.json",
    "telemetry/000001.jsonl",
    "services/vllm/keeper.json",
    "one/run.json",
    "one/kept.json",
    "one/plan/0002.json",
    "one/plan",
    "one/conductor/state.json",
    "one/generate/lock",
    "one/generate/out/0001/samples.jsonl",
    "one/train/attempts/0001/control/stop",
    "one/train/new/deep.bin",
    ".prompts.tmp-1-2",
)


@EMBEDDED
async def test_what_eagledeck_writes_itself_is_nobodys_to_put(host: Any, local: Path) -> None:
    RunDir.create(host.root, "one", Plan())
    before = sorted((host.root / "one").rglob("*"))
    async with linked(host) as link:
        for path in OWN:
            with pytest.raises(RemoteError, match="belongs to Eagledeck itself") as caught:
                await put(link, local, path)
            assert "files/NAME" in caught.value.remedy
        assert sorted((host.root / "one").rglob("*")) == before
        for path in ("files/train/x.bin", "one/prompts.jsonl", "one/prompts/out/x", "files/uv.lock"):
            await put(link, local, path)
            assert (host.root / path).read_bytes() == data()


@EMBEDDED
async def test_two_fetches_of_one_file_dont_write_into_each_other(host: Any, tmp_path: Path) -> None:
    (host.root / "big.bin").write_bytes(data())
    async with linked(host) as link:
        with (tmp_path / ".x.part").open("ab") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            with pytest.raises(RemoteError, match="is being fetched by another command") as caught:
                await fetch(link, "big.bin", tmp_path / "x")
            assert caught.value.code == "local" and not (tmp_path / "x").exists()
        both = await asyncio.gather(*(fetch(link, "big.bin", tmp_path / "x") for _ in range(2)), return_exceptions=True)
    assert [type(one) for one in both if not isinstance(one, Transferred)] in ([], [RemoteError])
    assert (tmp_path / "x").read_bytes() == data()
    assert parts(tmp_path) == []


@EMBEDDED
async def test_trouble_on_this_side_is_told_as_such(host: Any, tmp_path: Path) -> None:
    (host.root / "big.bin").write_bytes(data())
    async with linked(host) as link:
        with pytest.raises(RemoteError, match="cannot be read") as caught:
            await put(link, tmp_path / "absent", "x")
        assert caught.value.code == "local"
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE // 2, limits[1]))
        try:
            with pytest.raises(RemoteError, match=r"cannot be written: File too large") as caught:
                await fetch(link, "big.bin", tmp_path / "full")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert caught.value.code == "local"
        # what came is kept, and enough to go on with
        await fetch(link, "big.bin", tmp_path / "full")
    assert (tmp_path / "full").read_bytes() == data()


async def test_a_blocked_link_ends_a_transfer_at_once(embedded: Any, local: Path, tmp_path: Path) -> None:
    spec = replace(embedded.spec, identity_files=(str(tmp_path / "absent"),))
    async with Link(spec, embedded.hostkeys, pace=QUICK) as link:
        with pytest.raises(AuthenticationError):
            await put(link, local, "x")
    with pytest.raises(NotConnected):
        await put(link, local, "x")


@EMBEDDED
async def test_what_is_fetched_is_an_ordinary_file(host: Any, tmp_path: Path) -> None:
    (host.root / "f").write_bytes(b"x")
    (host.root / "f").chmod(0o777)
    async with linked(host) as link:
        await fetch(link, "f", tmp_path / "f")
    assert not stat.S_IMODE((tmp_path / "f").stat().st_mode) & 0o111
