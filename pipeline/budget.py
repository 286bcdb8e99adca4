"""What a run costs on the volume, worked out before it starts: the arithmetic behind "25,000 samples won't fit".

Pure functions over a request; pipeline.forecast makes one of a run. Standard library only (Python >= 3.9); imports
pipeline.geometry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.geometry import AUX_STATES, Geometry, GeometryError

SIDE_BYTES = 13
"""Beside the hidden states a shard keeps, per token: input id 4, loss mask 1, teacher argmax 4, log-sum-exp 4."""
TEXT_BYTES = 26
"""What generate writes per token: text and ids as JSON in samples.jsonl, ids and mask again in tokenized.jsonl.
Measured on the bundled verifier (23) and on SmolLM2 (26); the larger is used."""
CHECKPOINT_BYTES = 12
"""Per trained parameter: fp32 weights and the two fp32 moments of AdamW."""
RESERVE_SHARE = 0.02
"""The part of a volume that is left free where the plan names no reserve."""

_BASIS = {
    "measured": " (measured so far)",
    "expected": " (generate.expected_tokens)",
    "worst case": " (worst case: every sample fills the length)",
}


@dataclass(frozen=True)
class BudgetRequest:
    """What is to be worked out. Sizes in bytes; `length` 0 means that no token is cut off."""

    geometry: Geometry
    samples: int
    mean_tokens: float
    capacity_bytes: int
    available_bytes: int
    reserve_bytes: int
    bytes_per_value: int = 2
    length: int = 0
    draft_vocab: int = 32_000
    checkpoints: int = 3
    basis: str = "given"


@dataclass(frozen=True)
class BudgetItem:
    """One line of the arithmetic: what it is, its bytes and how they come about."""

    name: str
    bytes: int
    how: str


@dataclass(frozen=True)
class Budget:
    """The worked-out budget. It fits when need_bytes <= available_bytes; need holds the reserve."""

    request: BudgetRequest
    bytes_per_token: int
    tokens: int
    items: tuple[BudgetItem, ...]
    need_bytes: int
    available_bytes: int
    fits: bool
    largest_samples: int

    @property
    def hidden_bytes(self) -> int:
        return self.items[0].bytes

    def to_json(self) -> dict[str, Any]:
        return {
            "bytes_per_token": self.bytes_per_token,
            "samples": self.request.samples,
            "mean_tokens": self.request.mean_tokens,
            "tokens": self.tokens,
            "basis": self.request.basis,
            "items": [{"name": item.name, "bytes": item.bytes, "how": item.how} for item in self.items],
            "need_bytes": self.need_bytes,
            "available_bytes": self.available_bytes,
            "capacity_bytes": self.request.capacity_bytes,
            "fits": self.fits,
            "largest_samples": self.largest_samples,
            "text": headline(self),
        }


def bytes_per_token(hidden_size: int, bytes_per_value: int = 2) -> int:
    """Hidden states of one token on disk: (3 aux + 1 last) x hidden size x bytes a value. Kimi-K2.5: 57,344."""
    return (AUX_STATES + 1) * hidden_size * bytes_per_value


def default_reserve(capacity_bytes: int) -> int:
    return int(capacity_bytes * RESERVE_SHARE)


def plan_bytes(request: BudgetRequest) -> Budget:
    """The budget of a request. Raises GeometryError for counts that mean nothing."""
    if request.samples < 1 or not request.mean_tokens > 0 or request.capacity_bytes < 1:
        raise GeometryError(
            "A budget needs at least 1 sample, more than 0 tokens a sample and a volume of more than 0 bytes.",
            "Check --samples, --mean-tokens and --volume.",
        )
    per_token = bytes_per_token(request.geometry.hidden_size, request.bytes_per_value)
    kept_mean = min(request.mean_tokens, request.length) if request.length else request.mean_tokens
    kept = round(request.samples * kept_mean)
    tokens = round(request.samples * request.mean_tokens)
    parameters = request.geometry.drafter_parameters(min(request.draft_vocab, request.geometry.vocab_size))
    cut = f", {tokens - kept:,} tokens beyond length {request.length:,} not stored" if kept < tokens else ""
    values = f"{AUX_STATES} aux + 1 last) x {request.geometry.hidden_size:,} x {request.bytes_per_value}"
    items = (
        BudgetItem("hidden states", kept * per_token, f"{kept:,} tokens x {per_token:,} bytes [({values}]{cut}"),
        BudgetItem("ids, masks, teacher", kept * SIDE_BYTES, f"{SIDE_BYTES} bytes a token"),
        BudgetItem("samples as text", tokens * TEXT_BYTES, f"about {TEXT_BYTES} bytes a token"),
        BudgetItem(
            "checkpoints",
            parameters * CHECKPOINT_BYTES * request.checkpoints,
            f"{request.checkpoints} x {parameters / 1e6:,.1f} M parameters x {CHECKPOINT_BYTES} bytes",
        ),
        BudgetItem("reserve", request.reserve_bytes, "left free on the volume"),
    )
    need = sum(item.bytes for item in items)
    fixed = items[3].bytes + items[4].bytes
    per_sample = kept_mean * (per_token + SIDE_BYTES) + request.mean_tokens * TEXT_BYTES
    largest = max(0, int((request.available_bytes - fixed) // per_sample))
    fits = need <= request.available_bytes
    return Budget(request, per_token, tokens, items, need, request.available_bytes, fits, largest)


def size_text(count: float) -> str:
    """Bytes in decimal and binary units, since volumes are sold in one and counted in the other: 2.29 TB (2.09 TiB)."""
    for power, decimal, binary in ((4, "TB", "TiB"), (3, "GB", "GiB"), (2, "MB", "MiB")):
        if abs(count) >= 1000**power:
            return f"{count / 1000**power:.2f} {decimal} ({count / 1024**power:.2f} {binary})"
    return f"{count:,.0f} bytes"


def headline(budget: Budget) -> str:
    """One sentence: fits or not, with the numbers."""
    request = budget.request
    tokens = f"{request.samples:,} samples x {request.mean_tokens:,.0f} tokens"
    what = f"{tokens} = {size_text(budget.hidden_bytes)} of hidden states"
    if budget.fits:
        spare = budget.available_bytes - budget.need_bytes
        return f"{what}: fits, {size_text(spare)} to spare"
    short = budget.need_bytes - budget.available_bytes
    return f"{what}: does not fit, {size_text(short)} short; at most {budget.largest_samples:,} samples fit"


def explain(budget: Budget) -> list[str]:
    """The arithmetic line by line, then the verdict and what can be done about it."""
    request = budget.request
    lines = [
        f"{request.samples:,} samples x {request.mean_tokens:,.0f} tokens a sample = {budget.tokens:,} tokens"
        + _BASIS.get(request.basis, ""),
        f"{budget.bytes_per_token:,} bytes of hidden states a token",
    ]
    width = max(len(item.name) for item in budget.items)
    lines += [f"  {item.name:<{width}}  {size_text(item.bytes):>22}   {item.how}" for item in budget.items]
    lines.append(f"  {'needed':<{width}}  {size_text(budget.need_bytes):>22}")
    available, capacity = size_text(budget.available_bytes), size_text(request.capacity_bytes)
    lines.append(f"  {'available':<{width}}  {available:>22}   of {capacity}")
    if budget.fits:
        spare = size_text(budget.available_bytes - budget.need_bytes)
        lines.append(f"Fits: {spare} to spare; up to {budget.largest_samples:,} samples.")
        return lines
    lines.append(f"Does not fit: {size_text(budget.need_bytes - budget.available_bytes)} short.")
    options = []
    if budget.largest_samples:
        options.append(f"at most {budget.largest_samples:,} samples (generate.max_samples)")
    per_sample = request.samples * (budget.bytes_per_token + SIDE_BYTES + TEXT_BYTES)
    room = budget.available_bytes - budget.items[3].bytes - budget.items[4].bytes
    longest = int(room // per_sample) if room > 0 else 0
    if longest >= 64:
        options.append(f"all {request.samples:,} cut at {longest:,} tokens (extract.length)")
    options.append("a larger volume")
    lines.append("Options: " + "; or ".join(options) + ".")
    return lines
