"""The environment of a process that asks NVML and needs no CUDA. Imports the standard library only."""

from __future__ import annotations

import os


def without_cuda() -> dict[str, str]:
    """An environment in which NVML finds no libcuda, which it loads when it is there and needs for nothing asked here.

    It would bring 4 MB and a thread. The file of its name that is found first is empty, so that loading it fails, as in
    a container that has no CUDA.
    """
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "without_cuda")
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(filter(None, (folder, os.environ.get("LD_LIBRARY_PATH"))))}
