"""What a run costs on the volume, worked out before it starts: the arithmetic behind "25,000 samples won't fit".

Pure functions over a request; pipeline.forecast makes one of a run. Standard library only (Python >= 3.9); imports
pipeline.geometry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.geometry import AUX_STATES, Geometry, GeometryError

SIDE_BYTES = 13
"""Beside the hidden states a shard keeps, per token: input id 4, loss mask 1, teacher argmax 4, log-sum-exp 4."""
TEXT_BYTES = 26
"""What generate writes per token: text and ids as JSON in samples.jsonl, ids and mask again in tokenized.jsonl.
Measured on the bundled verifier (23) and on SmolLM2 (26); the larger is used."""
CHECKPOINT_BYTES = 12
"""Per trained parameter: fp32 weights and the two fp32 moments of AdamW."""
EXPORT_BYTES = 2
"""Per trained parameter of the exported drafter, in the verifier's 16 bits."""
RESERVE_SHARE = 0.02
"""The part of a volume that is left free where the plan names no reserve."""

_BASIS = {
    "measured": " (measured so far)",
    "expected": " (generate.expected_tokens)",
    "worst case": " (worst case: every sample fills the length)",
}


WRITERS = frozenset({"generate", "extract", "train", "deploy"})
"""The stages that write something worth counting."""


@dataclass(frozen=True)
class BudgetRequest:
    """What is to be worked out. Sizes in bytes; `length` 0 means that no token is cut off.

    `stages` are those whose output is still to be written, `written` what their outputs hold already, by stage.
    """

    geometry: Geometry
    samples: int
    mean_tokens: float
    capacity_bytes: int
    free_bytes: int
    reserve_bytes: int
    bytes_per_value: int = 2
    length: int = 0
    draft_vocab: int = 32_000
    checkpoints: int = 3
    basis: str = "given"
    stages: frozenset[str] = WRITERS
    written: Mapping[str, int] = field(default_factory=dict)

    @property
    def counts_samples(self) -> bool:
        """Whether what is still to be written depends on the number of samples."""
        return not self.stages.isdisjoint({"generate", "extract"})


@dataclass(frozen=True)
class BudgetItem:
    """One line of the arithmetic: what it is, its bytes, how they come about and which stage writes them."""

    name: str
    bytes: int
    how: str
    stage: str = ""


@dataclass(frozen=True)
class Budget:
    """The worked-out budget. It fits when need_bytes <= available_bytes.

    Need holds the whole outputs of the stages that still write, and the reserve; available holds what is free and
    `written_bytes`, what those outputs hold already (of each stage at most what it needs).
    """

    request: BudgetRequest
    bytes_per_token: int
    tokens: int
    items: tuple[BudgetItem, ...]
    need_bytes: int
    written_bytes: int
    available_bytes: int
    fits: bool
    largest_samples: int

    @property
    def hidden_bytes(self) -> int:
        return sum(item.bytes for item in self.items if item.name == HIDDEN)

    def to_json(self) -> dict[str, Any]:
        return {
            "bytes_per_token": self.bytes_per_token,
            "samples": self.request.samples,
            "mean_tokens": self.request.mean_tokens,
            "tokens": self.tokens,
            "basis": self.request.basis,
            "stages": sorted(self.request.stages),
            "items": [{"name": item.name, "bytes": item.bytes, "how": item.how} for item in self.items],
            "need_bytes": self.need_bytes,
            "written_bytes": self.written_bytes,
            "available_bytes": self.available_bytes,
            "capacity_bytes": self.request.capacity_bytes,
            "fits": self.fits,
            "largest_samples": self.largest_samples,
            "text": headline(self),
        }


HIDDEN = "hidden states"


def bytes_per_token(hidden_size: int, bytes_per_value: int = 2) -> int:
    """Hidden states of one token on disk: (3 aux + 1 last) x hidden size x bytes a value. Kimi-K2.5: 57,344."""
    return (AUX_STATES + 1) * hidden_size * bytes_per_value


def default_reserve(capacity_bytes: int) -> int:
    return int(capacity_bytes * RESERVE_SHARE)


def plan_bytes(request: BudgetRequest) -> Budget:
    """The budget of a request. Raises GeometryError for counts that mean nothing."""
    sampled = request.samples >= 1 and request.mean_tokens > 0
    if request.capacity_bytes < 1 or (request.counts_samples and not sampled):
        raise GeometryError(
            "A budget needs at least 1 sample, more than 0 tokens a sample and a volume of more than 0 bytes.",
            "Check --samples, --mean-tokens and --volume.",
        )
    per_token = bytes_per_token(request.geometry.hidden_size, request.bytes_per_value)
    items = tuple(item for item in _items(request, per_token) if item.stage in request.stages)
    written = sum(
        min(size, sum(item.bytes for item in items if item.stage == stage)) for stage, size in request.written.items()
    )
    if sum(item.bytes for item in items) > written:
        items += (BudgetItem("reserve", request.reserve_bytes, "left free on the volume"),)
    need, available = sum(item.bytes for item in items), request.free_bytes + written
    largest = max(0, int((available - _fixed(items)) // _per_sample(request, per_token))) if _sampled(items) else 0
    tokens = round(request.samples * request.mean_tokens)
    return Budget(request, per_token, tokens, items, need, written, available, need <= available, largest)


def _items(request: BudgetRequest, per_token: int) -> tuple[BudgetItem, ...]:
    """Every output of the five stages, whether it is still to be written or not."""
    kept, tokens = round(request.samples * _kept_mean(request)), round(request.samples * request.mean_tokens)
    parameters = request.geometry.drafter_parameters(min(request.draft_vocab, request.geometry.vocab_size))
    millions = f"{parameters / 1e6:,.1f} M parameters"
    cut = f", {tokens - kept:,} tokens beyond length {request.length:,} not stored" if kept < tokens else ""
    values = f"{AUX_STATES} aux + 1 last) x {request.geometry.hidden_size:,} x {request.bytes_per_value}"
    count = request.checkpoints
    return (
        BudgetItem(HIDDEN, kept * per_token, f"{kept:,} tokens x {per_token:,} bytes [({values}]{cut}", "extract"),
        BudgetItem("ids, masks, teacher", kept * SIDE_BYTES, f"{SIDE_BYTES} bytes a token", "extract"),
        BudgetItem("samples as text", tokens * TEXT_BYTES, f"about {TEXT_BYTES} bytes a token", "generate"),
        BudgetItem(
            "checkpoints", parameters * CHECKPOINT_BYTES * count, f"{count} x {millions} x {CHECKPOINT_BYTES} bytes",
            "train",
        ),
        BudgetItem("export", parameters * EXPORT_BYTES, f"{millions} x {EXPORT_BYTES} bytes", "deploy"),
    )  # fmt: skip


def _kept_mean(request: BudgetRequest) -> float:
    return min(request.mean_tokens, request.length) if request.length else request.mean_tokens


def _sampled(items: tuple[BudgetItem, ...]) -> bool:
    return any(item.stage in ("generate", "extract") for item in items)


def _fixed(items: tuple[BudgetItem, ...]) -> int:
    """Bytes that don't depend on the number of samples."""
    return sum(item.bytes for item in items if item.stage not in ("generate", "extract"))


def _per_sample(request: BudgetRequest, per_token: int) -> float:
    states = _kept_mean(request) * (per_token + SIDE_BYTES) if "extract" in request.stages else 0.0
    return states + (request.mean_tokens * TEXT_BYTES if "generate" in request.stages else 0.0)


def size_text(count: float) -> str:
    """Bytes in decimal and binary units, since volumes are sold in one and counted in the other: 2.29 TB (2.09 TiB)."""
    for power, decimal, binary in ((4, "TB", "TiB"), (3, "GB", "GiB"), (2, "MB", "MiB")):
        if abs(count) >= 1000**power:
            return f"{count / 1000**power:.2f} {decimal} ({count / 1024**power:.2f} {binary})"
    return f"{count:,.0f} bytes"


def headline(budget: Budget) -> str:
    """One sentence: what is still to be written, fits or not, with the numbers."""
    request = budget.request
    if request.counts_samples:
        size = size_text(budget.hidden_bytes) + " of hidden states"
        if "extract" not in request.stages:
            size = size_text(budget.tokens * TEXT_BYTES) + " of text"
        what = f"{request.samples:,} samples x {request.mean_tokens:,.0f} tokens = {size}"
    else:
        parts = [f"{item.name} {size_text(item.bytes)}" for item in budget.items if item.stage]
        if not parts:
            return f"everything is written; {size_text(request.free_bytes)} free"
        done = f", {size_text(budget.written_bytes)} of it there already" if budget.written_bytes else ""
        what = f"{' and '.join(parts)} to be written{done}"
    if budget.fits:
        return f"{what}: fits, {size_text(budget.available_bytes - budget.need_bytes)} to spare"
    most = f"; at most {budget.largest_samples:,} samples fit" if request.counts_samples else ""
    return f"{what}: does not fit, {size_text(budget.need_bytes - budget.available_bytes)} short{most}"


def explain(budget: Budget) -> list[str]:
    """The arithmetic line by line, then the verdict and what can be done about it."""
    request = budget.request
    lines = []
    if request.counts_samples:
        lines.append(
            f"{request.samples:,} samples x {request.mean_tokens:,.0f} tokens a sample = {budget.tokens:,} tokens"
            + _BASIS.get(request.basis, "")
        )
    if "extract" in request.stages:
        lines.append(f"{budget.bytes_per_token:,} bytes of hidden states a token")
    rows = [(item.name, item.bytes, item.how) for item in budget.items]
    rows.append(("needed", budget.need_bytes, ""))
    if budget.written_bytes:
        rows.append(("written", budget.written_bytes, "of these outputs already"))
    rows.append(("free", request.free_bytes, f"of {size_text(request.capacity_bytes)}"))
    width = max(len(name) for name, _, _ in rows)
    lines += [f"  {name:<{width}}  {size_text(size):>22}   {how}".rstrip() for name, size, how in rows]
    if not any(item.stage for item in budget.items):
        return ["Everything that the run writes is there.", *lines[-1:], "Nothing more is needed."]
    if budget.fits:
        spare = size_text(budget.available_bytes - budget.need_bytes)
        upto = f"; up to {budget.largest_samples:,} samples" if request.counts_samples else ""
        return [*lines, f"Fits: {spare} to spare{upto}."]
    lines.append(f"Does not fit: {size_text(budget.need_bytes - budget.available_bytes)} short.")
    return [*lines, "Options: " + "; or ".join(_options(budget)) + "."]


def _options(budget: Budget) -> list[str]:
    request, options = budget.request, []
    if budget.largest_samples:
        options.append(f"at most {budget.largest_samples:,} samples (generate.max_samples)")
    if "extract" in request.stages:
        text = TEXT_BYTES if "generate" in request.stages else 0
        room = budget.available_bytes - _fixed(budget.items)
        longest = int(room // (request.samples * (budget.bytes_per_token + SIDE_BYTES + text))) if room > 0 else 0
        if longest >= 64:
            options.append(f"all {request.samples:,} cut at {longest:,} tokens (extract.length)")
    elif "train" in request.stages and request.checkpoints > 2:
        options.append("fewer checkpoints (train.keep_checkpoints)")
    return [*options, "a larger volume" if request.counts_samples else "free space there"]
