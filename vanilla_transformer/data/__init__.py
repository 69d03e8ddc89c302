"""From parallel text to batches: read (`sources`), tokenise (`preparation`), batch (`batching`).

Padding is left to transformers' `DataCollatorForSeq2Seq`.
"""

from vanilla_transformer.data.batching import TokenBudgetBatchSampler
from vanilla_transformer.data.preparation import iterate_texts, pair_lengths, tokenize_pairs
from vanilla_transformer.data.report import DataReport
from vanilla_transformer.data.sources import ParallelData, load_parallel

__all__ = [
    "DataReport",
    "ParallelData",
    "TokenBudgetBatchSampler",
    "iterate_texts",
    "load_parallel",
    "pair_lengths",
    "tokenize_pairs",
]
