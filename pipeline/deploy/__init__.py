"""Stage deploy: exports the drafter for SGLang and vLLM, checks the export, and measures it in an engine.

Run with `python -m pipeline.deploy --run DIR`. Imports pipeline.stage, pipeline.drafter and, only where it must, torch.
"""
