"""From parallel text to batches: read (`sources`), tokenise (`preparation`), batch (`batching`).

Padding is left to transformers' `DataCollatorForSeq2Seq`.
"""

from vanilla_transformer.data.batching import TokenBudgetBatchSampler

__all__ = ["TokenBudgetBatchSampler"]
