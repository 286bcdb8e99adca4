"""Speculative decoding against plain greedy decoding, and against what training simulates."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from pipeline.drafter.config import DrafterConfig, DrafterError
from pipeline.drafter.initial import drafter_from_verifier, load_drafter, random_drafter
from pipeline.drafter.model import Drafter
from pipeline.drafter.vocabulary import DraftVocabulary
from pipeline.engine.speculative import SpeculativeDecoder
from pipeline.shards import Sequence as Stored
from pipeline.shards import ShardIndex, ShardStore, ShardWriter
from pipeline.train.data import Corpus
from pipeline.train.objective import Frozen, run_batch, walk

EOS = 1


@pytest.fixture(scope="module")
def verifier(tiny_verifier: Path) -> Any:
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(tiny_verifier).eval()


def greedy(model: Any, prompt: Sequence[int], limit: int) -> list[int]:
    """One token at a time, the whole prefix every time: no cache, no batch."""
    ids = list(prompt)
    while len(ids) < len(prompt) + limit:
        with torch.no_grad():
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        if ids[-1] == EOS:
            break
    return ids[len(prompt) :]


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, 96, (3 + 4 * (n % 5),), generator=generator).tolist() for n in range(count)]


def export(folder: Path, drafter: Drafter, vocabulary: DraftVocabulary) -> Path:
    folder.mkdir(exist_ok=True)
    weights = {name: value.detach().clone() for name, value in drafter.named_parameters()}
    save_file({**weights, "d2t": vocabulary.d2t, "t2d": vocabulary.t2d}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(drafter.config.to_json()))
    return folder


def drafter_for(tiny_verifier: Path, folder: Path, kind: str) -> Path:
    from transformers import LlamaForCausalLM

    config = DrafterConfig.for_verifier(json.loads((tiny_verifier / "config.json").read_text()), 64)
    vocabulary = DraftVocabulary(torch.arange(1, 65), 96)
    if kind == "random":
        return export(folder, random_drafter(config, 5), vocabulary)
    state = LlamaForCausalLM.from_pretrained(tiny_verifier).state_dict()
    frozen = {name.replace("model.layers.7.", "layer."): tensor for name, tensor in state.items()}
    frozen |= {"norm": state["model.norm.weight"], "lm_head": state["lm_head.weight"]}
    drafter, missing = drafter_from_verifier(config, frozen, vocabulary, 0)
    assert missing == []
    return export(folder, drafter, vocabulary)


class Oracle:
    """Stands in for a drafter's weights: knows every answer, and is wrong where `wrong(row, position)` says so."""

    def __init__(self, real: Any, answers: list[list[int]], wrong: Callable[[int, int], bool]) -> None:
        self.real, self.cache, self.answers, self.wrong = real, real.cache, answers, wrong
        self.rows: list[int] = []

    def forget(self) -> None:
        self.real.forget()
        self.cache, self.rows = self.real.cache, list(range(len(self.answers)))

    def combine(self, aux: Tensor) -> Tensor:
        return self.real.combine(aux)

    def forward(self, hidden: Tensor, ids: Tensor, rows: Tensor, positions: Tensor, length: int) -> Tensor:
        self.real.forward(hidden, ids, rows, positions, length)
        where = torch.zeros(*ids.shape, hidden.shape[-1])
        where[..., 0], where[..., 1] = rows.expand_as(ids), positions
        return where

    def propose(self, where: Tensor) -> Tensor:
        tokens = []
        for row, position in where[..., :2].reshape(-1, 2).int().tolist():
            answer = self.answers[self.batch.slots[row]]
            at = position + 2
            token = answer[at] if at < len(answer) else 0
            tokens.append((token + 1) % 96 if self.wrong(self.batch.slots[row], at) else token)
        return torch.tensor(tokens).view(where.shape[:-1])


def with_oracle(
    decoder: SpeculativeDecoder, answers: list[list[int]], wrong: Callable[[int, int], bool], monkeypatch: Any
) -> None:
    oracle = Oracle(decoder._drafter, answers, wrong)
    original = decoder._prefill

    def prefill(batch: Any) -> Any:
        oracle.batch = batch
        return original(batch)

    monkeypatch.setattr(decoder, "_prefill", prefill)
    monkeypatch.setattr(decoder, "_drafter", oracle)


@pytest.mark.parametrize("kind", ["random", "verifier"])
@pytest.mark.parametrize("k", [1, 3])
def test_output_is_plain_greedy(kind: str, k: int, verifier: Any, tiny_verifier: Path, tmp_path: Path) -> None:
    decoder = SpeculativeDecoder(verifier, drafter_for(tiny_verifier, tmp_path / "d", kind), k)
    asked = prompts(7)
    limits = [1, 2, 30, 17, 30, 9, 30]
    plain = [greedy(verifier, prompt, limit) for prompt, limit in zip(asked, limits)]
    answers = decoder.generate(asked, limits, {EOS})
    assert [answer.ids for answer in answers] == plain
    assert [answer.finish_reason for answer in answers] == ["stop" if ids[-1] == EOS else "length" for ids in plain]
    counters = decoder.counters
    assert counters.accepted == sum(counters.accepted_per_pos)
    assert counters.draft_tokens == k * counters.drafts
    assert counters.accepted_per_pos == sorted(counters.accepted_per_pos, reverse=True)


@pytest.mark.parametrize("rate", ["none", "all", "ragged"])
def test_a_drafter_that_is_never_always_or_sometimes_right(
    rate: str, verifier: Any, tiny_verifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = SpeculativeDecoder(verifier, drafter_for(tiny_verifier, tmp_path / "d", "random"), 3)
    asked, limit = prompts(6, seed=4), 24
    plain = [greedy(verifier, prompt, limit + 4) for prompt in asked]
    chance = np.random.default_rng(0).random((6, 200))
    wrong = {"none": lambda r, p: True, "all": lambda r, p: False, "ragged": lambda r, p: chance[r, p] < 0.4}[rate]
    with_oracle(decoder, [prompt + answer for prompt, answer in zip(asked, plain)], wrong, monkeypatch)
    answers = decoder.generate(asked, [limit] * 6, {EOS})
    assert [answer.ids for answer in answers] == [answer[:limit] for answer in plain]
    counters = decoder.counters
    if rate == "none":
        assert counters.accepted == 0 and counters.drafts == sum(len(answer.ids) - 1 for answer in answers)
    if rate == "all":
        assert counters.accepted_per_pos[0] == counters.drafts
        assert counters.drafts == sum(-(-(len(answer.ids) - 1) // 4) for answer in answers)
    if rate == "ragged":
        assert 0 < counters.accepted < 3 * counters.drafts


def test_a_second_batch_starts_clean(verifier: Any, tiny_verifier: Path, tmp_path: Path) -> None:
    decoder = SpeculativeDecoder(verifier, drafter_for(tiny_verifier, tmp_path / "d", "verifier"), 2)
    first = decoder.generate(prompts(3), [12] * 3, {EOS})
    decoder.generate(prompts(5, seed=9), [20] * 5, {EOS})
    assert decoder.generate(prompts(3), [12] * 3, {EOS}) == first


def test_a_drafter_of_another_verifier_is_refused(verifier: Any, tiny_verifier: Path, tmp_path: Path) -> None:
    raw = json.loads((tiny_verifier / "config.json").read_text()) | {"vocab_size": 100}
    config = DrafterConfig.for_verifier(raw, 64)
    folder = export(tmp_path / "d", random_drafter(config, 0), DraftVocabulary(torch.arange(64), 100))
    with pytest.raises(DrafterError, match="100 tokens of width 32"):
        SpeculativeDecoder(verifier, folder, 3)


@torch.no_grad()
def store_of(verifier: Any, folder: Path, sequences: list[tuple[list[int], list[int]]]) -> ShardStore:
    """The sequences' true hidden states in fp32, as extract writes them."""
    total = sum(len(prompt) + len(answer) for prompt, answer in sequences)
    ids = [f"s{number}" for number in range(len(sequences))]
    writer = ShardWriter(folder / "shard-00000.safetensors", ids=ids, tokens=total, hidden_size=32, dtype=torch.float32)
    for name, (prompt, answer) in zip(ids, sequences):
        tokens = torch.tensor([prompt + answer])
        out = verifier(tokens, output_hidden_states=True)
        states, logits = out.hidden_states, out.logits[0].float()
        aux = torch.stack([states[layer][0] for layer in (2, 4, 5)], 1)
        mask = torch.tensor([0] * len(prompt) + [1] * len(answer), dtype=torch.uint8)
        writer.append(
            Stored(
                name, aux, states[-1][0], tokens[0].int(), mask, logits.argmax(-1).int(), logits.logsumexp(-1),
                answer[-1] != EOS,
            )
        )  # fmt: skip
    info = writer.close()
    assert info is not None
    ShardIndex(32, (2, 4, 5), 96, "float32", 2048, (info,)).write(folder)
    return ShardStore(folder)


def test_training_simulates_what_serving_proposes(
    verifier: Any, tiny_verifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replays real decoding: at every verification the loop's drafts equal the training forward's at the same (row,
    step), the pair lies inside the mask, and the simulated walk counts what the loop's counters count."""
    k = 3
    folder = drafter_for(tiny_verifier, tmp_path / "d", "verifier")
    decoder = SpeculativeDecoder(verifier, folder, k)
    rounds: list[tuple[int, list[int]]] = []
    forward = decoder._verifier.forward

    def record(ids: Tensor, rows: Tensor, positions: Tensor, length: int) -> Any:
        if ids.shape[1] == k + 1 and len(ids) == 1 and int(positions[0, 0]) > 0:
            rounds.append((int(positions[0, 0]), ids[0].tolist()))
        return forward(ids, rows, positions, length)

    monkeypatch.setattr(decoder._verifier, "forward", record)
    asked, played, drafts, answers = prompts(8, seed=2), [], [], []
    for prompt in asked:
        rounds.clear()
        before = decoder.counters.drafts, decoder.counters.accepted
        answer = decoder.generate([prompt], [26], {EOS})[0].ids
        played.append(list(rounds))
        drafts.append((decoder.counters.drafts - before[0], decoder.counters.accepted - before[1]))
        answers.append(answer)
    store = store_of(verifier, tmp_path, list(zip(asked, answers)))
    corpus = Corpus(store, k, 2048, heads=4)
    model, vocabulary = load_drafter(folder)
    head = verifier.lm_head.weight.detach()[vocabulary.tokens]
    frozen = Frozen(verifier.get_input_embeddings().weight.detach(), head, vocabulary.tokens, torch.float32)
    batch = corpus.batch(list(range(len(asked))))
    with torch.no_grad():
        _, _, proposed = run_batch(model, frozen, batch, 1.0)
    compared = 0
    for number, (prompt, answer, seen, piece) in enumerate(zip(asked, answers, played, batch.pieces)):
        pairs = corpus.pairs(number)
        simulated = {}
        for row, teacher in enumerate(pairs.teachers.tolist()):
            for step in range(k):
                if pairs.mask[row, step]:
                    simulated[teacher - 1 - step, step] = int(proposed[piece][row, step])
        tokens = prompt + answer
        assert seen[0][0] == len(prompt)  # the first drafts belong to the last prompt position
        assert (len(prompt) - 1, 0) in simulated and min(simulated) == (len(prompt) - 1, 0)
        for position, offered in seen:
            assert tokens[position] == offered[0]
            for step, token in enumerate(offered[1:]):
                at = position + 1 + step
                if at > len(tokens) or (at == len(tokens) and answer[-1] == EOS):
                    break
                assert simulated[position - 1, step] == token, (number, position, step)
                compared += 1
                if at >= len(tokens) or tokens[at] != token:
                    break
        right = ((proposed == batch.token.unsqueeze(1)) & batch.mask)[piece].numpy()
        count, accepted = walk(corpus, number, right)
        if answer[-1] == EOS:
            assert (count, int(accepted.sum())) == drafts[number]
        else:  # of a cut answer only verifications whose k tokens are all known are counted
            assert count == sum(len(tokens) - 1 - position >= k for position, _ in seen)
    assert compared > 60
