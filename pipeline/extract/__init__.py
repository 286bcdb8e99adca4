"""The extract stage: the verifier's hidden states at every token of the samples, in packed shards.

Run as `python -m pipeline.extract --run DIR`.
May import torch, transformers, pipeline.rundir, config, stage, geometry and shards.
"""
