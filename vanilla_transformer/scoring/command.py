"""Scoring of files of texts, as the commands `score` and `evaluate` do it; everything is checked before any work."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from .comet import check_comet, comet_scores
from .files import read_aligned, system_names
from .scores import (
    METRICS,
    MOST_RESAMPLED_TEXTS,
    RESAMPLES,
    MetricScore,
    TextScores,
    check_metrics,
    check_resamples,
    check_tokenizer,
    compare_systems,
)

__all__ = ["ScoringOptions", "read_parallel", "score_files", "score_outputs"]


@dataclass(frozen=True)
class ScoringOptions:
    """What is scored, and how.

    Attributes:
        tokenize, lowercase: as in `score_texts`.
        metrics: of `METRICS`; None for all.
        resamples: bootstrap resamples; None for 1,000, or for none where these do not fit into memory.
        comet: a model of COMET, or None.
    """

    tokenize: str = "13a"
    lowercase: bool = False
    metrics: Sequence[str] | None = None
    resamples: int | None = None
    comet: str | None = None

    def check(self, references: int, has_source: bool) -> None:
        """Refuse what cannot be scored, given the number of references."""
        check_tokenizer(self.tokenize)
        check_metrics(self.metrics or METRICS)
        if self.comet is not None:
            check_comet(references, has_source)

    def with_resamples(self, texts: int, log: Callable[[str], None]) -> "ScoringOptions":
        """Return the options with a number of resamples that fits so many texts."""
        if self.resamples is not None:
            check_resamples(self.resamples, texts)
            return self
        fits = RESAMPLES * texts <= MOST_RESAMPLED_TEXTS
        if not fits:
            log(
                f"no confidence intervals: {RESAMPLES:,} resamples of {texts:,} texts need too much memory (--resamples)."
            )
        return replace(self, resamples=RESAMPLES if fits else 0)


def score_files(
    hypotheses: Sequence[str],
    references: Sequence[str],
    source: str | None,
    options: ScoringOptions,
    log: Callable[[str], None],
) -> list[TextScores]:
    """Score one or more files of outputs against one or more files of references.

    Raises:
        ValueError, FileNotFoundError, ImportError: for options and files that do not fit.
    """
    options.check(len(references), source is not None)
    names = system_names(hypotheses)
    sources = [] if source is None else [source]
    first, *others = read_aligned([*references, *hypotheses, *sources])
    texts = [first, *others]
    options = options.with_resamples(len(first), log)
    count = len(references)
    systems = dict(zip(names, texts[count : count + len(hypotheses)], strict=True))
    return score_outputs(systems, texts[:count], texts[-1] if sources else None, options)


def read_parallel(
    source: str, references: Sequence[str], options: ScoringOptions, log: Callable[[str], None]
) -> tuple[list[str], list[list[str]], ScoringOptions]:
    """Return the sources, the references, and the options with a number of resamples; all lines, also empty ones."""
    options.check(len(references), True)
    sources, *texts = read_aligned([source, *references])
    empty = sum(not all(text.strip() for text in row) for row in zip(sources, *texts, strict=True))
    log(f"{len(sources):,} lines" + (f", {empty:,} of them with an empty side" if empty else ""))
    return sources, texts, options.with_resamples(len(sources), log)


def score_outputs(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[Sequence[str]],
    sources: Sequence[str] | None,
    options: ScoringOptions,
) -> list[TextScores]:
    """Score the outputs of systems that have been read, by options that have been checked."""
    scores = compare_systems(
        systems,
        references,
        options.tokenize,
        lowercase=options.lowercase,
        metrics=options.metrics or METRICS,
        resamples=RESAMPLES if options.resamples is None else options.resamples,
    )
    if options.comet is None:
        return scores
    by_comet = comet_scores(options.comet, systems, references[0], sources or [])
    return [
        replace(system, metrics={**system.metrics, "comet": MetricScore(by_comet[system.name], options.comet)})
        for system in scores
    ]
