"""Where and in which precision to compute. Imports torch and pipeline.failure."""

from __future__ import annotations

import torch

from pipeline.failure import StageError


def pick_device(name: str) -> torch.device:
    """auto: the first GPU where there is one, else the CPU. Raises StageError for a device this host lacks."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and not (torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()):
        raise StageError(f"train.device is {name}, but torch sees no such GPU", "Use auto, or install torch for CUDA")
    return device


def compute_dtype(precision: str, device: torch.device) -> torch.dtype:
    """auto: bfloat16 products where the hardware multiplies them faster, float32 elsewhere. Weights stay fp32 masters.

    On CPUs that is AVX512-BF16 or AMX; without them bfloat16 products are emulated and slower.
    """
    if precision != "auto":
        return torch.bfloat16 if precision == "bfloat16" else torch.float32
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    able = torch.cpu.get_capabilities()
    fast = device.type == "cpu" and any(able.get(name) for name in ("avx512_bf16", "amx_bf16"))
    return torch.bfloat16 if fast else torch.float32
