"""Scores of texts against references, apart from the models that wrote them.

`score_texts` scores the outputs of one system, `compare_systems` those of several and says which differences are
significant; `vanilla-transformer score` does the same from files.
"""

from .scores import METRICS, MetricScore, TextScores, check_tokenizer, compare_systems, score_texts

__all__ = ["METRICS", "MetricScore", "TextScores", "check_tokenizer", "compare_systems", "score_texts"]
