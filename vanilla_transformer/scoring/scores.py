"""BLEU, chrF, TER, exact match and error rates of texts, with signatures, confidence intervals and significance.

Scores, bootstrap resampling and the paired test are sacrebleu's, which needs no network.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest

from vanilla_transformer.utils.names import did_you_mean

from .error_rates import CharacterErrorRate, ExactMatch, WordErrorRate

__all__ = [
    "METRICS",
    "RESAMPLES",
    "MetricScore",
    "TextScores",
    "check_metrics",
    "check_resamples",
    "check_tokenizer",
    "compare_systems",
    "score_texts",
]

METRICS = ("bleu", "chrf", "ter", "exact_match", "wer", "cer")
"""BLEU, chrF and TER are from 0 to 100, exact match, word and character error rate from 0 to 1, as is usual for each."""

DIGITS = {"bleu": 2, "chrf": 2, "ter": 2, "exact_match": 4, "wer": 4, "cer": 4}

LARGEST = {"bleu": 100.0, "chrf": 100.0, "exact_match": 1.0}
"""Error rates have no bound: more can be written than the references hold."""

RESAMPLES = 1000
"""Bootstrap resamples, as in sacrebleu."""

# sacrebleu draws all resamples at once: 80 bytes each for every text (chrF's 18 numbers, and the text's index)
MOST_RESAMPLED_TEXTS = 25_000_000


@dataclass(frozen=True)
class MetricScore:
    """One score of a system.

    Attributes:
        value: the score of all texts.
        signature: what makes it comparable, as sacrebleu writes it.
        interval: the 95 % confidence interval, where resamples were drawn.
        p_value: of the difference to the first system by the paired bootstrap test; None for the first one.
    """

    value: float
    signature: str
    interval: tuple[float, float] | None = None
    p_value: float | None = None


@dataclass(frozen=True)
class TextScores:
    """The scores of one system's texts, by their names in `METRICS`; `scores["bleu"]` is the value alone."""

    sentences: int
    metrics: Mapping[str, MetricScore]
    name: str = ""

    def __getitem__(self, metric: str) -> float:
        return self.metrics[metric].value

    def to_dict(self) -> dict[str, Any]:
        """Return values, then the number of sentences, then what else is known of each score, for JSON."""
        values: dict[str, Any] = {name: score.value for name, score in self.metrics.items()}
        values["sentences"] = self.sentences
        for name, score in self.metrics.items():
            details = {"signature": score.signature, "interval": score.interval, "p_value": score.p_value}
            for detail, value in details.items():
                if value is not None:
                    values[f"{name}_{detail}"] = list(value) if isinstance(value, tuple) else value
        return values


def score_texts(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    tokenize: str = "13a",
    *,
    lowercase: bool = False,
    metrics: Sequence[str] = ("bleu", "chrf", "exact_match"),
    resamples: int = 0,
) -> TextScores:
    """Score the texts of one system.

    Args:
        hypotheses: detokenized texts.
        references: as many texts, or several lists of as many.
        tokenize: sacrebleu's tokenizer for BLEU; "none" for text that is tokenized already, "zh" or "ja-mecab" where
            needed.
        lowercase: compare without regard to case; the signatures say so.
        metrics: of `METRICS`.
        resamples: bootstrap resamples for confidence intervals; 0 for none.

    Raises:
        ValueError: for unequal or empty lists, an unknown tokenizer or metric.
    """
    (scores,) = compare_systems(
        {"": hypotheses}, references, tokenize, lowercase=lowercase, metrics=metrics, resamples=resamples
    )
    return scores


def compare_systems(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[str] | Sequence[Sequence[str]],
    tokenize: str = "13a",
    *,
    lowercase: bool = False,
    metrics: Sequence[str] = METRICS,
    resamples: int = RESAMPLES,
) -> list[TextScores]:
    """Score the texts of several systems, the first of which is the baseline that the others are compared with.

    The p-value of a difference is that of sacrebleu's paired bootstrap test (Koehn 2004). Without `resamples` there are
    neither intervals nor p-values. The other arguments and errors are those of `score_texts`.
    """
    if references and isinstance(references[0], str):
        references = [references]  # type: ignore[list-item]
    reference_lists: list[Sequence[str]] = [list(texts) for texts in references]
    _check_lengths(systems, reference_lists)
    check_resamples(resamples, len(reference_lists[0]))
    made = _metrics(metrics, tokenize, lowercase, reference_lists)
    if resamples:
        return _with_bootstrap(systems, made, resamples)
    results = []
    for name, hypotheses in systems.items():
        scores = {}
        for metric_name, metric in made.items():
            value = round(metric.corpus_score(list(hypotheses), None).score, DIGITS[metric_name])
            scores[metric_name] = MetricScore(value, str(metric.get_signature()))
        results.append(TextScores(len(hypotheses), scores, name))
    return results


def _with_bootstrap(
    systems: Mapping[str, Sequence[str]], metrics: Mapping[str, Metric], resamples: int
) -> list[TextScores]:
    named: list[tuple[str, Sequence[str]]] = [(name, list(texts)) for name, texts in systems.items()]
    # Without references, the test takes those that the metrics hold.
    signatures, table = PairedTest(named, metrics, None, test_type="bs", n_samples=resamples)()
    results: list[dict[str, MetricScore]] = [{} for _ in named]
    for metric, title in zip(metrics, signatures, strict=True):  # sacrebleu's names of the metrics, in the same order
        for number, found in enumerate(table[title]):
            score = _metric_score(metric, found, str(signatures[title]))
            if score.p_value is not None and found.score == table[title][0].score:  # type: ignore[union-attr]
                # Of no difference at all sacrebleu says 1 / (resamples + 1), as if it were the most certain one.
                score = replace(score, p_value=1.0)
            results[number][metric] = score
    return [TextScores(len(texts), scores, name) for (name, texts), scores in zip(named, results, strict=True)]


def _metric_score(metric: str, found: Any, signature: str) -> MetricScore:
    digits, most = DIGITS[metric], LARGEST.get(metric, math.inf)
    low, high = max(found.mean - found.ci, 0.0), min(found.mean + found.ci, most)
    interval = (round(float(low), digits), round(float(high), digits))
    p_value = None if found.p_value is None else round(float(found.p_value), 4)
    return MetricScore(round(float(found.score), digits), signature, interval, p_value)


def _metrics(
    names: Sequence[str], tokenize: str, lowercase: bool, references: Sequence[Sequence[str]]
) -> dict[str, Metric]:
    check_metrics(names)
    check_tokenizer(tokenize)
    make: dict[str, Callable[[], Metric]] = {
        # force: tokenized input is not a mistake where the caller asks for tokenize="none"
        "bleu": lambda: BLEU(tokenize=tokenize, lowercase=lowercase, force=True, references=references),
        "chrf": lambda: CHRF(lowercase=lowercase, references=references),
        "ter": lambda: TER(case_sensitive=not lowercase, references=references),
        "exact_match": lambda: ExactMatch(lowercase, references),
        "wer": lambda: WordErrorRate(lowercase, references),
        "cer": lambda: CharacterErrorRate(lowercase, references),
    }
    return {name: make[name]() for name in names}


def check_metrics(names: Sequence[str]) -> None:
    """Refuse names that are not in `METRICS`, with a ValueError."""
    for name in names:
        if name not in METRICS:
            raise ValueError(f"there is no metric {name!r}; {_suggest(name, METRICS)}")


def check_tokenizer(name: str) -> None:
    """Refuse, with a ValueError, a tokenizer that sacrebleu does not have or that lacks what it needs here."""
    if name not in BLEU.TOKENIZERS:
        raise ValueError(f"sacrebleu has no tokenizer {name!r}; {_suggest(name, BLEU.TOKENIZERS)}")
    try:
        BLEU(tokenize=name)
    except (RuntimeError, ImportError, OSError, AttributeError, SystemExit) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise ValueError(
            f"sacrebleu's tokenizer {name!r} cannot be used here ({reason or type(error).__name__}); install what it "
            "needs, or choose another one."
        ) from error


def check_resamples(resamples: int, texts: int) -> None:
    """Refuse, with a ValueError, more bootstrap resamples than fit into two gigabytes of memory."""
    if resamples < 0 or resamples == 1:
        raise ValueError(f"{resamples} bootstrap resamples give no interval; take 1000, or 0 for no intervals.")
    if resamples * texts > MOST_RESAMPLED_TEXTS:
        raise ValueError(
            f"{resamples:,} bootstrap resamples of {texts:,} texts take more than 2 GB of memory; take at most "
            f"{MOST_RESAMPLED_TEXTS // texts:,}, or 0 for no intervals."
        )


def _check_lengths(systems: Mapping[str, Sequence[str]], references: Sequence[Sequence[str]]) -> None:
    if not systems or not references or not references[0]:
        raise ValueError("there is no text to score.")
    for name, hypotheses in systems.items():
        of_system = f" of {name}" if name else ""
        for texts in references:
            if len(hypotheses) != len(texts):
                raise ValueError(
                    f"there are {len(hypotheses)} outputs{of_system} for {len(texts)} references; they must be as many."
                )


def _suggest(name: str, choices: Any) -> str:
    return did_you_mean(name, choices, otherwise=f"there are {', '.join(choices)}.")
