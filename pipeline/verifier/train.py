"""Trains the bundled verifier: `python -m pipeline.verifier.train --out DIR`. Imports torch and transformers.

Fits the tokenizer, makes the training rows, trains a small Llama with AdamW and a cosine schedule, checks held-out
tasks on the way and writes the model folder. Seeded: the same command on the same software gives the same data, start
and order.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from pipeline.verifier.packing import ROW, Rows, build_rows, encode
from pipeline.verifier.tasks import tasks
from pipeline.verifier.template import IM_END, PAD, render
from pipeline.verifier.tokenizer import CONTEXT, VOCABULARY, make_tokenizer

HELD_OUT_SEED = 1
_WARMUP = 200


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.verifier.train", description="Train the bundled verifier."
    )
    parser.add_argument("--out", type=Path, required=True, help="model folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=6_000)
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="stop early and save after so many minutes of training"
    )
    parser.add_argument("--conversations", type=int, default=1_000_000)
    parser.add_argument("--batch-rows", type=int, default=512, help=f"rows of {ROW} tokens in a step")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--hidden", type=int, default=192)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--compile", action="store_true", help="compile the decoder layer (CUDA)")
    return parser.parse_args()


def new_model(options: argparse.Namespace, eos: int, pad: int) -> Any:
    """A freshly initialised LlamaForCausalLM, fp32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=options.hidden,
        intermediate_size=3 * options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=options.hidden // 32,
        num_key_value_heads=options.hidden // 96,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=eos,
        pad_token_id=pad,
    )
    torch.manual_seed(options.seed)
    return LlamaForCausalLM(config)


def held_out_exact(model: Any, tokenizer: Any, count: int, device: torch.device) -> dict[str, float]:
    """Share of held-out tasks, by family and in "all", that greedy decoding answers word for word.

    One forward pass tells: greedy decoding gives the expected answer if and only if each of its tokens is the argmax
    after the tokens before it.
    """
    rows, families = [], []
    for task in tasks(HELD_OUT_SEED, count, "held-out"):
        prompt = render([{"role": "user", "content": task.prompt}])
        rows.append(encode(tokenizer, prompt, task.reasoning, task.answer, True))
        families.append(task.family)
    ids = torch.full((count, ROW), tokenizer.pad_token_id)
    said = torch.zeros((count, ROW), dtype=torch.bool)
    for i, (prompt_ids, said_ids) in enumerate(rows):
        end = len(prompt_ids) + len(said_ids)
        ids[i, :end] = torch.tensor(prompt_ids + said_ids)
        said[i, len(prompt_ids) : end] = True
    right: dict[str, list[bool]] = {"all": []}
    model.eval()
    with torch.inference_mode():
        for part, mask, names in zip(
            torch.split(ids, 256), torch.split(said, 256), [families[i : i + 256] for i in range(0, count, 256)]
        ):
            guess = model(input_ids=part.to(device)).logits[:, :-1].argmax(-1).cpu()
            exact = ((guess == part[:, 1:]) | ~mask[:, 1:]).all(-1).tolist()
            for name, good in zip(names, exact):
                right.setdefault(name, []).append(good)
                right["all"].append(good)
    model.train()
    return {name: sum(values) / len(values) for name, values in right.items()}


def save(model: Any, folder: Path, record: dict[str, object]) -> None:
    """Writes config, bf16 weights, generation config and train.json beside the tokenizer."""
    from safetensors.torch import save_file

    state = {name: tensor.detach().to(torch.bfloat16).cpu().contiguous() for name, tensor in model.state_dict().items()}
    model.config.dtype = torch.bfloat16
    model.config.architectures = ["LlamaForCausalLM"]
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "train.json").write_text(json.dumps(record, indent=1) + "\n")


def train(
    model: Any, rows: Rows, tokenizer: Any, options: argparse.Namespace, device: torch.device
) -> dict[str, object]:
    """Trains in place and returns the record of the training."""
    started = time.monotonic()
    limit = options.minutes * 60
    ids, document, position, target = (
        torch.from_numpy(getattr(rows, name)).to(device) for name in ("ids", "document", "position", "target")
    )
    causal = torch.ones(ROW, ROW, dtype=torch.bool, device=device).tril()
    decay = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    plain = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}],
        lr=options.lr,
        betas=(0.9, 0.98),
        fused=device.type == "cuda",
    )
    generator = torch.Generator().manual_seed(options.seed)
    order, at, step, mean, tokens = torch.empty(0, dtype=torch.long), 0, 0, 0.0, 0
    record: dict[str, object] = {}
    while step < options.steps and time.monotonic() - started < limit:
        if at + options.batch_rows > len(order):
            order, at = torch.randperm(len(ids), generator=generator), 0
        chosen = order[at : at + options.batch_rows].to(device)
        at += options.batch_rows
        rate = options.lr * min(1.0, (step + 1) / _WARMUP) * (0.5 + 0.5 * math.cos(math.pi * step / options.steps))
        for group in optimizer.param_groups:
            group["lr"] = rate
        part = document[chosen]
        mask = (part[:, :, None] == part[:, None, :]) & causal
        wanted = target[chosen].long()
        kept = wanted >= 0
        with torch.autocast(device.type, torch.bfloat16):
            hidden = model.model(
                input_ids=ids[chosen].long(), attention_mask=mask[:, None], position_ids=position[chosen].long()
            ).last_hidden_state
            logits = model.lm_head(hidden[kept])
        loss = functional.cross_entropy(logits.float(), wanted[kept])
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        tokens += options.batch_rows * ROW
        if step % 100 == 0 or step == options.steps:
            mean = loss.item()
            elapsed = time.monotonic() - started
            print(
                f"step {step} loss {mean:.4f} lr {rate:.2e} {tokens / elapsed / 1e6:.2f} Mtok/s {elapsed:.0f} s",
                flush=True,
            )
        if step % 2000 == 0:
            exact = held_out_exact(model, tokenizer, 1024, device)
            record = {"steps": step, "loss": mean, "exact": exact}
            print(f"  held-out answered word for word: {exact['all']:.3f}", flush=True)
            save(model, options.out, record)
    return {"steps": step, "loss": mean, "seconds": round(time.monotonic() - started), "tokens": tokens}


def main() -> int:
    import tokenizers
    import transformers

    options = arguments()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    began = time.monotonic()
    tokenizer = make_tokenizer(options.out, options.seed, 50_000)
    print(f"tokenizer: {len(tokenizer)} tokens, {time.monotonic() - began:.0f} s", flush=True)
    rows = build_rows(options.out, options.seed, options.conversations, options.processes)
    learnt = int((rows.target >= 0).sum())
    print(f"rows: {len(rows.ids)} of {ROW} tokens, {learnt} to learn, {time.monotonic() - began:.0f} s", flush=True)
    model = new_model(options, tokenizer.convert_tokens_to_ids(IM_END), tokenizer.convert_tokens_to_ids(PAD)).to(device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"model: {parameters} parameters", flush=True)
    if options.compile:
        for layer in model.model.layers:
            layer.compile()
    record = train(model, rows, tokenizer, options, device)
    exact = held_out_exact(model, tokenizer, 2048, device)
    for family, share in sorted(exact.items(), key=lambda item: item[1]):
        print(f"  {family:18s} {share:.3f}", flush=True)
    record |= {
        "parameters": parameters,
        "rows": len(rows.ids),
        "tokens_to_learn_per_epoch": learnt,
        "options": {name: str(value) for name, value in vars(options).items() if name != "out"},
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
        },
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "held_out_word_for_word": exact,
    }
    save(model, options.out, record)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
