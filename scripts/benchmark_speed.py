#!/usr/bin/env python
"""Speed of a training step, of this package and of transformers' MarianMT: `python scripts/benchmark_speed.py`.

Forward, smoothed loss, backward and fused AdamW, in turn, on one thread, by the processor's clock, so that other work on
the machine matters little. Tokens are those of source and target without padding; the ratio is the median over the rounds.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from benchmark_models import MODELS, SIZES, batch, loss_of
from rich.console import Console
from rich.table import Table

PAIRS = {"dense": 16, "ragged": 32, "bucketed": 32}


def main(sizes: list[str], bf16: bool, rounds: int) -> None:
    torch.set_num_threads(1)
    table = Table("size", "batch", "tokens", "model", "ms", "tokens/s", "ratio")
    for size in sizes:
        models = {}
        for name, build in MODELS.items():
            torch.manual_seed(0)
            models[name] = build(size).train()
        for kind, pairs in PAIRS.items():
            inputs = batch(kind, pairs, SIZES[size][-1])
            tokens = int(inputs["attention_mask"].sum() + (inputs["labels"] != -100).sum())
            share = tokens / (inputs["input_ids"].numel() + inputs["labels"].numel())
            times: dict[str, list[float]] = {name: [] for name in models}
            steps = {name: stepper(model, inputs, bf16) for name, model in models.items()}
            for number in range(rounds + 1):
                for name in sorted(steps, reverse=bool(number % 2)):
                    started = time.process_time()
                    steps[name]()
                    if number:  # the first warms up
                        times[name].append(time.process_time() - started)
            for name, own in times.items():
                ratio = statistics.median(r / t for r, t in zip(times["MarianMT"], own, strict=True))
                median = statistics.median(own)
                speed = f"{tokens / median:,.0f}"
                table.add_row(size, kind, f"{100 * share:.0f} %", name, f"{1000 * median:,.0f}", speed, f"{ratio:.2f}")
    Console(width=100).print("bf16 autocast" if bf16 else "float32", table)


def stepper(model: Any, inputs: dict[str, torch.Tensor], bf16: bool) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = loss_of(model, inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["base", "tiny"])
    parser.add_argument("--bf16", action="store_true", help="under autocast, both")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    main(given.sizes, given.bf16, given.rounds)
