"""The host's section of a push: GPUs, volume, processor and memory, read together. Imports the readers beside it."""

from __future__ import annotations

import time
from typing import Any

from pipeline.volume import Volume
from remote.agent.disk import DiskReader
from remote.agent.gpus import GpuReader
from remote.agent.load import LoadReader


class HostReader:
    """``read()`` gives {"gpus", "gpu_note", "disk", "cpu_pct", "cpus", "mem_used", "mem_total", "load", "wall"}."""

    def __init__(self, volume: Volume) -> None:
        self.gpus, self.disk, self.load = GpuReader(), DiskReader(volume), LoadReader()

    def read(self) -> dict[str, Any]:
        """Takes a few seconds when a driver or a mount hangs; never raises."""
        gpus = self.gpus.read()
        return {
            "gpus": gpus["gpus"],
            "gpu_note": gpus["note"],
            "disk": self.disk.read(),
            **self.load.read(),
            "wall": round(time.time(), 3),
        }

    def watch(self, volume: Volume) -> None:
        """Another volume from now on; the fill rate starts anew."""
        if volume != self.disk.volume:
            self.disk = DiskReader(volume)

    def close(self) -> None:
        self.gpus.close()
