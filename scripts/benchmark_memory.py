#!/usr/bin/env python
"""Peak memory of one training step, of this package and of transformers' MarianMT: `python scripts/benchmark_memory.py`.

The base size with a vocabulary of 37,000, float32, AdamW; about 4,096 target tokens, once in 64 pairs of 64 tokens each and
once in 160 pairs of random lengths, of which 38 % of the positions are tokens. Each step runs in a process of its own, on one
thread, where the optimizer already has its state; the most the process ever held is read from Linux afterwards.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from benchmark_models import MODELS, SIZES, batch, loss_of
from rich.console import Console
from rich.table import Table

PAIRS = {"dense": 64, "ragged": 160}


def held(field: str) -> int:
    """MB of this process, by a field of /proc/self/status."""
    return int(re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) // 1024  # type: ignore[index]


def step(name: str, kind: str) -> None:
    """Print target tokens, MB before the step and MB at its peak."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: Any = MODELS[name.partition(",")[0]]("base")
    model.train()
    if name.endswith("checkpointing"):
        model.activation_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    inputs = batch(kind, PAIRS[kind], SIZES["base"][-1])
    before = held("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    loss_of(model, inputs).backward()
    optimizer.step()
    print(int((inputs["labels"] != -100).sum()), before, held("VmHWM"))


def main() -> None:
    table = Table(
        "batch", "target tokens", "model", "before (MB)", "peak (MB)", "of the step (MB)", "ratio", "of the step"
    )
    for kind in PAIRS:
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
