# Copyright 2026 The vanilla_transformer authors. Licensed under the Apache License, Version 2.0.
"""Labelled bracket scores of constituency trees (PARSEVAL), by the rules of `evalb` with its COLLINS.prm.

A bracket is a label with the first and the last of its words. Tags of words are none. Punctuation is taken out of the
sentence first, so that it matters not where it is attached; it is known by the word, since a model that reads words has no
tags. `ADVP` and `PRT` count as one label, and so does the outermost bracket as any other. Precision and recall are sums over
all sentences, not means.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nltk import Tree

__all__ = ["PUNCTUATION", "BracketScore", "labelled_brackets", "score_trees"]

PUNCTUATION = frozenset({",", ":", ";", "-", "--", "...", ".", "?", "!", "``", "`", "''"})
"""Words whose tag is one of the five that `evalb` deletes, in the Penn Treebank."""

_SAME_LABEL = {"PRT": "ADVP"}
_NO_BRACKET = frozenset({"TOP", "ROOT", "S1"})


@dataclass(frozen=True)
class BracketScore:
    """How well trees agree.

    Attributes:
        matched: brackets that stand in both.
        gold: brackets of the reference trees.
        predicted: brackets of the trees that are scored.
        complete: trees that agree in every bracket.
        trees: how many.
    """

    matched: int
    gold: int
    predicted: int
    complete: int
    trees: int

    @property
    def recall(self) -> float:
        """Return the percentage of the reference's brackets that were found."""
        return 100 * self.matched / self.gold if self.gold else 0.0

    @property
    def precision(self) -> float:
        """Return the percentage of the predicted brackets that are right."""
        return 100 * self.matched / self.predicted if self.predicted else 0.0

    @property
    def f1(self) -> float:
        """Return the harmonic mean of precision and recall, in percent."""
        return 200 * self.matched / (self.gold + self.predicted) if self.gold + self.predicted else 0.0


def labelled_brackets(tree: "Tree") -> Counter[tuple[str, int, int]]:
    """Return the brackets of a tree, each with how often it stands there: label, first word, word behind the last."""
    brackets: Counter[tuple[str, int, int]] = Counter()

    def visit(node: "Tree", start: int) -> int:
        """Count the brackets below; return the place behind the last word."""
        if isinstance(node[0], str):
            return start + (node[0] not in PUNCTUATION)
        end = start
        for child in node:
            end = visit(child, end)
        if end > start and node.label() not in _NO_BRACKET:
            brackets[_SAME_LABEL.get(node.label(), node.label()), start, end] += 1
        return end

    visit(tree, 0)
    return brackets


def score_trees(predicted: "Sequence[Tree]", gold: "Sequence[Tree]") -> BracketScore:
    """Compare trees with their references.

    Raises:
        ValueError: for different numbers of trees, or a pair over different words.
    """
    if len(predicted) != len(gold):
        raise ValueError(f"{len(predicted)} trees cannot be compared with {len(gold)} references; give one for each.")
    matched = of_gold = of_predicted = complete = 0
    for number, (tree, reference) in enumerate(zip(predicted, gold, strict=True), 1):
        if tree.leaves() != reference.leaves():
            raise ValueError(f"tree {number} is over other words than its reference.")
        found, right = labelled_brackets(tree), labelled_brackets(reference)
        common = (found & right).total()
        matched, of_gold, of_predicted = matched + common, of_gold + right.total(), of_predicted + found.total()
        complete += found == right
    return BracketScore(matched, of_gold, of_predicted, complete, len(gold))
