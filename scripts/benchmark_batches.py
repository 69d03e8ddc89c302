#!/usr/bin/env python
"""Padding and speed of batches on a recipe's own data: `python scripts/benchmark_batches.py RECIPE.yaml [name=value ...]`.

One training step after another on random batches of a fixed number of pairs, on batches of like lengths and on packed
batches of the same token budget; with layers that compute padding and mask it, as most models do, and with this package's,
which leave it out. All in turn, on one thread, by the processor's clock, so that other work on the machine matters little.
"""

import argparse
import statistics
import time
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from vanilla_transformer.data import TokenBudgetBatchSampler
from vanilla_transformer.kernels import FastKernels
from vanilla_transformer.kernels_vanilla_transformer import Kernels
from vanilla_transformer.recipes.recipe import Recipe
from vanilla_transformer.trainer.malloc import tune_malloc
from vanilla_transformer.utils.log import no_log


class MaskingKernels(FastKernels):
    """Layers that get padding, and a mask over it."""

    supports_varlen, choose_layouts = Kernels.supports_varlen, Kernels.choose_layouts  # type: ignore[assignment]


def main(recipe: Recipe, count: int, rounds: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(recipe.seed)
    tune_malloc()
    task = recipe.new_task()
    part = task.read(recipe.splits("data.train", "data.validation"))["data.train"]
    lengths, rows = task.lengths(part.tokenized), task.train_data(part.tokenized)
    model = task.model(recipe.config(**task.config_fields()), no_log).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    budget, seed = recipe.batches.max_tokens, recipe.seed

    bucketed = list(TokenBudgetBatchSampler(lengths, budget, seed=seed))
    packed = list(TokenBudgetBatchSampler(lengths, budget, seed=seed, packed=True))
    order = np.random.default_rng(seed).permutation(len(lengths))
    random = [batch.tolist() for batch in np.array_split(order, len(bucketed))]
    pad, pack = task.collator(model), task.packer(model)
    ways: dict[tuple[str, str], tuple[list[list[int]], Any, bool]] = {
        # batches, collator, whether padding is computed and masked
        ("fixed number, random", "computed and masked"): (random, pad, True),
        ("fixed number, random", "left out"): (random, pad, False),
        ("like lengths", "computed and masked"): (bucketed, pad, True),
        ("like lengths", "left out"): (bucketed, pad, False),
        ("packed", "none there"): (packed, pack, False),
    }
    prepared = {
        way: [(dict(collate([rows[i] for i in batch])), int(lengths[batch].sum())) for batch in batches[:count]]
        for way, (batches, collate, _) in ways.items()
    }
    speeds: dict[tuple[str, str], list[float]] = {way: [] for way in ways}
    fast, masking = FastKernels(), MaskingKernels()
    for round_number in range(rounds + 1):
        for way, (_, _, masked) in ways.items():
            Kernels.used = masking if masked else fast
            started = time.process_time()
            for batch, _ in prepared[way]:
                model(**batch, skip_logits=True).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            seconds = time.process_time() - started
            if round_number:  # the first warms up
                speeds[way].append(sum(tokens for _, tokens in prepared[way]) / seconds)

    table = Table("batches", "padding in layers", "batches an epoch", "padding", "tokens/s", "ratio")
    first = speeds[next(iter(ways))]
    for way, (batches, collate, _) in ways.items():
        padded = sum(len(batch) * int(lengths[batch].max(axis=0).sum()) for batch in batches)
        share = 0.0 if collate is pack else 1 - lengths.sum() / padded
        ratio = statistics.median(own / reference for own, reference in zip(speeds[way], first, strict=True))
        speed = f"{statistics.median(speeds[way]):,.0f}"
        table.add_row(*way, str(len(batches)), f"{100 * share:.1f} %", speed, f"{ratio:.2f}")
    console = Console(width=110)
    console.print(
        f"{model.num_parameters():,} parameters; {count} batches of about {budget} tokens a side, {rounds} rounds"
    )
    console.print(table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*", metavar="name=value")
    parser.add_argument("--batches", type=int, default=6, help="of each kind, in each round")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_intermixed_args()
    main(Recipe.load(given.recipe, given.overrides), given.batches, given.rounds)
