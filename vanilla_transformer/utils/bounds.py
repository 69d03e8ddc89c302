"""Between which numbers values must lie, and the bounds of generation for recipes, commands and calls alike."""

import math
from dataclasses import dataclass

__all__ = ["GENERATION", "MANY", "Bound"]

MANY = 1_000_000_000


@dataclass(frozen=True)
class Bound:
    """What numbers a field may have.

    Attributes:
        low, high: the smallest and the largest.
        above, below: whether these themselves are left out.
        remedy: what to do instead of a number that is too large.
        words: what is said of any other number, in place of naming the bound that it is beyond.
    """

    low: float = 0
    high: float = MANY
    above: bool = False
    below: bool = False
    remedy: str = ""
    words: str = ""

    def refusal(self, value: float) -> str | None:
        """Return what the value must be, where it is not."""
        if value < self.low or (self.above and value == self.low):
            if self.words:
                return self.words
            if self.above:
                return f"must be above {self.low:,}"
            return "must not be negative" if self.low == 0 else f"must be at least {self.low:,}"
        if value > self.high or (self.below and value == self.high):
            limit = f"{self.high:,}" if self.high >= 1 or not self.high else f"{self.high}"
            return self.words or f"must be {'below' if self.below else 'at most'} {limit}{self.remedy}"
        return None

    def admits(self, value: object) -> bool:
        """Tell whether a value is a number within the bounds; NaN is not."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
        return is_number and self.refusal(value) is None  # type: ignore[arg-type]

    def describe(self) -> str:
        """Return the numbers in words, to follow "must be"."""
        if self.above:
            return f"above {self.low:,} and at most {self.high:,}"
        return f"a number from {self.low:,} to {self.high:,}"


COUNT, AT_LEAST_ZERO, ABOVE_ZERO = Bound(1), Bound(0), Bound(0, above=True)
SHARE, SHARE_ABOVE_ZERO, SHARE_BELOW_ONE = Bound(0, 1), Bound(0, 1, above=True), Bound(0, 1, below=True)
MILLION, FROM_ONE_TO_MILLION = Bound(0, 1_000_000), Bound(1, 1_000_000)
_FACTOR, _BEAMS = Bound(0, 1000, above=True), Bound(1, 10_000)

GENERATION: dict[str, Bound] = {
    **dict.fromkeys(("num_beams", "num_beam_groups", "num_return_sequences"), _BEAMS),
    # beyond it a power of the length of an ordinary text is not a finite number, which ends generation in an error
    "length_penalty": Bound(-100, 100),
    "temperature": Bound(0, 1_000_000, above=True),
    "max_time": ABOVE_ZERO,
    "max_length_over_source": Bound(-1_000_000, 1_000_000),
    **dict.fromkeys(("max_length", "max_new_tokens", "max_cache_len"), FROM_ONE_TO_MILLION),
    **dict.fromkeys(("min_length", "min_new_tokens"), MILLION),
    "top_k": AT_LEAST_ZERO,
    **dict.fromkeys(("top_p", "top_h", "typical_p"), SHARE_ABOVE_ZERO),
    **dict.fromkeys(("min_p", "penalty_alpha", "assistant_confidence_threshold"), SHARE),
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff"), SHARE_BELOW_ONE),
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty", "guidance_scale"), _FACTOR),
    "diversity_penalty": Bound(0, 1000),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), MILLION),
    **dict.fromkeys(
        ("max_matching_ngram_size", "prompt_lookup_num_tokens", "num_assistant_tokens"), FROM_ONE_TO_MILLION
    ),
    **dict.fromkeys(("assistant_early_exit", "assistant_lookbehind", "target_lookbehind"), FROM_ONE_TO_MILLION),
    "prefill_chunk_size": COUNT,
    **dict.fromkeys(
        (
            *("pad_token_id", "bos_token_id", "eos_token_id"),
            *("forced_bos_token_id", "forced_eos_token_id", "decoder_start_token_id"),
        ),
        Bound(0, 2**31 - 1),
    ),
}
"""Of the numbers of generation."""
