"""GPU rows for whoever samples the host: a watched NVML child, `nvidia-smi` where NVML's library is missing.

Imports remote.agent.nvml for its words only. The child is asked once a sample and killed when it doesn't answer; while
a killed one can't die (NVML can hang in the kernel) no second one is started.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
from typing import Any

from remote.agent.cuda import without_cuda
from remote.agent.nvml import NO_GPU
from remote.agent.paths import CODE

ANSWER_S = 5.0
AGAIN_S = 60.0
FIELDS = "index,name,power.draw,enforced.power.limit,utilization.gpu,memory.used,memory.total,temperature.gpu"


class GpuReader:
    """``read()`` gives {"gpus": [row, …], "note": str}; it may take ANSWER_S and never raises."""

    CHILD = (sys.executable, "-S", "-E", "-B", "-u", "-m", "remote.agent.nvml")

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._missing = False
        self._stuck = False
        self._next_try = 0.0
        self._last: dict[str, Any] = {"gpus": [], "note": NO_GPU}
        self._known: list[dict[str, Any]] = []

    def read(self) -> dict[str, Any]:
        if self._missing:
            return self._from_smi()
        now = time.monotonic()
        if self._child is not None and self._child.poll() is not None:
            self._drop()
            self._next_try = now + AGAIN_S
            self._last = self._blank("the NVML child crashed; it is started again in a minute")
        if self._stuck:
            return self._last
        if self._child is None:
            if now < self._next_try:
                return self._last
            self._start()
        answer = self._ask()
        if answer is None:
            self._kill()
            self._next_try = time.monotonic() + AGAIN_S
            self._last = self._blank("NVML doesn't answer; it is asked again in a minute")
            return self._last
        if answer.get("missing"):
            self._drop()
            self._missing = True
            return self._from_smi()
        self._last = answer
        self._known = answer["gpus"] or self._known
        return answer

    def close(self) -> None:
        if self._child is not None:
            self._kill()

    def _start(self) -> None:
        self._child = subprocess.Popen(
            self.CHILD,
            cwd=CODE,
            env=without_cuda(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def _ask(self) -> dict[str, Any] | None:
        child = self._child
        assert child is not None and child.stdin is not None and child.stdout is not None
        end = time.monotonic() + ANSWER_S
        held = b""
        try:
            os.write(child.stdin.fileno(), b"\n")
            while not held.endswith(b"\n"):
                left = end - time.monotonic()
                if left <= 0 or not select.select([child.stdout], [], [], left)[0]:
                    return None
                piece = os.read(child.stdout.fileno(), 65536)
                if not piece:
                    return None
                held += piece
            answer: dict[str, Any] = json.loads(held.splitlines()[-1])
            return answer
        except (OSError, ValueError):
            return None

    def _kill(self) -> None:
        """A child that can't die is kept as the one that is stuck: read() sees it end."""
        child = self._child
        assert child is not None
        child.kill()
        try:
            child.wait(1.0)
        except subprocess.TimeoutExpired:
            self._stuck = True
            return
        self._drop()

    def _drop(self) -> None:
        if self._child is not None:
            for pipe in (self._child.stdin, self._child.stdout):
                if pipe is not None:
                    pipe.close()
        self._child = None
        self._stuck = False

    def _blank(self, why: str) -> dict[str, Any]:
        """The rows as they were known, without numbers: a row that is unknown stays on screen."""
        keep = ("index", "name", "mem_total", "power_limit_w")
        rows = [{**dict.fromkeys(row), **{key: row[key] for key in keep}, "error": why} for row in self._known]
        return {"gpus": rows, "note": why}

    def _from_smi(self) -> dict[str, Any]:
        now = time.monotonic()
        if now < self._next_try:
            return self._last
        program = shutil.which("nvidia-smi")
        if program is None:
            self._last = {"gpus": [], "note": NO_GPU}
            self._next_try = now + AGAIN_S
            return self._last
        self._next_try = now + 5.0
        try:
            shown = subprocess.run(
                [program, f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits"],
                capture_output=True,
                timeout=ANSWER_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            self._next_try = now + AGAIN_S
            self._last = self._blank("nvidia-smi doesn't answer")
            return self._last
        rows = smi_rows(shown.stdout.decode("utf-8", "replace")) if shown.returncode == 0 else []
        first = (shown.stdout + shown.stderr).decode("utf-8", "replace").strip().splitlines()
        self._last = {"gpus": rows, "note": "" if rows else (first[0][:200] if first else NO_GPU)}
        self._known = rows or self._known
        return self._last


def smi_rows(text: str) -> list[dict[str, Any]]:
    """Rows from `nvidia-smi --query-gpu=FIELDS --format=csv,noheader,nounits`; "[N/A]" becomes None, MiB bytes."""
    rows = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 8 or not cells[0].isdigit():
            continue
        power, limit, use, used, total, heat = (_number(cell) for cell in cells[2:])
        rows.append(
            {
                "index": int(cells[0]),
                "name": cells[1],
                "error": "",
                "power_w": power,
                "power_limit_w": limit,
                "util_pct": use,
                "mem_used": None if used is None else int(used * 2**20),
                "mem_total": None if total is None else int(total * 2**20),
                "temp_c": heat,
            }
        )
    return rows


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None
