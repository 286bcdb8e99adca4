"""What the extract stage does: batches through the verifier into shards, resumable by shard, within the volume.

May import torch, pipeline.rundir, stage, config, geometry, shards and its own folder.
"""

from __future__ import annotations

import hashlib
from collections import deque
from functools import partial
from pathlib import Path

from pipeline.config import ExtractParams
from pipeline.extract.batch import compute
from pipeline.extract.capture import Capture, pick_compute, pick_device, use_threads
from pipeline.extract.disk import Disk
from pipeline.extract.frozen import write_head, write_verifier_config
from pipeline.extract.sequences import Entry, SequenceFile, plan_batches, take_shard
from pipeline.geometry import Geometry, GeometryError, read_geometry
from pipeline.hostpath import host_path
from pipeline.rundir import JsonLines, read_jsonl
from pipeline.rundir.atomic import TEMPORARY
from pipeline.shards import (
    DTYPES,
    HEAD,
    Sequence,
    ShardIndex,
    ShardInfo,
    ShardStore,
    ShardWriter,
    read_index,
    shard_name,
    shard_number,
    token_bytes,
)
from pipeline.stage import StageError, StageRun, Stopped

REJECTS = "rejects.jsonl"
_HOPELESS = 20
"""Sequences without finite states after which the stage gives up, when they are half of all."""


def extract(stage: StageRun) -> None:
    """The body of the stage. Raises StageError, and Stopped after the open shard was closed."""
    params = stage.params
    assert isinstance(params, ExtractParams)
    stage.progress(0, None, "tokens", phase="loading")
    folder = host_path(stage.plan.verifier.path, stage.run.path)
    geometry = verifier_geometry(folder)
    source = SequenceFile(stage.inputs["generate"].path, length=params.length, vocab_size=geometry.vocab_size)
    try:
        _Extraction(stage, params, folder, geometry, source).run()
    finally:
        source.close()


def verifier_geometry(folder: Path) -> Geometry:
    """Sizes of the verifier in `folder`. Raises StageError."""
    try:
        geometry = read_geometry(folder)
    except GeometryError as error:
        raise StageError(error.message.rstrip("."), f"{error.remedy.rstrip('.')} (verifier.path)") from None
    if len(set(geometry.aux_layers)) < 3 or min(geometry.aux_layers) < 2:
        raise StageError(
            f"The verifier in {folder} has {geometry.num_hidden_layers} layers, too few for three aux states",
            "EAGLE-3 needs a verifier of at least 7 layers",
        )
    return geometry


def _append(writer: ShardWriter, sequences: list[Sequence]) -> list[Sequence]:
    for sequence in sequences:
        writer.append(sequence)
    return sequences


class _Extraction:
    def __init__(
        self, stage: StageRun, params: ExtractParams, folder: Path, geometry: Geometry, source: SequenceFile
    ) -> None:
        self._stage, self._params, self._folder, self._geometry, self._source = stage, params, folder, geometry, source
        self._out = stage.output
        self._dtype = DTYPES[params.dtype]
        self._token_bytes = token_bytes(geometry.hidden_size, self._dtype)
        self._index = self._open_index()
        self._rejected = {str(row["id"]) for row in read_jsonl(self._out / REJECTS)[0]}
        self._total = sum(entry.length for entry in source.entries)
        self._tokens = self._index.tokens
        self._sequences = self._index.sequences
        # an empty shard leaves a gap, so the number follows from the last name
        self._number = shard_number(self._index.shards[-1].file) + 1 if self._index.shards else 0
        self._disk = Disk()
        self._writers: list[ShardWriter] = []

    def _open_index(self) -> ShardIndex:
        """The index to go on with; what isn't in it was being written when an earlier attempt ended."""
        wanted = ShardIndex(
            self._geometry.hidden_size,
            self._geometry.aux_layers,
            self._geometry.vocab_size,
            self._params.dtype,
            self._params.length,
        )
        found = read_index(self._out)
        if found is not None and not found.begun_alike(wanted):
            raise StageError(
                f"{self._out} was begun for another verifier or length",
                "`eagledeck restart RUN extract` opens a new output",
            )
        index = found or wanted
        listed = {shard.file for shard in index.shards}
        for path in self._out.iterdir():
            unlisted = path.name.startswith("shard-") and path.name not in listed
            if unlisted or path.name.endswith(".part") or TEMPORARY in path.name:
                path.unlink()
        return index

    def run(self) -> None:
        done = set(ShardStore(self._out).ids()) if self._index.shards else set()
        entries = [one for one in self._source.entries if one.id not in done and one.id not in self._rejected]
        if not self._source.entries:
            raise StageError(
                f"None of the {len(self._source.unsupervised)} samples has a generated token within "
                f"{self._params.length} tokens",
                "Raise extract.length, or generate from shorter prompts",
            )
        if self._source.unsupervised:
            self._stage.event(
                "reject",
                f"{len(self._source.unsupervised)} samples left out: no generated token within {self._params.length}",
            )
        if entries or not (self._out / HEAD).exists():
            self._capture_all(entries)
        self._finish()

    def _capture_all(self, entries: list[Entry]) -> None:
        threads = use_threads(self._params.threads)
        device = pick_device(self._params.device)
        precision = pick_compute(self._params.compute, device)
        capture = Capture(self._folder, self._geometry, device=device, dtype=precision)
        self._stage.log(
            f"{capture.name} on {device} in {str(precision).removeprefix('torch.')}, {threads} CPU threads; "
            f"{len(entries)} sequences to do, {self._sequences} done"
        )
        if not (self._out / HEAD).exists():
            self._freeze(capture)
        pending = deque(plan_batches(entries, self._params.batch_tokens))
        try:
            while pending:
                self._write_shard(pending, capture)
                if self._stage.stopping():
                    self._disk.drain()
                    raise Stopped
            self._disk.drain()
        except StageError:
            # no room, say: the shards that were handed over are whole, and a resume goes on behind them
            self._disk.drain()
            raise
        finally:
            self._disk.close()
            for writer in self._writers:
                writer.abort()

    def _freeze(self, capture: Capture) -> None:
        self._stage.check_space(2 * capture.head.numel() * self._dtype.itemsize)
        write_verifier_config(self._out, self._folder)
        weights = {"embed": capture.embed, "head": capture.head, "norm": capture.norm}
        if not write_head(self._out, layer=capture.layers[-1], **weights):
            self._stage.event("warning", "the verifier's last layer is not of Llama's type: train can't start from it")

    def _write_shard(self, pending: deque[list[Entry]], capture: Capture) -> None:
        """Fills one shard from the front of `pending`; a stop or a checkpoint request closes it early."""
        batches = take_shard(pending, self._token_bytes, self._params.shard_bytes)
        entries = [entry for batch in batches for entry in batch]
        tokens = sum(entry.length for entry in entries)
        self._stage.check_space(tokens * self._token_bytes + self._disk.waiting_bytes)
        writer = ShardWriter(
            self._out / shard_name(self._number),
            ids=[entry.id for entry in entries],
            tokens=tokens,
            hidden_size=self._geometry.hidden_size,
            dtype=self._dtype,
        )
        self._writers.append(writer)
        self._number += 1
        while batches and not self._stage.stopping() and not self._stage.checkpoint_requested():
            batch = [self._source.read(entry) for entry in batches.popleft()]
            computed = compute(batch, capture, self._dtype)
            self._reject(computed.bad)
            self._disk.submit(partial(_append, writer, computed.sequences), self._count, self._size(computed.sequences))
            self._report()
        pending.extendleft(reversed(batches))
        self._disk.submit(writer.close, partial(self._closed, writer))

    def _size(self, sequences: list[Sequence]) -> int:
        return sum(len(one.input_ids) for one in sequences) * self._token_bytes

    def _count(self, sequences: list[Sequence]) -> None:
        self._sequences += len(sequences)
        self._tokens += sum(len(one.input_ids) for one in sequences)

    def _closed(self, writer: ShardWriter, info: ShardInfo | None) -> None:
        self._writers.remove(writer)
        if info is not None:
            self._index = self._index.with_shard(info)
            self._index.write(self._out)
            self._stage.event("saved", f"{info.file}: {info.sequences} sequences, {info.tokens} tokens")
        self._report()

    def _reject(self, bad: dict[str, str]) -> None:
        for name, tensors in bad.items():
            self._rejected.add(name)
            with JsonLines(self._out / REJECTS) as rejects:
                rejects.append({"id": name, "cause": "not_finite", "detail": f"NaN or infinity in {tensors}"})
            self._stage.event("reject", f"{name}: NaN or infinity in {tensors}")
        if len(self._rejected) >= _HOPELESS and len(self._rejected) >= self._sequences:
            raise StageError(
                f"{len(self._rejected)} sequences have hidden states that are not finite",
                "Set extract.compute to float32, and check the verifier's weights",
            )

    def _counts(self) -> dict[str, float]:
        return {
            "sequences": self._sequences,
            "sequences_total": len(self._source.entries),
            "tokens": self._tokens,
            "rejected": len(self._rejected) + len(self._source.unsupervised),
            "shards": len(self._index.shards),
        }

    def _report(self) -> None:
        written = self._tokens * self._token_bytes
        self._stage.progress(self._tokens, self._total, "tokens", counts=self._counts(), bytes=written)

    def _finish(self) -> None:
        if not self._index.shards:
            raise StageError("No sequence gave finite hidden states", "Set extract.compute to float32")
        digest = hashlib.sha256("".join(shard.sha256 for shard in self._index.shards).encode())
        counts = {**self._counts(), "tokens": self._index.tokens, "bytes": self._index.bytes}
        self._report()
        self._stage.finish(
            counts,
            digest.hexdigest(),
            hidden_size=self._geometry.hidden_size,
            aux_layers=list(self._geometry.aux_layers),
            bytes_per_token=self._token_bytes,
        )
