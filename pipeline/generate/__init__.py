"""The generate stage: the verifier's answers to prompts, from an OpenAI-compatible server, with its token ids.

Run as `python -m pipeline.generate --run DIR`. May import openai, jinja2, transformers (only to re-tokenise),
pipeline.rundir, config, stage, geometry and prompts; never torch.
"""
