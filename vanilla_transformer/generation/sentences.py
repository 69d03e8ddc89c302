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


def split_sentences(text: str) -> list[tuple[str, str]]:
    """Sentences, each after the white space before it: `"".join` of all is the text but for white space at its end.

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


def texts_within(text: str, fits: Callable[[str], bool], *, strict: bool = True) -> list[tuple[str, str]]:
    """Return as few texts as whole sentences give, each of which `fits`, after the white space before it.

    Args:
        strict: False lets a sentence that does not fit stand by itself.

    Raises:
        ValueError: with the sentence, where one alone does not fit.
    """
    texts: list[tuple[str, str]] = []
    for gap, sentence in split_sentences(text):
        if texts and fits(longer := texts[-1][1] + gap + sentence):
            texts[-1] = (texts[-1][0], longer)
        elif not strict or fits(sentence):
            texts.append((gap, sentence))
        else:
            raise ValueError(sentence)
    return texts
