"""The bundled verifier: a tiny reasoning chat model that ships with the project, and everything it is made with.

`import pipeline.verifier` loads nothing but pathlib.
"""

from __future__ import annotations

from pathlib import Path


def bundled_path() -> Path:
    """The folder of the bundled verifier, as transformers, vLLM and SGLang load it."""
    return Path(__file__).resolve().parent / "model"
