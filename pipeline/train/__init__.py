"""Stage train: an EAGLE-3 drafter from the hidden states of extract, by training-time test (TTT).

Run with `python -m pipeline.train --run DIR`. Imports torch, pipeline.drafter, pipeline.shards and the run's files.
"""
