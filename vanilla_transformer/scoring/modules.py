"""The scores of this package as modules of the `evaluate` library, which load without a network.

`load_metric("bleu")` gives what `evaluate.load` gives for its own metrics; so does `evaluate.load(modules.__file__, "bleu")`.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any

import datasets
import evaluate
from datasets import Features, Value

__all__ = ["MODULES", "AnswerScores", "GeneratedText", "LabelScores", "TagScores", "TextScore", "load_metric"]

TEXT = Value("string")


def _info(description: str, inputs: str, features: Any) -> evaluate.MetricInfo:
    return evaluate.MetricInfo(description=description, citation="", inputs_description=inputs, features=features)


class TextScore(evaluate.Metric):
    """BLEU, chrF, TER, exact match, WER or CER, whichever `config_name` names, of texts against one or more references."""

    config_name: str

    def _info(self) -> evaluate.MetricInfo:
        from vanilla_transformer.scoring import METRICS

        if self.config_name == "default":
            self.config_name = "bleu"
        if self.config_name not in METRICS:
            raise ValueError(f"there is no score {self.config_name!r} of texts; there are {', '.join(METRICS)}.")
        inputs = "predictions: texts. references: a text for each, or a list of texts."
        several, one = ({"predictions": TEXT, "references": references} for references in (datasets.List(TEXT), TEXT))
        return _info(f"{self.config_name} by sacrebleu.", inputs, [Features(several), Features(one)])

    def _compute(
        self,
        predictions: Any,
        references: Any,
        tokenize: str = "13a",
        lowercase: bool = False,
        signature: bool = False,
    ) -> dict[str, Any]:
        """Return the score under its name, with `signature` also what makes it comparable."""
        from vanilla_transformer.scoring import score_texts

        references = [[text] if isinstance(text, str) else list(text) for text in references]
        if len({len(texts) for texts in references}) != 1:
            raise ValueError("every text must have as many references as the others.")
        lists = [list(texts) for texts in zip(*references, strict=True)]
        name = self.config_name
        scores = score_texts(list(predictions), lists, tokenize, lowercase=lowercase, metrics=[name])
        return {name: scores[name]} | ({"signature": scores.metrics[name].signature} if signature else {})


class LabelScores(evaluate.Metric):
    """Accuracy and macro F1 of labels, given as names or numbers."""

    def _info(self) -> evaluate.MetricInfo:
        kinds = [dict.fromkeys(("predictions", "references"), Value(kind)) for kind in ("int64", "string")]
        inputs = "predictions, references: a label each."
        return _info("Accuracy and macro F1 of labels.", inputs, [Features(kind) for kind in kinds])

    def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
        from sklearn.metrics import accuracy_score, f1_score

        f1 = f1_score(references, predictions, average="macro", zero_division=0)
        return {"accuracy": float(accuracy_score(references, predictions)), "macro_f1": float(f1)}


class TagScores(evaluate.Metric):
    """Precision, recall and F1 of chunks by seqeval, and accuracy of tokens."""

    def _info(self) -> evaluate.MetricInfo:
        features = Features(dict.fromkeys(("predictions", "references"), datasets.List(TEXT)))
        return _info("Chunk scores by seqeval.", "predictions, references: a list of tags each.", features)

    def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
        from vanilla_transformer.scoring.chunks import chunk_scores

        predictions, references = ([list(tags) for tags in rows] for rows in (predictions, references))
        precision, recall, f1 = chunk_scores(references, predictions)
        pairs = [
            (given, right)
            for row, tags in zip(predictions, references, strict=True)
            for given, right in zip(row, tags, strict=True)
        ]
        accuracy = sum(given == right for given, right in pairs) / max(1, len(pairs))
        return {"precision": precision, "recall": recall, "f1": f1, "accuracy": accuracy}


class AnswerScores(evaluate.Metric):
    """Exact match and F1 of answers to questions, from 0 to 100, as SQuAD scores them (Rajpurkar et al. 2016 and 2018)."""

    def _info(self) -> evaluate.MetricInfo:
        answers = {"text": datasets.List(TEXT), "answer_start": datasets.List(Value("int32"))}
        features = {
            "predictions": {"id": TEXT, "prediction_text": TEXT},
            "references": {"id": TEXT, "answers": answers},
        }
        inputs = "predictions: id and prediction_text. references: id and answers (text, answer_start)."
        return _info("Exact match and F1 of answers, as SQuAD scores them.", inputs, Features(features))

    def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
        exact, f1 = [], []
        for given, right in zip(predictions, references, strict=True):
            # a question without answer is answered by an empty text
            answers = list(right["answers"]["text"]) or [""]
            exact.append(max(_words(given["prediction_text"]) == _words(answer) for answer in answers))
            f1.append(max(_overlap(_words(given["prediction_text"]), _words(answer)) for answer in answers))
        return {"exact_match": 100 * sum(exact) / len(exact), "f1": 100 * sum(f1) / len(f1)}


def _words(text: str) -> list[str]:
    """Return the words of an answer as SQuAD compares them: small letters, no punctuation, no articles."""
    text = "".join(character for character in text.lower() if character not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def _overlap(given: Sequence[str], right: Sequence[str]) -> float:
    if not given or not right:
        return float(given == right)
    common = sum((Counter(given) & Counter(right)).values())
    return 2 * common / (len(given) + len(right))


class GeneratedText(evaluate.Measurement):
    """How long and how repetitive text is: words a text, and the share of distinct words and pairs (Li et al. 2016)."""

    def _info(self) -> evaluate.MeasurementInfo:
        return evaluate.MeasurementInfo(
            description="Length and diversity of text.",
            citation="",
            inputs_description="data: texts.",
            features=Features({"data": TEXT}),
        )

    def _compute(self, data: Any) -> dict[str, float]:
        words = [text.split() for text in data]
        pairs = [pair for row in words for pair in zip(row, row[1:], strict=False)]
        single = [word for row in words for word in row]
        return {
            "words": len(single) / len(words),
            "distinct_1": len(set(single)) / max(1, len(single)),
            "distinct_2": len(set(pairs)) / max(1, len(pairs)),
        }


MODULES: dict[str, type[evaluate.EvaluationModule]] = {
    **dict.fromkeys(("bleu", "chrf", "ter", "exact_match", "wer", "cer"), TextScore),
    "labels": LabelScores,
    "tags": TagScores,
    "answers": AnswerScores,
    "generated_text": GeneratedText,
}


def load_metric(name: str, **options: Any) -> evaluate.EvaluationModule:
    """Return a module by its name in `MODULES`; `options` are those of `evaluate.EvaluationModule`.

    Raises:
        ValueError: for another name.
    """
    if name not in MODULES:
        raise ValueError(f"there is no metric {name!r}; there are {', '.join(MODULES)}.")
    options.setdefault("keep_in_memory", options.get("num_process", 1) == 1)
    return MODULES[name](config_name=name, **options)
