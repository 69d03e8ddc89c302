"""Between which numbers the values of a recipe must lie, so that none is refused, or runs without end, after hours of work.

Those of generation are in `vanilla_transformer.utils.bounds`.
"""

import math
from collections.abc import Mapping
from typing import Any

from vanilla_transformer.errors import RecipeError
from vanilla_transformer.utils.bounds import (
    ABOVE_ZERO,
    AT_LEAST_ZERO,
    COUNT,
    FROM_ONE_TO_MILLION,
    GENERATION,
    MILLION,
    SHARE,
    SHARE_BELOW_ONE,
    Bound,
)

__all__ = ["RECIPE", "TRAINING", "check_bounds"]

TRAINING: dict[str, Bound] = {
    "num_train_epochs": Bound(0, 1_000_000, remedy="; a run ends by training.max_steps or max_minutes as well"),
    "max_steps": Bound(-1),
    **dict.fromkeys(("learning_rate", "weight_decay", "neftune_noise_alpha"), Bound(0, 1000)),
    **dict.fromkeys(("adam_beta1", "adam_beta2"), SHARE_BELOW_ONE),
    "adam_epsilon": SHARE,
    "max_grad_norm": Bound(0, math.inf),
    **dict.fromkeys(("warmup_steps", "eval_delay"), AT_LEAST_ZERO),
    **dict.fromkeys(("logging_steps", "eval_steps", "save_steps"), ABOVE_ZERO),
    **dict.fromkeys(("torch_empty_cache_steps", "eval_accumulation_steps"), COUNT),
    **dict.fromkeys(
        ("gradient_accumulation_steps", "save_total_limit", "per_device_eval_batch_size"), FROM_ONE_TO_MILLION
    ),
    "data_seed": Bound(0, 2**32 - 1),
    "dataloader_num_workers": Bound(0, 256),
    "ddp_bucket_cap_mb": Bound(1, 100_000),
    "ddp_timeout": Bound(1, 10_000_000),
    "local_rank": Bound(-1, 100_000),
}
"""Of the numbers among the training arguments that a recipe may give."""

_TOKENS = Bound(1, 100_000_000)

RECIPE: dict[str, Bound] = {
    "seed": Bound(0, 2**32 - 1),
    "max_minutes": Bound(0, math.inf, above=True),
    "tokenizer.vocab_size": Bound(1, 2_000_000),
    "tokenizer.min_frequency": AT_LEAST_ZERO,
    **{f"data.{name}": _TOKENS for name in ("max_source_length", "max_target_length", "max_length", "block_size")},
    "data.masked_share": Bound(0, 1, above=True, below=True, words="must be between 0 and 1"),
    **dict.fromkeys(("batches.max_tokens", "batches.max_sentences", "evaluation.sentences"), COUNT),
    **dict.fromkeys(("averaging.last", "averaging.best"), MILLION),
    "averaging.ema": Bound(0, 1, above=True, below=True, words="must be between 0 and 1, such as 0.999"),
    "evaluation.num_beams": GENERATION["num_beams"],
    "early_stopping.patience": COUNT,
    "early_stopping.threshold": Bound(0, math.inf),
    "stop_on.loss_over_median": Bound(1, math.inf, above=True, words="must be above 1, or null for never"),
    "stop_on.updates": COUNT,
    "adapter.r": Bound(1, 100_000),
    "adapter.alpha": MILLION,
    "adapter.dropout": SHARE_BELOW_ONE,
    "card.watts": Bound(0, math.inf, above=True, below=True, words="must be a number above 0"),
    "card.grams_co2_per_kwh": Bound(0, math.inf, below=True, words="must be a number of at least 0"),
}
"""Of the recipe's own fields."""


def check_bounds(values: Mapping[str, Any], bounds: Mapping[str, Bound], prefix: str = "") -> None:
    """Refuse numbers that lie outside of their bounds; other values are left to others.

    Raises:
        RecipeError: naming the field, its value and the bound.
    """
    for name, value in values.items():
        if name not in bounds or isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        if refusal := bounds[name].refusal(value):
            number = f"{value:.3g}" if isinstance(value, int) and abs(value) > 10**15 else value
            raise RecipeError(f"{prefix}{name}={number} {refusal}.")
