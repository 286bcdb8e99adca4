"""Packed shards of hidden states: the writer that extract uses and the memory-mapped store that train reads.

May import torch, pipeline.rundir and pipeline.stage. The format is in `layout`.
"""

from pipeline.shards.index import ShardError, ShardIndex, ShardInfo, read_index
from pipeline.shards.layout import DTYPES, HEAD, INDEX, VERIFIER_CONFIG, Sequence, shard_name, shard_number, token_bytes
from pipeline.shards.store import ShardStore
from pipeline.shards.writer import ShardWriter

__all__ = [
    "DTYPES", "HEAD", "INDEX", "VERIFIER_CONFIG", "Sequence", "ShardError", "ShardIndex", "ShardInfo", "ShardStore",
    "ShardWriter", "read_index", "shard_name", "shard_number", "token_bytes",
]  # fmt: skip
