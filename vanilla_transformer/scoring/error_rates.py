"""Word and character error rate and exact match, as metrics of sacrebleu.

sacrebleu's `Metric` is the class to derive metrics from; what does gets its signatures, its bootstrap confidence intervals
and its paired tests.
"""

from collections.abc import Hashable, Sequence
from typing import Any, ClassVar

import numpy as np
from rapidfuzz.distance import Levenshtein
from sacrebleu.metrics.base import Metric, Score, Signature

__all__ = ["CharacterErrorRate", "ExactMatch", "WordErrorRate"]


class _UnitsSignature(Signature):
    """nrefs, case, the unit that is compared, and sacrebleu's version."""

    def __init__(self, args: dict[str, Any]):
        super().__init__(args)
        self._abbr.update({"case": "c", "tok": "tok"})
        self.info.update({"case": "lc" if args["lowercase"] else "mixed", "tok": args["unit"]})


class _EditRate(Metric):
    """Total cost over total size, where each text counts the reference that it is nearest to.

    Args:
        lowercase: compare without regard to case.
        references: several lists of references, each as long as the hypotheses.
    """

    _SIGNATURE_TYPE = _UnitsSignature
    name: ClassVar[str]
    unit: ClassVar[str]

    def __init__(self, lowercase: bool = False, references: Sequence[Sequence[str]] | None = None):
        super().__init__()
        self.lowercase = lowercase
        if references is not None:
            self._ref_cache = self._cache_references(references)

    def get_signature(self) -> Signature:
        return self._SIGNATURE_TYPE({**self.__dict__, "unit": self.unit})

    def split(self, text: str) -> Sequence[Hashable]:
        """Return the units that are compared."""
        raise NotImplementedError

    def cost(self, hypothesis: Sequence[Hashable], reference: Sequence[Hashable]) -> tuple[int, int]:
        """Return the cost of one text, and its size."""
        return Levenshtein.distance(reference, hypothesis), len(reference)

    def _preprocess_segment(self, sent: str) -> str:
        return sent.lower() if self.lowercase else sent

    def _extract_reference_info(self, refs: Sequence[str]) -> dict[str, Any]:
        return {"references": [self.split(text) for text in refs]}

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: dict[str, Any]) -> list[int]:
        units = self.split(hypothesis)
        costs: list[tuple[int, int]] = [self.cost(units, reference) for reference in ref_kwargs["references"]]
        return list(min(costs, key=lambda cost: (_rate(*cost), *cost)))

    def _aggregate_and_compute(self, stats: Any) -> Score:
        return self._compute_score_from_stats(np.sum(np.asarray(stats, dtype=np.float64), axis=0))

    def _compute_score_from_stats(self, stats: Any) -> Score:
        return Score(self.name, float(_rate(stats[0], stats[1])))


def _rate(cost: float, size: float) -> float:
    # What is written where the reference is empty counts as one wrong text, as in sacrebleu's TER.
    return cost / size if size > 0 else float(cost > 0)


class WordErrorRate(_EditRate):
    """Words to insert, delete or replace over the words of the references, from 0; above 1 where too much is written.

    Words are what stands between white space; punctuation is part of them.
    """

    name, unit = "WER", "words"

    def split(self, text: str) -> Sequence[Hashable]:
        return text.split()


class CharacterErrorRate(_EditRate):
    """The same of characters, the single spaces between words included."""

    name, unit = "CER", "characters"

    def split(self, text: str) -> Sequence[Hashable]:
        return " ".join(text.split())


class ExactMatch(_EditRate):
    """Share of texts that equal one of their references character by character, from 0 to 1."""

    name, unit = "exact match", "texts"

    def split(self, text: str) -> Sequence[Hashable]:
        return (text,)

    def cost(self, hypothesis: Sequence[Hashable], reference: Sequence[Hashable]) -> tuple[int, int]:
        return int(hypothesis != reference), 1

    def _compute_score_from_stats(self, stats: Any) -> Score:
        return Score(self.name, 1.0 - float(_rate(stats[0], stats[1])))
