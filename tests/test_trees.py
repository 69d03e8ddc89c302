"""Bracketed trees: what is read, written and rebuilt, and how they are scored."""

import gzip
from pathlib import Path

import pytest

from vanilla_transformer.data.trees import TreeError, linearize, read_tree, rebuild
from vanilla_transformer.scoring.brackets import labelled_brackets, score_trees

pytest.importorskip("nltk")

LINE = "( (S (NP-SBJ=1 (NNP John) (NP (-NONE- *T*-1))) (VP (VBZ gives) (PRT (RP up))) (. .)))"
SAMPLE = Path(__file__).parents[2] / "shared" / "data" / "treebank_sample" / "trees.txt.gz"


def test_a_tree_is_read_without_what_is_empty_and_without_functions():
    words, brackets = linearize(read_tree(LINE))
    assert words == ["John", "gives", "up", "."]
    assert brackets == ["(S", "(NP", "XX", ")NP", "(VP", "XX", "(PRT", "XX", ")PRT", ")VP", "XX", ")S"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "not a bracketed tree"),
        ("(S (NP (NNP John))", "not a bracketed tree"),
        ("(S (NP (NNP John)) (VP (VBZ sleeps))) (S", "not a bracketed tree"),
        ("(S (NP John sleeps))", "no tag of their own"),
        ("(S ( (NNP John)) (VP (VBZ sleeps)))", "no label"),
        ("(S (NP (-NONE- *)))", "no words"),
        ("(NNP John)", "no bracket around"),
        ("(A " * 600 + "x" + ")" * 600, "600 deep"),
        ("(S " + "x" * 1_000_001 + ")", "characters"),
    ],
)
def test_what_is_not_a_tree_is_refused_with_the_reason(line, reason):
    with pytest.raises(TreeError, match=reason):
        read_tree(line)


def test_a_deep_tree_is_read_written_and_rebuilt():
    words, brackets = linearize(read_tree("(A " * 198 + "(NN x)" + ")" * 198))
    tree, whole = rebuild(words, brackets)
    assert whole and tree.height() == 200 and score_trees([tree], [tree]).complete == 1


@pytest.mark.parametrize(
    ("written", "rebuilt", "well_formed"),
    [
        ("(S (NP XX )NP (VP XX )VP )S", "(S (NP XX )NP (VP XX )VP )S", True),
        ("(S (NP XX (VP XX )VP )S", "(S (NP XX (VP XX )VP )NP )S", False),  # NP is closed by S
        ("(S (NP XX )NP (VP XX", "(S (NP XX )NP (VP XX )VP )S", False),
        ("(S (NP XX )NP )S", "(S (NP XX )NP XX )S", False),
        ("(S (NP XX )NP (VP XX XX )VP )S", "(S (NP XX )NP (VP XX )VP )S", False),
        ("(S (NP XX )NP (ADVP )ADVP (VP XX )VP )S", "(S (NP XX )NP (VP XX )VP )S", False),
        ("(NP XX )NP (VP XX )VP", "(S (NP XX )NP (VP XX )VP )S", False),
        ("(S XX )VP XX )S ) what", "(S XX XX )S", False),
        ("", "(S XX XX )S", False),
        ("XX", "(S XX XX )S", False),
    ],
)
def test_what_a_model_writes_becomes_a_tree_over_the_words(written, rebuilt, well_formed):
    tree, whole = rebuild(["John", "sleeps"], written.split())
    assert linearize(tree) == (["John", "sleeps"], rebuilt.split())
    assert whole is well_formed


def test_scores_are_those_worked_out_by_hand():
    # from the README of evalb: punctuation out of the way, tags are no brackets
    gold = read_tree("(S (NP (DT the) (NN dog)) (VP (VBD ran) (ADVP (RB home))) (. .))")
    tree, _ = rebuild(
        gold.leaves(), ["(S", "(NP", "XX", "XX", ")NP", "(VP", "XX", ")VP", "(PRT", "XX", ")PRT", "XX", ")S"]
    )
    assert labelled_brackets(gold) == {("S", 0, 4): 1, ("NP", 0, 2): 1, ("VP", 2, 4): 1, ("ADVP", 3, 4): 1}
    score = score_trees([tree], [gold])
    assert (score.matched, score.gold, score.predicted, score.complete) == (3, 4, 4, 0)
    assert score.recall == score.precision == score.f1 == 75.0


def test_a_bracket_that_stands_twice_is_found_twice_or_half_found():
    gold = read_tree("(S (S (VP (VB go))))")
    once, _ = rebuild(["go"], ["(S", "(VP", "XX", ")VP", ")S"])
    score = score_trees([once], [gold])
    assert (score.matched, score.gold, score.predicted) == (2, 3, 2)


def test_punctuation_does_not_matter_wherever_it_is_attached():
    gold = read_tree("(S (NP (NN dog)) (, ,) (VP (VBD ran)) (. .))")
    tree, _ = rebuild(gold.leaves(), ["(S", "(NP", "XX", "XX", ")NP", "(VP", "XX", "XX", ")VP", ")S"])
    assert score_trees([tree], [gold]).complete == 1


def test_trees_over_other_words_are_refused():
    first, second = read_tree("(S (NN a))"), read_tree("(S (NN b))")
    with pytest.raises(ValueError, match="tree 1 is over other words"):
        score_trees([first], [second])
    with pytest.raises(ValueError, match="1 trees cannot be compared with 2"):
        score_trees([first], [first, first])


@pytest.mark.skipif(not SAMPLE.exists(), reason="the treebank sample is not here")
def test_every_tree_of_the_treebank_sample_comes_back():
    with gzip.open(SAMPLE, "rt", encoding="utf-8") as lines:
        trees = [read_tree(line) for line in lines]
    assert len(trees) == 3914
    rebuilt = [rebuild(*linearize(tree)) for tree in trees]
    assert all(whole for _, whole in rebuilt)
    score = score_trees([tree for tree, _ in rebuilt], trees)
    assert score.f1 == 100 and score.complete == 3914
