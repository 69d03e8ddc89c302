"""What the commands `score` and `evaluate` print."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from .scores import MetricScore, TextScores

__all__ = ["scores_table", "scores_to_json"]

TITLES = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER", "exact_match": "exact match", "wer": "WER", "cer": "CER"}
SHARES = ("exact_match", "wer", "cer")
LEVEL = 0.05
"""Differences of a smaller p-value are marked."""


def scores_to_json(scores: Sequence[TextScores], references: Sequence[str]) -> dict[str, Any]:
    """Return the scores of all systems, and what they were compared with."""
    return {
        "references": list(references),
        "baseline": scores[0].name,
        "systems": [{"name": system.name, **system.to_dict()} for system in scores],
    }


def scores_table(scores: Sequence[TextScores]) -> Table:
    """Return a row for each system; intervals as ±, significant differences to the first system with a star."""
    several = len(scores) > 1
    table = Table("system", caption=_caption(scores))
    metrics = list(scores[0].metrics)
    for metric in metrics:
        table.add_column(TITLES.get(metric, metric), justify="right")
    for system in scores:
        table.add_row(system.name, *(_cell(metric, system.metrics[metric], several) for metric in metrics))
    return table


def _cell(metric: str, score: MetricScore, several: bool) -> str:
    scale = 100 if metric in SHARES else 1
    unit = " %" if metric in SHARES else ""
    text = f"{score.value * scale:.2f}{unit}"
    if score.interval is not None:
        text += f"\n± {(score.interval[1] - score.interval[0]) / 2 * scale:.2f}"
    if several and score.p_value is not None:
        text += f"\np = {score.p_value:.4f}{'*' if score.p_value < LEVEL else ''}"
    return text


def _caption(scores: Sequence[TextScores]) -> str:
    parts = [f"{scores[0].sentences:,} sentences"]
    if any(score.interval is not None for score in scores[0].metrics.values()):
        parts.append("± 95 % confidence")
    if len(scores) > 1 and any(score.p_value is not None for score in scores[1].metrics.values()):
        parts.append(f"* differs from {scores[0].name} (paired bootstrap, p < {LEVEL})")
    return "; ".join(parts)
