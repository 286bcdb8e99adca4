"""A stage that writes its log as fast as it can: tails leave the agent as it was, and the log keeps its bound."""

from __future__ import annotations

from pathlib import Path

from remote.agent.stagelog import LogBound, last_line

FLOOD = """
import os
line = b"step 123456 loss 6.127 " + b"x" * 1000 + b"\\n"
print("up", flush=True)
for _ in range(10_000):
    os.write(1, line * 16)
import time
print("flooded", flush=True)
time.sleep(120)
"""


def resident(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def test_a_flood_of_log_fills_neither_memory_nor_volume(host, supervise, wait_for):
    stage = supervise(FLOOD)
    log, agent = stage.attempt.file("stage.log"), host.agent()
    wait_for(lambda: log.exists() and log.stat().st_size > 1 << 20)
    bound, before, offset = LogBound(log, limit=16 << 20), resident(agent.process.pid), 0
    for _ in range(300):
        found = agent.ask("tail", run="r1", stage="generate", offset=offset)
        offset = found["offset"] + len(found["data"]) * 3 // 4
        bound.check()
    assert resident(agent.process.pid) - before < 8 << 20
    wait_for(lambda: last_line(log) == "flooded")
    bound.check()
    assert log.stat().st_size > 160 * 1024 * 1000
    assert log.stat().st_blocks * 512 <= 16 << 20
    assert agent.ask("tail", run="r1", stage="generate", offset=0)["offset"] > 0
