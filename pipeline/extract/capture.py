"""The verifier as a source of hidden states: loads it with transformers and captures what EAGLE-3 needs in one pass.

May import torch, transformers, pipeline.geometry, stage and extract.frozen.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.extract.frozen import compact
from pipeline.geometry import Geometry
from pipeline.stage import StageError

_UNSUPPORTED = ("final_logit_softcapping", "logits_scaling", "logit_scale")
_FAST_BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}


@dataclass(frozen=True)
class States:
    """Hidden states of a padded batch in the compute dtype: aux [B, L, 3, H], last [B, L, H] (after the final norm)."""

    aux: Tensor
    last: Tensor


class Capture:
    """A loaded verifier: `embed` and `head` [V, H], `norm` [H], and its decoder `layers`."""

    def __init__(self, folder: Path, geometry: Geometry, *, device: torch.device, dtype: torch.dtype) -> None:
        model = load_verifier(folder, dtype).to(device).eval()
        self.geometry = geometry
        self.device = device
        self.text = find_decoder(model, geometry.num_hidden_layers)
        self.layers = getattr(self.text, "layers")  # noqa: B009 - nn.Module's attributes are untyped
        self.name = type(model).__name__
        self.head: Tensor = compact(_head(model, geometry).detach())
        self.embed: Tensor = model.get_input_embeddings().weight
        self.norm: Tensor = getattr(self.text, "norm").weight  # noqa: B009
        self._seen: dict[int, Tensor] = {}
        for number in geometry.aux_layers:
            self.layers[number].register_forward_pre_hook(self._hook(number), with_kwargs=True)

    def _hook(self, number: int) -> Any:
        def keep(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._seen[number] = args[0] if args else kwargs["hidden_states"]

        return keep

    @torch.inference_mode()
    def states(self, input_ids: Tensor) -> States:
        """Runs input_ids [B, L], padded on the right.

        Attention is causal, so no real token sees the padding behind it and no mask is needed.
        """
        out = self.text(input_ids=input_ids.to(self.device), use_cache=False)
        aux = torch.stack([self._seen.pop(number) for number in self.geometry.aux_layers], dim=2)
        return States(aux, out.last_hidden_state)


def load_verifier(folder: Path, dtype: torch.dtype) -> Any:
    """The model in `folder`, text-only or multimodal. Raises StageError with what transformers says."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    try:
        try:
            return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
        except ValueError:
            # Multimodal configurations are not registered for causal language models.
            return transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype, local_files_only=True)
    except (OSError, ValueError, RuntimeError, KeyError, ImportError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise StageError(
            f"The verifier in {folder} can't be loaded: {first}",
            "Check that the folder is complete and that this host's transformers knows the model",
        ) from None


def find_decoder(model: nn.Module, layers: int) -> nn.Module:
    """The part of `model` that holds the token embedding, the decoder layers and the final norm."""
    for module in model.modules():
        found = getattr(module, "layers", None)
        if (
            isinstance(found, nn.ModuleList)
            and len(found) == layers
            and all(isinstance(getattr(module, name, None), nn.Module) for name in ("embed_tokens", "norm"))
        ):
            return module
    raise StageError(
        f"No decoder of {layers} layers with embed_tokens and norm was found in {type(model).__name__}",
        "This architecture is not supported by the transformers backend",
    )


def _head(model: Any, geometry: Geometry) -> Tensor:
    config = model.config.get_text_config()
    odd = [key for key in _UNSUPPORTED if getattr(config, key, None) not in (None, 1, 1.0)]
    head = model.get_output_embeddings()
    if odd or head is None or getattr(head, "bias", None) is not None:
        why = f"its configuration sets {odd[0]}" if odd else "its head is missing or has a bias"
        raise StageError(f"The logits of {type(model).__name__} are not a plain product: {why}", "It is not supported")
    weight: Tensor = head.weight
    if tuple(weight.shape) != (geometry.vocab_size, geometry.hidden_size):
        raise StageError(
            f"The head has shape {tuple(weight.shape)}, config.json says {(geometry.vocab_size, geometry.hidden_size)}",
            "Fetch the verifier again",
        )
    return weight


def pick_device(name: str) -> torch.device:
    """`auto` is the first GPU where there is one. Raises StageError for a device that this host lacks."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise StageError(f"extract.device is {name!r}", "Use auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise StageError(f"extract.device is {name!r}, but torch sees no GPU", "Use auto, or install torch for CUDA")
    return device


def pick_compute(name: str, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 on a GPU and on CPUs with bfloat16 instructions, where it is several times faster."""
    if name != "auto":
        return torch.bfloat16 if name == "bfloat16" else torch.float32
    if device.type == "cuda":
        return torch.bfloat16
    return torch.bfloat16 if _cpu_flags() & _FAST_BFLOAT16 else torch.float32


def _cpu_flags() -> set[str]:
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.partition(":")[0].strip() in ("flags", "Features"):
                return set(line.partition(":")[2].split())
    except OSError:
        pass
    return set()


def use_threads(threads: int) -> int:
    """Sets torch's threads, unless 0: torch then takes the cores (or OMP_NUM_THREADS). Gives their number."""
    if threads:
        torch.set_num_threads(threads)
    return torch.get_num_threads()
