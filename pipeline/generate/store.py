"""samples.jsonl and rejects.jsonl: one line a prompt, the ids that are done, and the view that the next stages read.

Imports pipeline.rundir. One process writes; a torn tail is cut when it comes back.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.generate.judge import FINAL, SETTLED, Reject
from pipeline.rundir import JsonLines, iter_jsonl
from pipeline.rundir.atomic import TEMPORARY, fsync_folder

SAMPLES, REJECTS, TOKENIZED = "samples.jsonl", "rejects.jsonl", "tokenized.jsonl"


@dataclass
class Tally:
    """What the samples add up to."""

    samples: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    bytes: int = 0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


class SampleStore:
    """The samples of an output. Opening it reads what earlier attempts left. Close it."""

    def __init__(self, out: Path) -> None:
        self._out = out
        for left in out.glob(f".*{TEMPORARY}*"):
            left.unlink()
        self._samples = JsonLines(out / SAMPLES)
        self._rejects = JsonLines(out / REJECTS)
        self.repaired = self._samples.cut + self._rejects.cut
        self.tally = Tally(bytes=(out / SAMPLES).stat().st_size)
        self.model = ""
        self._ids: set[str] = set()
        for row, _ in iter_jsonl(out / SAMPLES):
            self._count(row)
        self._rejected: dict[str, Reject] = {}
        for row, _ in iter_jsonl(out / REJECTS):
            if row["id"] not in self._ids:
                self._rejected[row["id"]] = Reject(row["cause"], str(row.get("detail", "")))
        self._unsynced = False

    def done(self, prompt_id: str) -> bool:
        """Whether the prompt needs no (other) question ever: it has its sample, or was rejected for its own sake."""
        return prompt_id in self._ids or self._cause(prompt_id) in FINAL

    def settled(self, prompt_id: str) -> bool:
        """Whether asking the prompt once more in this attempt is of no use."""
        return prompt_id in self._ids or self._cause(prompt_id) in SETTLED

    @property
    def rejected(self) -> Mapping[str, Reject]:
        """The last reject of each prompt that has no sample, by id."""
        return self._rejected

    def _cause(self, prompt_id: str) -> str:
        reject = self._rejected.get(prompt_id)
        return reject.cause if reject is not None else ""

    def add(self, row: dict[str, Any]) -> None:
        """Appends a sample; one with the same id must not be there. Raises OSError on a full volume."""
        if row["id"] in self._ids:
            raise ValueError(f"{row['id']} has a sample already")
        self._samples.append(row)
        self._count(row)
        self._rejected.pop(row["id"], None)
        self.tally.bytes = os.stat(self._samples.path).st_size
        self._unsynced = True

    def reject(self, prompt_id: str, reject: Reject) -> None:
        self._rejects.append({"id": prompt_id, "cause": reject.cause, "detail": reject.detail})
        self._rejected[prompt_id] = reject

    def counts(self) -> dict[str, float]:
        """samples, tokens, prompt_tokens, output_tokens, rejected, and rejected/CAUSE for each cause there was."""
        tally = self.tally
        counts: dict[str, float] = {
            "samples": tally.samples,
            "tokens": tally.tokens,
            "prompt_tokens": tally.prompt_tokens,
            "output_tokens": tally.output_tokens,
            "rejected": len(self._rejected),
        }
        causes = Counter(reject.cause for reject in self._rejected.values())
        return counts | {f"rejected/{cause}": count for cause, count in causes.items()}

    def sync(self) -> None:
        """Makes what was appended survive a power cut. Lines survive the end of this process without it."""
        if self._unsynced:
            self._unsynced = False
            _fsync(self._out / SAMPLES)

    def close(self) -> None:
        self.sync()
        self._samples.close()
        self._rejects.close()

    def write_tokenized(self) -> str:
        """Writes tokenized.jsonl: id, input_ids, loss_mask (1: generated), truncated (cut by a length); gives the
        samples' fingerprint, which depends on ids and token ids and on no order."""
        temp = self._out / f".{TOKENIZED}{TEMPORARY}"
        total = 0
        with temp.open("w", encoding="utf-8") as file:
            for row, _ in iter_jsonl(self._out / SAMPLES):
                prompt, output = row["prompt_ids"], row["output_ids"]
                mask = [0] * len(prompt) + [1] * len(output)
                line = {"id": row["id"], "input_ids": prompt + output, "loss_mask": mask}
                line["truncated"] = row["finish_reason"] == "length"
                text = json.dumps(line, ensure_ascii=False, separators=(",", ":"))
                file.write(text + "\n")
                total += int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temp, self._out / TOKENIZED)
        fsync_folder(self._out)
        return f"{total % (1 << 256):064x}"

    def _count(self, row: dict[str, Any]) -> None:
        self._ids.add(row["id"])
        self.model = row["model"]
        self.tally.samples += 1
        self.tally.prompt_tokens += len(row["prompt_ids"])
        self.tally.output_tokens += len(row["output_ids"])


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
