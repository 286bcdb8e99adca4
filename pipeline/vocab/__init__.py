"""The vocab stage: which tokens the drafter can propose. `python -m pipeline.vocab --run DIR`."""
