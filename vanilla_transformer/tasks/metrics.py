"""Scores of the text that a model generates during training."""

import numpy as np
from transformers import EvalPrediction, PreTrainedTokenizerBase

from vanilla_transformer.scoring import score_texts

__all__ = ["GenerationMetrics", "decode_ids"]


def decode_ids(ids: np.ndarray, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return the texts of (B, T) ids in which -100 stands for padding, as `Trainer` joins batches of unequal length."""
    return tokenizer.batch_decode(np.where(ids < 0, tokenizer.pad_token_id, ids), skip_special_tokens=True)


class GenerationMetrics:
    """`compute_metrics` for `Seq2SeqTrainer` with `predict_with_generate`: scores of the generated text.

    Args:
        tokenizer: of the target side.
        count: size of the evaluated data; with several processes the last batch is filled up beyond it.
        tokenize: sacrebleu's tokenizer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, count: int, tokenize: str = "13a"):
        self.tokenizer = tokenizer
        self.count = count
        self.tokenize = tokenize

    def __call__(self, prediction: EvalPrediction) -> dict[str, float]:
        predicted = prediction.predictions[0] if isinstance(prediction.predictions, tuple) else prediction.predictions
        hypotheses = decode_ids(predicted, self.tokenizer)[: self.count]
        references = decode_ids(prediction.label_ids, self.tokenizer)[: self.count]
        scores = score_texts(hypotheses, references, self.tokenize)
        return {metric: scores[metric] for metric in ("bleu", "chrf", "exact_match")}
