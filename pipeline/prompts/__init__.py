"""Prompt files: JSON lines with `prompt`, `messages` or ShareGPT `conversations`, and `tools` that answers may call.

Standard library only; imports nothing of ours.
"""

from pipeline.prompts.errors import PromptError
from pipeline.prompts.index import BadLine, PromptIndex, PromptReader, index_prompts
from pipeline.prompts.row import Message, Prompt, Tool, parse_line

__all__ = [
    "BadLine", "Message", "Prompt", "PromptError", "PromptIndex", "PromptReader", "Tool", "index_prompts", "parse_line",
]  # fmt: skip
