"""The child process that talks to NVML: it may hang or crash, and takes nobody with it.

One empty line on stdin asks for a sample, one JSON line on stdout answers; end of input ends it. Calls libnvidia-ml
through ctypes (nvml.h), because the Python binding would cost megabytes for eight functions. Standard library only.

A field that a card doesn't support is null, never 0; `error` says what is wrong with a card that answers nothing.
"""

from __future__ import annotations

import ctypes
import json
import signal
import sys
from typing import Any

from remote.agent.kernel import die_with_parent, give_back_zeros

LIBRARY = "libnvidia-ml.so.1"
NO_GPU = "no GPU on this host"
_NOT_AVAILABLE_64 = 2**64 - 1

MEANING = {
    1: "the driver's library isn't initialised",
    3: "not supported by this card",
    4: "no permission",
    9: "the NVIDIA driver isn't loaded",
    12: "the driver's library is too old or incomplete",
    15: "the GPU is lost (fell off the bus); the host must be restarted",
    16: "the GPU needs a reset",
    18: "library and driver have different versions, as after a driver update: restart the container",
    999: "unknown error; if GPUs vanished in a running container, it must be created anew",
}
"""nvmlReturn_t, as it concerns a person."""


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _MemoryV2(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _ProcessInfo(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


MOST_PROCESSES = 512


class NvmlError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(MEANING.get(code, f"NVML error {code}"))
        self.code = code


class Nvml:
    """An initialised NVML. Raises OSError when the library is missing, NvmlError when it refuses."""

    def __init__(self, library: Any = None) -> None:
        self._library = library or ctypes.CDLL(LIBRARY)
        self.call("nvmlInit_v2")

    def call(self, name: str, *args: Any) -> None:
        function = getattr(self._library, name, None)
        code = 12 if function is None else int(function(*args))
        if code:
            raise NvmlError(code)

    def count(self) -> int:
        number = ctypes.c_uint()
        self.call("nvmlDeviceGetCount_v2", ctypes.byref(number))
        return number.value

    def row(self, index: int) -> dict[str, Any]:
        """One card: power in W, memory in bytes, temperature in °C, utilisation in percent."""
        row: dict[str, Any] = {"index": index, "name": "", "error": ""}
        row.update(dict.fromkeys(("power_w", "power_limit_w", "util_pct", "mem_used", "mem_total", "temp_c")))
        handle = ctypes.c_void_p()
        try:
            self.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        except NvmlError as error:
            row["error"] = str(error)
            return row
        name = ctypes.create_string_buffer(96)
        lost = ""
        try:
            self.call("nvmlDeviceGetName", handle, name, ctypes.c_uint(96))
            row["name"] = name.value.decode("utf-8", "replace")
        except NvmlError as error:
            lost = str(error)
        milliwatts = self._number("nvmlDeviceGetPowerUsage", handle)
        limit = self._number("nvmlDeviceGetEnforcedPowerLimit", handle)
        row["power_w"] = None if milliwatts is None else milliwatts / 1000
        row["power_limit_w"] = None if limit is None else limit / 1000
        row["temp_c"] = self._number("nvmlDeviceGetTemperature", handle, ctypes.c_uint(0))
        row["mem_used"], row["mem_total"] = self._memory(handle)
        use = _Utilization()
        try:
            self.call("nvmlDeviceGetUtilizationRates", handle, ctypes.byref(use))
            row["util_pct"] = use.gpu
        except NvmlError as error:
            if error.code in (15, 16, 999):
                lost = str(error)
        if all(row[key] is None for key in ("power_w", "util_pct", "mem_used", "temp_c")):
            row["error"] = lost or "the card answers nothing"
        return row

    def pids(self) -> set[int]:
        """Processes that hold memory of any card, as NVML numbers them; without those of cards that don't tell."""
        found: set[int] = set()
        for index in range(self.count()):
            handle, number = ctypes.c_void_p(), ctypes.c_uint(MOST_PROCESSES)
            box = (_ProcessInfo * MOST_PROCESSES)()
            try:
                self.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
                self.call("nvmlDeviceGetComputeRunningProcesses_v3", handle, ctypes.byref(number), box)
            except NvmlError:
                continue
            found.update(int(entry.pid) for entry in box[: number.value])
        return found

    def _number(self, name: str, handle: Any, *args: Any) -> int | None:
        number = ctypes.c_uint()
        try:
            self.call(name, handle, *args, ctypes.byref(number))
        except NvmlError:
            return None
        return number.value

    def _memory(self, handle: Any) -> tuple[int | None, int | None]:
        """(used, total). The second version leaves out what the driver reserves; the first counts it as used."""
        two = _MemoryV2(version=ctypes.sizeof(_MemoryV2) | 2 << 24)
        for name, box in (("nvmlDeviceGetMemoryInfo_v2", two), ("nvmlDeviceGetMemoryInfo", _Memory())):
            try:
                self.call(name, handle, ctypes.byref(box))
            except NvmlError:
                continue
            if box.total and box.total != _NOT_AVAILABLE_64:
                return (None if box.used == _NOT_AVAILABLE_64 else int(box.used)), int(box.total)
        return None, None


def sample(nvml: Nvml) -> dict[str, Any]:
    """{"gpus": [row, …], "note"}: note is "" when there are cards."""
    rows = [nvml.row(index) for index in range(nvml.count())]
    return {"gpus": rows, "note": "" if rows else NO_GPU}


def tell_pids() -> int:
    """Prints the processes that hold memory as one JSON list; status 1 where that can't be told."""
    die_with_parent(signal.SIGKILL)
    try:
        print(json.dumps(sorted(Nvml().pids())), flush=True)
    except (NvmlError, OSError):
        return 1
    return 0


def main() -> int:
    """Serves samples until the input ends. A host without the library gets one line and no process that stays."""
    die_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    nvml: Nvml | None = None
    for _ in sys.stdin:
        try:
            begun = nvml is None
            nvml = nvml or Nvml()
            answer = sample(nvml)
            if begun:
                give_back_zeros(LIBRARY.partition(".")[0])
        except NvmlError as error:
            nvml = None
            answer = {"gpus": [], "note": f"NVML: {error}"}
        except OSError:
            answer = {"gpus": [], "note": NO_GPU, "missing": True}
        print(json.dumps(answer), flush=True)
        if answer.get("missing"):
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(tell_pids() if sys.argv[1:] == ["pids"] else main())
