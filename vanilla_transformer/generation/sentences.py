"""Where long texts can be cut."""

import re
from collections.abc import Callable

__all__ = ["split_sentences", "texts_within"]

# A mark at the end of a sentence, with the quotes and brackets that close after it; where words stand apart, only before
# a space that no small letter follows ("e.g. this"). Ideographic marks, and lines, end a sentence by themselves.
END = re.compile(
    r"[.!?…]+[\"'”’»)\]]*(?=\s)(?!\s+[a-zß-ÿα-ωа-я])"
    r"|[。！？｡؟۔।॥]+[」』”’»)\]]*"
    r"|(?=\n)"
)

CLAUSE = re.compile(r".+?(?:[,;:](?=\s)|\s[–—-](?=\s)|[，；：、]|$)", re.DOTALL)
WORD = re.compile(r"\s*\S+")


def split_sentences(text: str) -> list[tuple[str, str]]:
    """Return sentences, each after the white space before it: `"".join` of all is the text but for white space at its end.

    By marks and line breaks alone, so an abbreviation before a capital ("Mr. Smith") counts as an end, too.
    """
    ends = [match.end() for match in END.finditer(text)]
    parts = [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]
    sentences: list[tuple[str, str]] = []
    gap = ""
    for part in parts:
        sentence = part.strip()
        gap += part[: len(part) - len(part.lstrip())]
        if sentence:
            sentences.append((gap, sentence))
            gap = part[len(part.rstrip()) :]
    return sentences


def texts_within(
    text: str, fits: Callable[[str], bool], *, on_cut: Callable[[str], None] | None = None
) -> list[tuple[str, str]]:
    """Return as few texts as whole sentences give, each of which `fits`, after the white space before it.

    Args:
        on_cut: is called with each sentence that alone does not fit; it is cut behind clauses, else words, else characters.

    Raises:
        ValueError: with the sentence, where one alone does not fit and there is no `on_cut`.
    """
    texts: list[tuple[str, str]] = []
    for gap, sentence in split_sentences(text):
        if texts and fits(longer := texts[-1][1] + gap + sentence):
            texts[-1] = (texts[-1][0], longer)
        elif fits(sentence):
            texts.append((gap, sentence))
        elif on_cut is None:
            raise ValueError(sentence)
        else:
            on_cut(sentence)
            (_, first), *others = _cut(sentence, fits)
            texts += [(gap, first), *others]
    return texts


def _cut(sentence: str, fits: Callable[[str], bool]) -> list[tuple[str, str]]:
    """Return the parts of a sentence that fit, as few as its clauses give, of a long clause its words, of a long word halves."""
    for end in (CLAUSE, WORD):
        parts: list[tuple[str, str]] = []
        pieces = [piece for piece in end.findall(sentence) if piece.strip()]
        if len(pieces) == 1:
            continue
        gap = ""
        for piece in pieces:
            stripped = piece.strip()
            gap += piece[: len(piece) - len(piece.lstrip())]
            if parts and fits(longer := parts[-1][1] + gap + stripped):
                parts[-1] = (parts[-1][0], longer)
            else:
                (_, first), *others = [("", stripped)] if fits(stripped) else _cut(stripped, fits)
                parts += [(gap, first), *others]
            gap = piece[len(piece.rstrip()) :]
        return parts
    if len(sentence) == 1:  # nothing fits
        return [("", sentence)]
    half = len(sentence) // 2
    halves = sentence[:half], sentence[half:]
    return [part for each in halves for part in ([("", each)] if fits(each) else _cut(each, fits))]
