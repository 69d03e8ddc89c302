#!/usr/bin/env python
"""Peak memory of one training step, of this package and of transformers' MarianMT: `python scripts/benchmark_memory.py`.

The base size with a vocabulary of 37,000, float32, AdamW; about 4,096 target tokens, once in 64 pairs of 64 tokens each and
once in 160 pairs of random lengths, of which 38 % of the positions are tokens. Each step runs in a process of its own, on one
thread, where the optimizer already has its state; the most the process ever held is read from Linux afterwards.
"""

import argparse
import math
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from benchmark_models import translator
from rich.console import Console
from rich.table import Table
from transformers import MarianConfig, MarianMTModel

VOCABULARY = 37000
PAD = VOCABULARY - 1


def marian() -> MarianMTModel:
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("layers", 6), ("attention_heads", 8), ("ffn_dim", 2048))
    }
    ids = {"pad_token_id": PAD, "eos_token_id": 0, "bos_token_id": 1, "decoder_start_token_id": PAD}
    return MarianMTModel(
        MarianConfig(
            vocab_size=VOCABULARY,
            decoder_vocab_size=VOCABULARY,
            d_model=512,
            activation_function="relu",
            dropout=0.1,
            scale_embedding=True,
            max_position_embeddings=512,
            forced_eos_token_id=None,
            **sides,
            **ids,
        )
    )


def batch(kind: str) -> dict[str, torch.Tensor]:
    """`dense`, or `ragged`: lengths from a log-normal distribution with a mean of 25."""
    if kind == "dense":
        lengths = [(64, 64)] * 64
    else:
        draw = random.Random(0)
        sources = [min(128, max(3, round(draw.lognormvariate(math.log(25) - 0.18, 0.6)))) for _ in range(160)]
        lengths = [(n, min(128, max(3, round(n * draw.lognormvariate(0, 0.2))))) for n in sources]
    rows = {"input_ids": [torch.randint(2, PAD, (n,)) for n, _ in lengths]}
    rows["labels"] = [torch.randint(2, PAD, (n,)) for _, n in lengths]
    padded = {
        name: torch.nn.utils.rnn.pad_sequence(
            ids, batch_first=True, padding_value=PAD if name == "input_ids" else -100
        )
        for name, ids in rows.items()
    }
    return {**padded, "attention_mask": (padded["input_ids"] != PAD).long()}


def held(field: str) -> int:
    """MB of this process, by a field of /proc/self/status."""
    return int(re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) // 1024  # type: ignore[index]


def step(name: str, kind: str) -> None:
    """Print target tokens, MB before the step and MB at its peak."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: Any = marian() if name == "MarianMT" else translator("base")
    model.train()
    if name.endswith("checkpointing"):
        model.activation_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    inputs = batch(kind)
    before = held("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    if name == "MarianMT":
        labels = inputs.pop("labels")
        start = model.prepare_decoder_input_ids_from_labels(labels)
        logits = model(**inputs, decoder_input_ids=start, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)
        tokens = int((labels != -100).sum())
    else:
        loss, tokens = model(**inputs).loss, int((inputs["labels"] != -100).sum())
    loss.backward()
    optimizer.step()
    print(tokens, before, held("VmHWM"))


def main() -> None:
    table = Table(
        "batch", "target tokens", "model", "before (MB)", "peak (MB)", "of the step (MB)", "ratio", "of the step"
    )
    for kind in ("dense", "ragged"):
        reference = None
        for name in ("MarianMT", "ours", "ours, activation checkpointing"):
            command = [sys.executable, __file__, "--step", name, kind]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            tokens, before, peak = map(int, done.stdout.split())
            reference = reference or (peak, peak - before)
            ratios = [f"{peak / reference[0]:.2f}", f"{(peak - before) / reference[1]:.2f}"]
            table.add_row(kind, f"{tokens:,}", name, f"{before:,}", f"{peak:,}", f"{peak - before:,}", *ratios)
    Console(width=120).print(table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--step", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    step(*given.step) if given.step else main()
