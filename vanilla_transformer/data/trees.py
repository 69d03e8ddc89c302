# Copyright 2026 The vanilla_transformer authors. Licensed under the Apache License, Version 2.0.
"""Constituency trees as text to be written by a model: sections 6.3 of the paper, and 3 of Vinyals et al. 2015.

A tree becomes its labelled brackets in depth-first order, with one `XX` for each word: "John sleeps ." is
`(S (NP XX )NP (VP XX )VP XX )S`. The words are what the model reads, so they need not be written, and part-of-speech tags
are not predicted (Vinyals et al. found them to harm). Trees are NLTK's.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vanilla_transformer.utils.extras import needs

if TYPE_CHECKING:
    from nltk import Tree

__all__ = ["WORD", "TreeError", "linearize", "rebuild", "read_tree"]

WORD = "XX"
"""Stands in a linearised tree for a word of the sentence."""

_EMPTY = "-NONE-"
_LONGEST = 1_000_000
_DEEPEST = 200  # brackets; each is a call or two on Python's stack


class TreeError(ValueError):
    """A line that is not a bracketed tree; the message says what is the matter."""


def read_tree(line: str) -> "Tree":
    """Return the tree of one bracketed line, `(S (NP (NNP John)) (VP (VBZ sleeps)) (. .))`, as parsers are scored on it.

    Empty elements (`-NONE-`) and what is empty without them are left out, grammatical functions and indices are cut off
    labels (`NP-SBJ=2` is `NP`), and a bracket without a label around the whole is taken off.

    Raises:
        TreeError: for text that is not one tree with a tag for each word, or a tree without words.
        ImportError: where NLTK is not installed.
    """
    with needs("constituency parsing"):
        from nltk import Tree

    if len(line) > _LONGEST:
        raise TreeError(f"it has {len(line):,} characters, above {_LONGEST:,}")
    depth = deepest = 0
    for character in line:
        depth += (character == "(") - (character == ")")
        deepest = max(deepest, depth)
    if deepest > _DEEPEST:
        raise TreeError(f"brackets {deepest} deep are more than {_DEEPEST}")
    try:
        tree = Tree.fromstring(line)
    except ValueError as error:
        raise TreeError("it is not a bracketed tree such as (S (NP (NNP John)) (VP (VBZ sleeps)))") from error
    while not tree.label() and len(tree) == 1 and isinstance(tree[0], Tree):
        tree = tree[0]
    for node in tree.subtrees():
        if not node.label():
            raise TreeError("a bracket inside it has no label")
        if any(isinstance(child, str) for child in node) and len(node) > 1:
            raise TreeError(f"the words of {node.label()} have no tag of their own")
    cleaned = _without_empty(tree)
    if cleaned is None:
        raise TreeError("it has no words")
    if cleaned.height() < 3:  # a tag and its word alone
        raise TreeError("it has no bracket around its words")
    return cleaned


def _without_empty(node: "Tree") -> "Tree | None":
    """Return a copy without empty elements and functions, `None` where nothing is left."""
    from nltk import Tree

    if isinstance(node[0], str) if len(node) else False:
        return None if node.label() == _EMPTY else Tree(node.label(), list(node))
    children = [child for child in map(_without_empty, node) if child is not None]
    return Tree(_category(node.label()), children) if children else None


def _category(label: str) -> str:
    """Return a label without its functions and index: what stands before the first `-`, `=` or `|`."""
    for sign in "-=|":
        if not label.startswith(sign):
            label = label.partition(sign)[0]
    return label


def linearize(tree: "Tree") -> tuple[list[str], list[str]]:
    """Return the words of a tree, and its brackets with `XX` for each of them."""
    brackets: list[str] = []

    def write(node: "Tree") -> None:
        if isinstance(node[0], str):
            brackets.append(WORD)
            return
        brackets.append(f"({node.label()}")
        for child in node:
            write(child)
        brackets.append(f"){node.label()}")

    write(tree)
    return tree.leaves(), brackets


def rebuild(words: Sequence[str], brackets: Sequence[str]) -> tuple["Tree", bool]:
    """Return the tree that a model wrote over `words`, and whether it was well-formed.

    It is when each bracket is closed by one of its own label, one bracket holds everything, none is empty, and there are as
    many `XX` as words. What is not is mended, so that it can be scored and drawn: a bracket that closes nothing is left
    out, one that closes an outer bracket closes those inside it, as the end closes all, missing words go to the end,
    surplus ones and empty brackets are dropped, and several roots are put under an `S`.
    """
    from nltk import Tree

    root, well_formed = Tree("", []), True
    stack, used = [root], 0
    for token in brackets:
        if token == WORD:
            if used == len(words):
                well_formed = False
                continue
            stack[-1].append(Tree(WORD, [words[used]]))
            used += 1
        elif token.startswith("(") and len(token) > 1:
            node = Tree(token[1:], [])
            stack[-1].append(node)
            stack.append(node)
        elif token.startswith(")") and token[1:] in {node.label() for node in stack[1:]}:
            well_formed &= stack[-1].label() == token[1:]
            while stack.pop().label() != token[1:]:
                pass
        else:
            well_formed = False
    well_formed &= len(stack) == 1 and used == len(words) and len(root) == 1
    within = root[-1] if len(root) and root[-1].label() != WORD else root
    within.extend(Tree(WORD, [word]) for word in words[used:])
    well_formed &= _drop_empty(root)
    if len(root) == 1 and root[0].label() != WORD:
        return root[0], well_formed
    return Tree("S", list(root)), False


def _drop_empty(node: "Tree") -> bool:
    """Drop the brackets below a node that hold no word; tell whether there were none."""
    whole = True
    for child in list(node):
        if isinstance(child, str):
            continue
        whole &= _drop_empty(child)
        if not len(child):
            node.remove(child)
            whole = False
    return whole
