"""What only both ends together can tell of a host: sessions at once, what survives a disconnect, the clocks.

Opens connections of its own, one after the other, and none beside them: a host that ends what is left at the last
logout is found out only so. Findings have the form of the host's own (remote.agent.doctor).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from remote.channel import Channel, ChannelEnded
from remote.connection import CHANNELS
from remote.errors import RemoteError
from remote.hostkeys import HostKeyStore
from remote.resolve import HostSpec
from remote.sanitize import clean_text
from remote.session import Pace, Session, open_session

STEP_S = 20.0
SETTLE_S = 2.0
"""Between the end of a connection and the next one: a session's end is carried out by then."""
SKEW_SHOWN_S, SKEW_BAD_S = 2.0, 300.0


@dataclass(frozen=True)
class Finding:
    """``ok``: True, False (something must be done), or None (worth knowing). ``remedy`` is "" when nothing helps."""

    name: str
    ok: bool | None
    message: str
    remedy: str = ""
    value: Any = None

    @property
    def state(self) -> str:
        return {True: "ok", False: "bad", None: "note"}[self.ok]

    @classmethod
    def of_wire(cls, row: Mapping[str, Any]) -> Finding:
        """One of the host's findings."""
        ok = row.get("ok")
        name, message, remedy = (str(row.get(key) or "") for key in ("name", "message", "remedy"))
        return cls(name, ok if isinstance(ok, bool) else None, message, remedy, row.get("value"))


def clock(skew_s: float | None) -> Finding:
    """``skew_s``: the host's wall clock less ours, in seconds."""
    if skew_s is None:
        return Finding("clock", None, "the host's clock could not be compared with ours")
    ahead = "ahead of" if skew_s > 0 else "behind"
    if abs(skew_s) <= SKEW_SHOWN_S:
        return Finding("clock", True, "the host's clock agrees with ours", "", skew_s)
    message = f"the host's clock is {abs(skew_s):,.0f} s {ahead} ours"
    if abs(skew_s) <= SKEW_BAD_S:
        remedy = "ages are shown by our clock, so nothing has to be done; NTP on both sides would mend it"
        return Finding("clock", None, message, remedy, skew_s)
    remedy = "set whichever is wrong: certificates are refused and downloads fail with a clock that far off"
    return Finding("clock", False, message, remedy, skew_s)


async def check_wire(spec: HostSpec, hostkeys: HostKeyStore) -> list[Finding]:
    """Sessions at once and survival after a disconnect; what keeps them from being told is a finding too."""
    found: list[Finding] = []
    try:
        session = await _open(spec, hostkeys)
        try:
            found.append(sessions(await _count_sessions(session)))
            pid = await _leave_behind(session)
        finally:
            await session.close()
        await asyncio.sleep(SETTLE_S)
        found.append(survival(await _ended(pid, spec, hostkeys)))
    except RemoteError as error:
        found.append(Finding("connection", False, f"the wire could not be checked: {error.message}", error.remedy))
    return found


async def _ended(pid: int, spec: HostSpec, hostkeys: HostKeyStore) -> bool:
    """Ends a process of ours from a new connection; False when it is gone by then, or was never to be seen."""
    session = await _open(spec, hostkeys)
    try:
        await _free(session)
        return (await session.connection.run(f"exec /bin/sh -c 'kill {pid}'", timeout_s=STEP_S)).status == 0
    finally:
        await session.close()


def sessions(allowed: int) -> Finding:
    """``allowed``: channels that were open at once, at most CHANNELS of them tried."""
    if allowed >= CHANNELS:
        return Finding("sessions", True, f"{CHANNELS} sessions at once on one connection, which is enough", "", allowed)
    remedy = f"set MaxSessions to {CHANNELS} or more (10 is usual) in the host's sshd_config and reload sshd"
    message = f"only {allowed} at once on one connection"
    if allowed == 1:
        return Finding("sessions", False, f"{message}: put and fetch have none beside the agent's", remedy, allowed)
    return Finding("sessions", None, f"{message}: logs, metrics and files wait for each other", remedy, allowed)


def survival(lived: bool) -> Finding:
    """Whether a detached process was still there after its connection had ended."""
    if lived:
        return Finding("survival", True, "what is detached outlives the connection", "", True)
    return Finding(
        "survival",
        False,
        "the host ends detached processes when the connection ends: stages would die with the laptop's",
        "set KillUserProcesses=no in its /etc/systemd/logind.conf (or `loginctl enable-linger`), or take away what "
        "cleans up after a login (a ForceCommand, PAM, the container's entry point)",
        False,
    )


async def _open(spec: HostSpec, hostkeys: HostKeyStore) -> Session:
    return await open_session(spec, hostkeys, None, Pace(), lambda: None)


async def _count_sessions(session: Session) -> int:
    """Channels open at once, the agent's included."""
    opened: list[Channel] = []
    try:
        while 1 + len(opened) < CHANNELS:
            opened.append(await session.connection.open_channel("exec /bin/sh -c 'read end'", STEP_S))
    except RemoteError as error:
        if error.code != "channels":
            raise
    finally:
        for channel in opened:
            await channel.close()
    return 1 + len(opened)


async def _free(session: Session) -> None:
    """Ends the agent, so that a host with a single session has one."""
    session.agent.channel.write_eof()
    with suppress(RemoteError, TimeoutError):
        await session.agent.channel.wait(STEP_S)
    await session.agent.channel.close()


async def _leave_behind(session: Session) -> int:
    """The pid of a process that detached itself as supervisors do. Raises RemoteError when there is none."""
    await _free(session)
    channel = await session.open_helper("linger")
    try:
        async with asyncio.timeout(STEP_S):
            word = json.loads(await channel.read_until(b"\n"))
        return int(word["pid"])
    except (TimeoutError, ChannelEnded, ValueError, KeyError, TypeError):
        said = clean_text(channel.stderr_tail.decode("utf-8", "replace").strip())
        raise RemoteError(f"a detached process could not be started there. {said}".strip(), "Try again.") from None
    finally:
        await channel.close()
