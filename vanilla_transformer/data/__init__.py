"""From parallel text to batches: read (`sources`), tokenise (`preparation`), batch (`batching`, or `streaming` where
rows are not at hand).

Padding is left to transformers' `DataCollatorForSeq2Seq`; `packing` has batches without.
"""

from vanilla_transformer.data.batching import TokenBudgetBatchSampler
from vanilla_transformer.data.preparation import iterate_texts, pair_lengths, tokenize_pairs
from vanilla_transformer.data.report import DataReport
from vanilla_transformer.data.sources import ParallelData, load_parallel
from vanilla_transformer.data.streaming import TokenBudgetStream

__all__ = [
    "DataReport",
    "ParallelData",
    "TokenBudgetBatchSampler",
    "TokenBudgetStream",
    "iterate_texts",
    "load_parallel",
    "pair_lengths",
    "tokenize_pairs",
]
