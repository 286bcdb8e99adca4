"""What processes cost: their share of memory (PSS) and processor time; and what a connection has carried."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def pss_mb(pids: Iterable[int]) -> float:
    """Proportional set size in MB (10^6 bytes): pages that are shared count by their share."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total / 1e6


def cpu_s(pids: Iterable[int]) -> float:
    """Processor seconds so far, user and system; those of children that have ended included, in ticks of a clock."""
    total = 0.0
    for pid in pids:
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            # clock_getcpuclockid(3): /proc counts in ticks of 10 ms, too coarse for what is nearly idle
            total += time.clock_gettime(~pid << 3 | 2) + (int(fields[13]) + int(fields[14])) / TICKS
    return total


def family(pid: int) -> list[int]:
    """A process and everything below it."""
    found, parents = [pid], {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):
                fields = Path(f"/proc/{entry.name}/stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


@dataclass(frozen=True)
class Carried:
    """``payload``: bytes of TCP, SSH's packets; ``wire``: with the headers of TCP, IPv4 and Ethernet. Both ways."""

    payload: int
    wire: int

    def __sub__(self, before: Carried) -> Carried:
        return Carried(self.payload - before.payload, self.wire - before.wire)


HEADERS = 14 + 20 + 32


def carried(address: str, port: int) -> Carried:
    """What this process's connections to ``address`` have carried so far (tcp_info, linux/tcp.h)."""
    payload = wire = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as end:
            if end.family is socket.AF_INET and end.getpeername() == (address, port):
                info = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 144)
                acked, received, segments_out, segments_in = struct.unpack_from("QQII", info, 120)
                payload += acked + received
                wire += acked + received + HEADERS * (segments_out + segments_in)
    return Carried(payload, wire)
