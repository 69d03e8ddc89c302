"""Between which numbers the values of a recipe must lie, so that none is refused, or runs without end, after hours of work."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vanilla_transformer.errors import RecipeError

__all__ = ["GENERATION", "RECIPE", "TRAINING", "Bound", "check_bounds", "machine_memory"]

MANY = 1_000_000_000


@dataclass(frozen=True)
class Bound:
    """What numbers a field may have.

    Attributes:
        low, high: the smallest and the largest.
        above, below: whether these themselves are left out.
        remedy: what to do instead of a number that is too large.
    """

    low: float = 0
    high: float = MANY
    above: bool = False
    below: bool = False
    remedy: str = ""

    def refusal(self, value: float) -> str | None:
        """Return what the value must be, where it is not."""
        if value < self.low or (self.above and value == self.low):
            if self.above:
                return f"must be above {self.low:,}"
            return "must not be negative" if self.low == 0 else f"must be at least {self.low:,}"
        if value > self.high or (self.below and value == self.high):
            limit = f"{self.high:,}" if self.high >= 1 or not self.high else f"{self.high}"
            return f"must be {'below' if self.below else 'at most'} {limit}{self.remedy}"
        return None


_COUNT = Bound(1)
_AT_LEAST_ZERO = Bound(0)
_ABOVE_ZERO = Bound(0, above=True)
_SHARE = Bound(0, 1)
_PART = Bound(0, 1, below=True)
_TOKEN = Bound(0, 2**31 - 1)

TRAINING: dict[str, Bound] = {
    "num_train_epochs": Bound(0, 1_000_000, remedy="; a run ends by training.max_steps or max_minutes as well"),
    "max_steps": Bound(-1),
    "learning_rate": Bound(0, 1000),
    "warmup_steps": _AT_LEAST_ZERO,
    "weight_decay": Bound(0, 1000),
    "adam_beta1": _PART,
    "adam_beta2": _PART,
    "adam_epsilon": _SHARE,
    "gradient_accumulation_steps": Bound(1, 1_000_000),
    "max_grad_norm": Bound(0, math.inf),
    "neftune_noise_alpha": Bound(0, 1000),
    "torch_empty_cache_steps": _COUNT,
    "logging_steps": _ABOVE_ZERO,
    "eval_steps": _ABOVE_ZERO,
    "eval_delay": _AT_LEAST_ZERO,
    "eval_accumulation_steps": _COUNT,
    "save_steps": _ABOVE_ZERO,
    "save_total_limit": Bound(1, 1_000_000),
    "per_device_eval_batch_size": Bound(1, 1_000_000),
    "data_seed": Bound(0, 2**32 - 1),
    "dataloader_num_workers": Bound(0, 256),
    "ddp_bucket_cap_mb": Bound(1, 100_000),
    "ddp_timeout": Bound(1, 10_000_000),
    "local_rank": Bound(-1, 100_000),
}
"""Of the numbers among the training arguments that a recipe may give."""

GENERATION: dict[str, Bound] = {
    "max_length": Bound(1, 1_000_000),
    "max_new_tokens": Bound(1, 1_000_000),
    "min_length": Bound(0, 1_000_000),
    "min_new_tokens": Bound(0, 1_000_000),
    "max_length_over_source": Bound(-1_000_000, 1_000_000),
    "max_time": _ABOVE_ZERO,
    "max_cache_len": Bound(1, 1_000_000),
    "num_beams": Bound(1, 1000),
    "num_beam_groups": Bound(1, 1000),
    "num_return_sequences": Bound(1, 1000),
    "temperature": Bound(0, 1000, above=True),
    "top_k": _AT_LEAST_ZERO,
    "top_p": Bound(0, 1, above=True),
    "min_p": _SHARE,
    "top_h": Bound(0, 1, above=True),
    "typical_p": Bound(0, 1, above=True),
    "epsilon_cutoff": _PART,
    "eta_cutoff": _PART,
    "repetition_penalty": Bound(0, 1000, above=True),
    "encoder_repetition_penalty": Bound(0, 1000, above=True),
    "length_penalty": Bound(-1000, 1000),
    "diversity_penalty": Bound(0, 1000),
    "penalty_alpha": _SHARE,
    "guidance_scale": Bound(0, 1000, above=True),
    "no_repeat_ngram_size": Bound(0, 1_000_000),
    "encoder_no_repeat_ngram_size": Bound(0, 1_000_000),
    "max_matching_ngram_size": Bound(1, 1_000_000),
    "prompt_lookup_num_tokens": Bound(1, 1_000_000),
    "num_assistant_tokens": Bound(1, 1_000_000),
    "assistant_confidence_threshold": _SHARE,
    "assistant_early_exit": Bound(1, 1_000_000),
    "assistant_lookbehind": Bound(1, 1_000_000),
    "target_lookbehind": Bound(1, 1_000_000),
    "prefill_chunk_size": _COUNT,
    "pad_token_id": _TOKEN,
    "bos_token_id": _TOKEN,
    "eos_token_id": _TOKEN,
    "forced_bos_token_id": _TOKEN,
    "forced_eos_token_id": _TOKEN,
    "decoder_start_token_id": _TOKEN,
}
"""Of the numbers of generation."""

RECIPE: dict[str, Bound] = {
    "seed": Bound(0, 2**32 - 1),
    "max_minutes": Bound(0, math.inf, above=True),
    "tokenizer.vocab_size": Bound(1, 2_000_000),
    "tokenizer.min_frequency": _AT_LEAST_ZERO,
    "data.max_source_length": Bound(1, 100_000_000),
    "data.max_target_length": Bound(1, 100_000_000),
    "data.max_length": Bound(1, 100_000_000),
    "data.block_size": Bound(1, 100_000_000),
    "batches.max_tokens": _COUNT,
    "batches.max_sentences": _COUNT,
    "averaging.last": Bound(0, 1_000_000),
    "averaging.best": Bound(0, 1_000_000),
    "evaluation.num_beams": Bound(1, 1000),
    "evaluation.sentences": _COUNT,
    "early_stopping.patience": _COUNT,
    "early_stopping.threshold": Bound(0, math.inf),
    "stop_on.updates": _COUNT,
    "adapter.r": Bound(1, 100_000),
    "adapter.alpha": Bound(0, 1_000_000),
    "adapter.dropout": _PART,
}
"""Of the recipe's own fields."""


def check_bounds(values: Mapping[str, Any], bounds: Mapping[str, Bound], prefix: str) -> None:
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


def machine_memory() -> int:
    """Return the bytes of memory that this machine, or the container on it, has."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    try:
        return min(memory, int(limit.read_text()))
    except (OSError, ValueError):  # no such file, or "max"
        return memory
