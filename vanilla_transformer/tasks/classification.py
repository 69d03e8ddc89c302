"""Classifiers: a label for a text, a tag for each token."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from sklearn.metrics import f1_score, precision_recall_fscore_support
from transformers import EvalPrediction

from vanilla_transformer.data.rows import LABELLED_TEXTS, TAGGED_TOKENS
from vanilla_transformer.data.token_datasets import LabelledDataset
from vanilla_transformer.errors import RecipeError
from vanilla_transformer.loading import load_config
from vanilla_transformer.losses_vanilla_transformer import IGNORED
from vanilla_transformer.modeling_vanilla_transformer import (
    VanillaTransformerForSequenceClassification,
    VanillaTransformerForTokenClassification,
)
from vanilla_transformer.scoring.chunks import chunk_scores
from vanilla_transformer.tasks.task import Example, ScoreColumn, Split, TokenizedSplit
from vanilla_transformer.tasks.text_task import TextTask
from vanilla_transformer.utils.log import Log

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["SequenceClassification", "TokenClassification"]

CHUNK_TAG = re.compile(r"O|[BIESLU]-.+")
"""A tag that marks where a chunk, such as a name or a noun phrase, begins and continues (IOB2, IOBES, BILOU)."""


class Classification(TextTask):
    """What the classifiers share: labels, found in the training and validation data, and an encoder."""

    training_defaults = {**TextTask.training_defaults, "learning_rate": 1e-3, "lr_scheduler_type": "linear"}
    architecture = "encoder-only"
    split_fields = TextTask.split_fields | {"label"}
    labelled: ClassVar[str]
    """What gets a label, in the plural."""
    problem_type: ClassVar[str | None] = None
    """Of the model's loss, where it could take the labels for something else."""

    def prepare(self, splits: Mapping[str, Split], ready: str | Path | None) -> None:
        super().prepare(splits, ready)
        found = {name: set(self.labels_in(split.dataset)) for name, split in splits.items()}
        # a test has no say in what the model is: a label that only it has is always missed
        self.labels = sorted(found["data.train"] | found["data.validation"], key=_natural_order)
        for name, split in splits.items():
            known = found["data.train"] if name == "data.validation" else set(self.labels)
            if unseen := sorted(found[name] - known):
                split.report.notes.append(f"labels that training never sees: {', '.join(unseen)}")
        if len(self.labels) < 2:
            raise ValueError(
                f"{splits['data.train'].report.name} has one label only, {self.labels[0]!r}; a classifier needs two or more."
            )
        self._keep_label_order()
        self.number_of = {label: number for number, label in enumerate(self.labels)}

    def _keep_label_order(self) -> None:
        """Keep the numbers of the labels of the classifier to start from."""
        if self.settings.start_from is None:
            return
        start = load_config(self.settings.start_from)
        if self.head.__name__ not in (start.architectures or []):
            return
        names = [start.id2label[number] for number in range(start.num_labels)]
        if sorted(names) != sorted(self.labels):
            raise RecipeError(
                f"start_from: {self.settings.start_from} is a classifier of the labels {_some(names)}, but the data has "
                f"{_some(self.labels)}; start from the language model it came from, or from data with its labels."
            )
        self.labels = names

    def labels_in(self, dataset: "Dataset") -> Iterable[str]:
        """Return all labels of a data set, with repetitions."""
        return dataset["label"]

    def config_fields(self) -> dict[str, Any]:
        names = dict(enumerate(self.labels))
        return {**super().config_fields(), "id2label": names, "label2id": self.number_of}

    def model(self, config: Any, log: Log) -> Any:
        model = super().model(config, log)
        model.config.problem_type = self.problem_type
        return model

    @property
    def intended_use(self) -> str:
        return f"Labelling {self.labelled} in the domain of the training data, where errors can be tolerated."

    def purpose(self) -> str:
        return f"to give {self.labelled}{self.in_language} one of {len(self.labels)} labels: {_some(self.labels)}"


def _natural_order(label: str) -> tuple[int, str]:
    return (int(label) if label.isdecimal() else -1, label)


def _some(labels: list[str]) -> str:
    return ", ".join(labels[:20]) + (" and others" if len(labels) > 20 else "")


class SequenceClassification(Classification):
    """One label for each text."""

    name = "sequence-classification"
    row_type = LABELLED_TEXTS
    packs = False  # the label belongs to a row
    drops_long_texts = False
    head = VanillaTransformerForSequenceClassification
    training_defaults = {**Classification.training_defaults, "metric_for_best_model": "accuracy"}
    scores = ("accuracy", "macro_f1", "loss")
    curves = (("accuracy", "accuracy (%)", 100), ("macro_f1", "macro F1 (%)", 100))
    labelled = "texts"
    problem_type = "single_label_classification"
    pipeline_tag = "text-classification"
    score_columns = (
        ScoreColumn("accuracy", "accuracy", "{:.1%}"),
        ScoreColumn("macro_f1", "macro F1", "{:.3f}"),
        ScoreColumn("texts", "texts", "{:,}"),
    )
    usage = """
from transformers import pipeline

classify = pipeline("text-classification", model=".")
print(classify([{text!r}]))
"""

    def encode(self, split: Split) -> LabelledDataset:
        limit = self.settings.data.max_length
        rows, cut = [], 0
        for batch in split.dataset.iter(batch_size=1000):
            encoded = self.tokenizer(batch["text"], verbose=False, split_special_tokens=True)["input_ids"]
            for text, ids, label in zip(batch["text"], encoded, batch["label"], strict=True):
                if len(ids) > limit:
                    cut += 1
                    ids = self.tokenizer(text, truncation=True, max_length=limit, split_special_tokens=True)[
                        "input_ids"
                    ]
                rows.append({"input_ids": ids, "labels": self.number_of.get(label, IGNORED)})
        if cut:
            split.report.notes.append(f"{cut:,} texts cut to their first {limit} tokens (data.max_length)")
            self.tokenizer.backend_tokenizer.no_truncation()  # else it would be saved with the tokenizer
        return LabelledDataset(rows, list(split.dataset["label"]), list(split.dataset["id"]))

    @staticmethod
    def reduced_logits(logits: Any, labels: Any) -> torch.Tensor:
        """Return (B, 2): the class, and the cross entropy."""
        logits = logits[0] if isinstance(logits, tuple) else logits  # an encoder-decoder gives more than logits
        losses = torch.nn.functional.cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="none")
        return torch.stack([logits.argmax(-1).float(), losses], dim=1)

    def metrics(self, prediction: EvalPrediction, names: list[Any]) -> dict[str, float]:
        predicted, losses = np.asarray(prediction.predictions).T
        outputs = [self.labels[int(number)] for number in predicted]
        known = [name in self.number_of for name in names]
        return {
            "accuracy": float(np.mean([output == name for output, name in zip(outputs, names, strict=True)])),
            "macro_f1": float(f1_score(names, outputs, average="macro", zero_division=0)),
            "loss": float(losses[known].mean()) if any(known) else float("nan"),
        }

    def score_line(self, scores: dict[str, Any]) -> str:
        return f"accuracy {100 * scores['accuracy']:.1f} %  macro F1 {scores['macro_f1']:.3f}  ({scores['texts']:,} texts)"

    def outputs(self, predictions: Any, names: list[Any]) -> list[str]:
        return [self.labels[int(number)] for number in np.asarray(predictions)[:, 0]]

    def examples(self, model: Any, split: TokenizedSplit, rows: Sequence[int]) -> list[Example]:
        texts = split.dataset.select(rows)
        inputs = self.collator(model)([{"input_ids": split.tokenized[row]["input_ids"]} for row in rows])
        outputs = [self.labels[number] for number in self.predicted(model, inputs).tolist()]
        return list(map(Example, texts["text"], texts["label"], outputs))

    def results(self, scores: dict[str, Any]) -> list[tuple[str, str, float]]:
        return [("accuracy", "accuracy", scores["accuracy"]), ("f1", "macro F1", scores["macro_f1"])]


class TokenClassification(Classification):
    """One tag for each token: names, chunks, parts of speech.

    Sentences come as tokens, and are read as the text that they give with spaces between, as a text of that kind is
    read later. The first piece of each token carries its tag. Tags of the IOB kind are scored as chunks by seqeval,
    others one by one. A tokenizer of kind wordpiece lets transformers' pipeline tell where tokens begin; with others it
    has to guess, and may take a space for a token.
    """

    name = "token-classification"
    head = VanillaTransformerForTokenClassification
    training_defaults = {**Classification.training_defaults, "metric_for_best_model": "f1"}
    scores = ("f1", "precision", "recall", "accuracy", "loss")
    curves = (("f1", "F1 (%)", 100), ("accuracy", "accuracy of tokens (%)", 100))
    tokenizer_kind = "wordpiece"
    column = "tokens"
    row_type = TAGGED_TOKENS
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
    usage = """
from transformers import pipeline

tag = pipeline("token-classification", model=".", aggregation_strategy="first")
print(tag({text!r}))
"""

    @staticmethod
    def as_text(value: Any) -> str:
        return " ".join(value)

    def labels_in(self, dataset: "Dataset") -> Iterable[str]:
        return (tag for tags in dataset["tags"] for tag in tags)

    @property
    def are_chunks(self) -> bool:
        """Return whether the tags mark chunks of several tokens."""
        return all(CHUNK_TAG.fullmatch(label) for label in self.labels)

    def encode(self, split: Split) -> LabelledDataset:
        limit = self.settings.data.max_length
        rows, names, row_ids = [], [], []
        for batch in split.dataset.iter(batch_size=1000):
            texts = [" ".join(tokens) for tokens in batch["tokens"]]
            encoded = self.tokenizer(texts, return_offsets_mapping=True, verbose=False, split_special_tokens=True)
            for number, tags in enumerate(batch["tags"]):
                ids, offsets = encoded["input_ids"][number], encoded["offset_mapping"][number]
                if len(ids) > limit:
                    split.report.drop(f"sentence longer than {limit} tokens (data.max_length)", batch["id"][number])
                    continue
                words = encoded_words(batch["tokens"][number], offsets)
                labels = first_pieces(words, [self.number_of.get(tag, IGNORED) for tag in tags])
                rows.append({"input_ids": ids, "labels": labels})
                names.append(first_pieces(words, tags))
                row_ids.append(batch["id"][number])
        if not rows:
            raise ValueError(
                "No sentence is short enough; raise data.max_length. "
                + "; ".join(x.strip() for x in split.report.lines())
            )
        return LabelledDataset(rows, names, row_ids)

    @staticmethod
    def reduced_logits(logits: Any, labels: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (B, T): the tags, and (B, 2): the summed cross entropy and the number of labels."""
        losses = torch.nn.functional.cross_entropy(
            logits.float().transpose(1, 2), labels, ignore_index=IGNORED, reduction="none"
        )
        counts = (labels != IGNORED).sum(1)
        return logits.argmax(-1), torch.stack([losses.sum(1), counts.float()], dim=1)

    def metrics(self, prediction: EvalPrediction, names: list[Any]) -> dict[str, float]:
        predicted, losses = prediction.predictions
        references = [[tag for tag in row if tag != IGNORED] for row in names]
        outputs = self._tags(predicted, names)
        right, given = ([tag for row in rows for tag in row] for rows in (references, outputs))
        if self.are_chunks:
            precision, recall, f1 = chunk_scores(references, outputs)
        else:
            found = precision_recall_fscore_support(right, given, average="macro", zero_division=0)
            precision, recall, f1 = (float(value) for value in found[:3])
        total, count = np.asarray(losses, dtype=np.float64).sum(axis=0)
        return {
            "precision": precision,
            "recall": recall,
            "f1": f1,
            "accuracy": float(np.mean([r == g for r, g in zip(right, given, strict=True)])),
            "loss": float(total / max(count, 1)),
        }

    def score_line(self, scores: dict[str, Any]) -> str:
        kind = "chunk F1" if self.are_chunks else "macro F1"
        return (
            f"{kind} {100 * scores['f1']:.2f}  precision {100 * scores['precision']:.2f}  recall "
            f"{100 * scores['recall']:.2f}  accuracy {100 * scores['accuracy']:.2f} %  ({scores['sentences']:,} sentences)"
        )

    def outputs(self, predictions: Any, names: list[Any]) -> list[str]:
        return [" ".join(tags) for tags in self._tags(predictions[0], names)]

    def examples(self, model: Any, split: TokenizedSplit, rows: Sequence[int]) -> list[Example]:
        places = {text_id: row for row, text_id in enumerate(split.tokenized.ids)}
        rows = [places[text_id] for text_id in split.dataset.select(rows)["id"] if text_id in places]
        inputs = self.collator(model)([{"input_ids": split.tokenized[row]["input_ids"]} for row in rows])
        names = [split.tokenized.names[row] for row in rows]
        found = self._tags(self.predicted(model, inputs).numpy(), names)
        given = [[tag for tag in row if tag != IGNORED] for row in names]
        by_id = dict(zip(split.dataset["id"], split.dataset["tokens"], strict=True))
        texts = [by_id[split.tokenized.ids[row]] for row in rows]
        return [Example(*(" ".join(words) for words in three)) for three in zip(texts, given, found, strict=True)]

    def _tags(self, predicted: Any, names: list[Any]) -> list[list[str]]:
        """Return the predicted tags of the words of each row, where `names` has tags of its first pieces."""
        return [
            [self.labels[int(tag)] for tag, name in zip(found, row, strict=False) if name != IGNORED]
            for found, row in zip(predicted, names, strict=True)
        ]

    def results(self, scores: dict[str, Any]) -> list[tuple[str, str, float]]:
        kind = "chunk F1 (seqeval)" if self.are_chunks else "macro F1"
        return [("f1", kind, scores["f1"]), ("accuracy", "accuracy of tokens", scores["accuracy"])]


def encoded_words(words: list[str], offsets: list[tuple[int, int]]) -> list[int | None]:
    """Return the word, of those that a text joins with spaces, that each piece belongs to; None for special tokens and spaces.

    Args:
        offsets: of each piece in the text, first character and the one behind the last.
    """
    text = " ".join(words)
    ends = np.cumsum([len(word) + 1 for word in words])  # of each word, with the space behind it
    # by the last character: the first may be the space before the word
    return [
        int(np.searchsorted(ends, end - 1, side="right")) if text[start:end].strip(" ") else None
        for start, end in offsets
    ]


def first_pieces(words: list[int | None], tags: list[Any]) -> list[Any]:
    """Return the tag of each word at its first piece, -100 elsewhere."""
    labels, last = [], -1
    for word in words:
        if word is None or word <= last:
            labels.append(IGNORED)
        else:
            labels.append(tags[word])
            last = word
    return labels
