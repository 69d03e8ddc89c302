"""From text to batches: read (`reader`), tokenise (`preparation`), batch (`batching`, or `streaming` where rows are not at
hand), pad or pack (`collators`).

Where a new format goes: `formats`, with the ends of its files' names in `config`; a new kind of row: `rows`.
"""

from vanilla_transformer.data.batching import TokenBudgetBatchSampler
from vanilla_transformer.data.config import ParallelData, TextData
from vanilla_transformer.data.preparation import iterate_texts, pair_lengths, tokenize_pairs
from vanilla_transformer.data.reader import load_labelled_texts, load_parallel, load_tagged_tokens, load_texts
from vanilla_transformer.data.report import DataReport
from vanilla_transformer.data.streaming import TokenBudgetStream

__all__ = [
    "DataReport",
    "ParallelData",
    "TextData",
    "TokenBudgetBatchSampler",
    "TokenBudgetStream",
    "iterate_texts",
    "load_labelled_texts",
    "load_parallel",
    "load_tagged_tokens",
    "load_texts",
    "pair_lengths",
    "tokenize_pairs",
]
