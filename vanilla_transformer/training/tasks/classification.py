"""Classifiers: a label for a text, a tag for each token."""

import re
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from transformers import EvalPrediction

from vanilla_transformer.data.report import DataReport
from vanilla_transformer.data.texts import TextData, load_labelled_texts, load_tagged_tokens
from vanilla_transformer.modeling_vanilla_transformer import (
    VanillaTransformerForSequenceClassification,
    VanillaTransformerForTokenClassification,
)
from vanilla_transformer.training.tasks.task import Part, RowsOfTokens, ScoreColumn, TextTask

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["SequenceClassification", "TokenClassification"]

IGNORED = -100
CHUNK_TAG = re.compile(r"O|[BIESLU]-.+")
"""A tag that marks where a chunk, such as a name or a noun phrase, begins and goes on (IOB2 and its relatives)."""


class _LabelledRows(RowsOfTokens):
    """Rows that are all known beforehand."""

    def __init__(self, rows: list[dict[str, Any]]):
        super().__init__([len(row["input_ids"]) for row in rows])
        self.rows = rows

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]


class Classification(TextTask):
    """What the classifiers share: labels, found in all parts of the data, and an encoder."""

    training_defaults = {**TextTask.training_defaults, "learning_rate": 1e-3, "lr_scheduler_type": "linear"}
    architecture = "encoder-only"
    labelled: ClassVar[str]
    """What gets a label, in the plural."""
    problem_type: ClassVar[str | None] = None
    """Of the model's loss, where it could take the labels for something else."""

    def prepare(self, parts: dict[str, Part], ready: Any) -> None:
        super().prepare(parts, ready)
        found = {name: set(self.labels_in(part.dataset)) for name, part in parts.items()}
        # those of the tests too: a label that training never saw is a mistake of the model, not of the data
        self.labels = sorted(set().union(*found.values()), key=_natural_order)
        if unseen := sorted(set(self.labels) - found["data.train"]):
            parts["data.train"].report.notes.append(f"labels that only other parts have: {', '.join(unseen)}")
        self.number_of = {label: number for number, label in enumerate(self.labels)}

    def labels_in(self, dataset: "Dataset") -> Any:
        """All labels of a data set, with repetitions."""
        return dataset["label"]

    def config_fields(self) -> dict[str, Any]:
        names = dict(enumerate(self.labels))
        return {**super().config_fields(), "id2label": names, "label2id": self.number_of}

    def model(self, say: Any) -> Any:
        model = super().model(say)
        model.config.problem_type = self.problem_type
        return model

    def purpose(self) -> str:
        language = f" in {self.recipe.data.language}" if self.recipe.data.language else ""
        labels = ", ".join(self.labels[:20]) + (", ..." if len(self.labels) > 20 else "")
        return f"to give {self.labelled}{language} one of {len(self.labels)} labels: {labels}"


def _natural_order(label: str) -> tuple[int, str]:
    return (int(label) if label.isdecimal() else -1, label)


class SequenceClassification(Classification):
    """One label for each text."""

    name = "sequence-classification"
    head = VanillaTransformerForSequenceClassification
    training_defaults = {**Classification.training_defaults, "metric_for_best_model": "accuracy"}
    scores = ("accuracy", "macro_f1", "loss")
    noun = "texts"
    labelled = "texts"
    problem_type = "single_label_classification"
    pipeline_tag = "text-classification"
    score_columns = (
        ScoreColumn("accuracy", "accuracy", "{:.1%}"),
        ScoreColumn("macro_f1", "macro F1", "{:.3f}"),
        ScoreColumn("texts", "texts", "{:,}"),
    )

    def load(self, specification: TextData) -> "tuple[Dataset, DataReport]":
        return load_labelled_texts(specification)

    def encode(self, part: Part) -> _LabelledRows:
        limit = self.recipe.data.max_length
        rows, cut = [], 0
        for batch in part.dataset.iter(batch_size=1000):
            whole = self.tokenizer(batch["text"], verbose=False)["input_ids"]
            encoded = self.tokenizer(batch["text"], truncation=True, max_length=limit)["input_ids"]
            cut += sum(len(ids) > limit for ids in whole)
            rows += [
                {"input_ids": ids, "labels": self.number_of[label]}
                for ids, label in zip(encoded, batch["label"], strict=True)
            ]
        if cut:
            part.report.notes.append(f"{cut:,} texts cut to their first {limit} tokens (data.max_length)")
        return _LabelledRows(rows)

    @staticmethod
    def reduced_logits(logits: Any, labels: Any) -> torch.Tensor:
        logits = logits[0] if isinstance(logits, tuple) else logits  # an encoder-decoder gives more than logits
        losses = torch.nn.functional.cross_entropy(logits.float(), labels, reduction="none")
        return torch.stack([logits.argmax(-1).double(), losses.double()], dim=1)

    def metrics(self, prediction: EvalPrediction) -> dict[str, float]:
        from sklearn.metrics import f1_score

        predicted, losses = np.asarray(prediction.predictions).T
        right = np.asarray(prediction.label_ids)
        return {
            "accuracy": float((predicted == right).mean()),
            "macro_f1": float(f1_score(right, predicted, average="macro", zero_division=0)),
            "loss": float(losses.mean()),
        }

    def score_line(self, scores: dict[str, Any]) -> str:
        return f"accuracy {100 * scores['accuracy']:.1f} %  macro F1 {scores['macro_f1']:.3f}  ({scores['texts']:,} texts)"

    def use(self) -> str:
        return (
            "import vanilla_transformer  # makes the model type known to transformers\n"
            "from transformers import pipeline\n\n"
            'classify = pipeline("text-classification", model=".")\n'
            'print(classify(["A text to be classified."]))'
        )

    def results(self, scores: dict[str, Any]) -> list[tuple[str, str, float]]:
        return [("accuracy", "accuracy", scores["accuracy"]), ("f1", "macro F1", scores["macro_f1"])]


class TokenClassification(Classification):
    """One tag for each token: names, chunks, parts of speech.

    Sentences come as tokens, and are read as the text that they give with spaces between, as a text of that kind is
    read later. The first piece of each token carries its tag. Tags of the IOB kind are scored as chunks by seqeval,
    others one by one.
    """

    name = "token-classification"
    head = VanillaTransformerForTokenClassification
    training_defaults = {**Classification.training_defaults, "metric_for_best_model": "f1"}
    scores = ("f1", "precision", "recall", "accuracy", "loss")
    noun = "sentences"
    labelled = "tokens"
    pipeline_tag = "token-classification"
    score_columns = (
        ScoreColumn("precision", "precision", "{:.2%}"),
        ScoreColumn("recall", "recall", "{:.2%}"),
        ScoreColumn("f1", "F1", "{:.2%}"),
        ScoreColumn("accuracy", "accuracy of tokens", "{:.2%}"),
        ScoreColumn("sentences", "sentences", "{:,}"),
    )

    def load(self, specification: TextData) -> "tuple[Dataset, DataReport]":
        return load_tagged_tokens(specification)

    def labels_in(self, dataset: "Dataset") -> Any:
        return (tag for tags in dataset["tags"] for tag in tags)

    def texts(self, dataset: "Dataset") -> Any:
        return (" ".join(tokens) for tokens in dataset["tokens"])

    @property
    def are_chunks(self) -> bool:
        """Whether the tags mark chunks of several tokens."""
        return all(CHUNK_TAG.fullmatch(label) for label in self.labels)

    def encode(self, part: Part) -> _LabelledRows:
        limit = self.recipe.data.max_length
        rows = []
        for batch in part.dataset.iter(batch_size=1000):
            texts = [" ".join(tokens) for tokens in batch["tokens"]]
            encoded = self.tokenizer(texts, return_offsets_mapping=True, verbose=False)
            for number, tags in enumerate(batch["tags"]):
                ids, offsets = encoded["input_ids"][number], encoded["offset_mapping"][number]
                if len(ids) > limit:
                    part.report.drop(f"sentence longer than {limit} tokens (data.max_length)", batch["id"][number])
                    continue
                words = encoded_words(texts[number], offsets)
                rows.append({"input_ids": ids, "labels": first_pieces(words, [self.number_of[tag] for tag in tags])})
        if not rows:
            raise ValueError("No sentence is short enough. " + "; ".join(x.strip() for x in part.report.lines()))
        return _LabelledRows(rows)

    @staticmethod
    def reduced_logits(logits: Any, labels: Any) -> torch.Tensor:
        return logits.argmax(-1)

    def metrics(self, prediction: EvalPrediction) -> dict[str, float]:
        predicted, right = np.asarray(prediction.predictions), np.asarray(prediction.label_ids)
        kept = right != IGNORED
        rows = [
            ([self.labels[i] for i in p[k]], [self.labels[i] for i in r[k]])
            for p, r, k in zip(predicted, right, kept, strict=True)
        ]
        outputs, references = [row[0] for row in rows], [row[1] for row in rows]
        accuracy = float((predicted == right)[kept].mean())
        if self.are_chunks:
            from seqeval.metrics import f1_score, precision_score, recall_score

            precision, recall, f1 = (
                float(score(references, outputs, zero_division=0))
                for score in (precision_score, recall_score, f1_score)
            )
        else:
            from sklearn.metrics import precision_recall_fscore_support

            flat = ([tag for row in rows for tag in row] for rows in (references, outputs))
            found = precision_recall_fscore_support(*flat, average="macro", zero_division=0)
            precision, recall, f1 = (float(value) for value in found[:3])
        return {"precision": precision, "recall": recall, "f1": f1, "accuracy": accuracy}

    def score_line(self, scores: dict[str, Any]) -> str:
        kind = "chunk F1" if self.are_chunks else "macro F1"
        return (
            f"{kind} {100 * scores['f1']:.2f}  precision {100 * scores['precision']:.2f}  recall "
            f"{100 * scores['recall']:.2f}  accuracy {100 * scores['accuracy']:.2f} %  ({scores['sentences']:,} sentences)"
        )

    def use(self) -> str:
        return (
            "import vanilla_transformer  # makes the model type known to transformers\n"
            "from transformers import pipeline\n\n"
            'tag = pipeline("token-classification", model=".", aggregation_strategy="first")\n'
            'print(tag("Tokens and punctuation with spaces between , as in the training data ."))'
        )

    def results(self, scores: dict[str, Any]) -> list[tuple[str, str, float]]:
        kind = "chunk F1 (seqeval)" if self.are_chunks else "macro F1"
        return [("f1", kind, scores["f1"]), ("accuracy", "accuracy of tokens", scores["accuracy"])]


def encoded_words(text: str, offsets: list[tuple[int, int]]) -> list[int | None]:
    """Which word of a text, words being divided by spaces, each piece belongs to; None for special tokens."""
    word_at = np.cumsum([character == " " for character in text])
    # by the last character: the first may be the space before the word
    return [None if end <= start else int(word_at[end - 1]) for start, end in offsets]


def first_pieces(words: list[int | None], tags: list[int]) -> list[int]:
    """The tag of each word at its first piece, -100 elsewhere."""
    labels, seen = [], -1
    for word in words:
        new = word is not None and word > seen
        labels.append(tags[word] if new and word is not None else IGNORED)
        seen = word if new and word is not None else seen
    return labels
