"""BLEU and chrF of generated text, with the signatures that make them comparable.

Scores come from sacrebleu, which needs no network.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from sacrebleu.metrics import BLEU, CHRF
from transformers import EvalPrediction, PreTrainedTokenizerBase

__all__ = ["TextScores", "decode_ids", "GenerationMetrics", "score_texts"]


@dataclass(frozen=True)
class TextScores:
    """Scores of a set of texts against one reference each; BLEU and chrF from 0 to 100, exact match from 0 to 1."""

    bleu: float
    chrf: float
    exact_match: float
    sentences: int
    bleu_signature: str
    chrf_signature: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def score_texts(
    hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "13a", *, lowercase: bool = False
) -> TextScores:
    """Compare detokenised texts.

    Args:
        hypotheses, references: texts, one to one.
        tokenize: sacrebleu's tokenizer; "none" for text that is tokenised already, "zh" or "ja-mecab" where needed.
        lowercase: take no notice of case; the signatures say so.

    Raises:
        ValueError: for unequal or empty lists.
    """
    if len(hypotheses) != len(references):
        raise ValueError(
            f"there are {len(hypotheses)} outputs for {len(references)} references; they must be as many."
        )
    if not references:
        raise ValueError("there is no text to score.")
    # force: tokenised input is not a mistake where the caller asks for tokenize="none"
    bleu, chrf = BLEU(tokenize=tokenize, lowercase=lowercase, force=True), CHRF(lowercase=lowercase)
    bleu_score = bleu.corpus_score(hypotheses, [references]).score
    chrf_score = chrf.corpus_score(hypotheses, [references]).score
    if lowercase:
        hypotheses, references = [h.lower() for h in hypotheses], [r.lower() for r in references]
    matches = sum(h == r for h, r in zip(hypotheses, references, strict=True))
    return TextScores(
        bleu=round(bleu_score, 2),
        chrf=round(chrf_score, 2),
        exact_match=round(matches / len(references), 4),
        sentences=len(references),
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
    )


def decode_ids(ids: np.ndarray, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Texts of (B, T) ids in which -100 stands for padding, as `Trainer` joins batches of unequal length."""
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
        return {"bleu": scores.bleu, "chrf": scores.chrf, "exact_match": scores.exact_match}
