"""English constituency parsing (section 6.3): from the words of a sentence to its tree, written as brackets."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from transformers import EvalPrediction, Trainer

from vanilla_transformer.data.config import DataConfig, TextData
from vanilla_transformer.data.reader import load_data
from vanilla_transformer.data.report import DataReport
from vanilla_transformer.data.rows import ColumnType, RowType
from vanilla_transformer.data.trees import TreeError, linearize, read_tree, rebuild
from vanilla_transformer.scoring.brackets import BracketScore, score_trees
from vanilla_transformer.tasks.metrics import decode_ids
from vanilla_transformer.tasks.seq2seq import Seq2Seq
from vanilla_transformer.tasks.settings import DataSection
from vanilla_transformer.tasks.task import ScoreColumn, Split, TokenizedSplit

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["ConstituencyParsing"]


def _check_tree(text: Any) -> tuple[Any, ...] | str:
    """Return a tree as read from a file, or why it is none."""
    if text is not None and not isinstance(text, str):
        return "tree is not text"
    if not text or not text.strip():
        return "empty tree"
    try:
        read_tree(text)
    except TreeError as error:
        return f"not a tree: {error}"
    return (text,)


TREES = RowType("tree", (ColumnType("tree", ("tree", "parse", "text")),), _check_tree)


def _scores(well_formed: Sequence[bool], found: BracketScore) -> dict[str, Any]:
    return {
        "f1": round(found.f1, 2),
        "precision": round(found.precision, 2),
        "recall": round(found.recall, 2),
        "exact_match": round(found.complete / found.trees, 4),
        "well_formed": round(sum(well_formed) / len(well_formed), 4),
    }


def _score(
    sources: Iterable[str], written: Iterable[str], references: Iterable[str]
) -> tuple[dict[str, Any], list[str]]:
    """Return scores of brackets that a model wrote, and the trees that they make, one line each.

    Args:
        sources: words with spaces between.
        written, references: brackets with spaces between.
    """
    words = [source.split() for source in sources]
    rebuilt = [rebuild(each, brackets.split()) for each, brackets in zip(words, written, strict=True)]
    gold = [rebuild(each, brackets.split())[0] for each, brackets in zip(words, references, strict=True)]
    trees = [tree for tree, _ in rebuilt]
    lines = [tree.pformat(margin=10**9) for tree in trees]
    return _scores([whole for _, whole in rebuilt], score_trees(trees, gold)), lines


class ConstituencyParsing(Seq2Seq):
    """Trained on bracketed trees, one a line; scored by precision, recall and F1 of labelled brackets."""

    name = "constituency-parsing"
    row_type = TREES
    split_fields = frozenset({field.name for field in fields(TextData)} - {"unit", "label"})
    data_fields = frozenset({"source_language", "max_source_length", "max_target_length"})
    tokenizer_kind = "words"
    tokenizer_fields = frozenset()
    evaluation_fields = frozenset({"num_beams"})
    training_defaults = {**Seq2Seq.training_defaults, "metric_for_best_model": "f1"}
    # Section 6.3: beam 21, and at most 300 tokens more than the sentence has
    generation_defaults = {
        "num_beams": 21,
        "length_penalty": 0.3,
        "length_penalty_form": "gnmt",
        "max_length_over_source": 300,
    }
    curves = (("f1", "F1 of labelled brackets", 1), ("well_formed", "well-formed (%)", 100))
    noun = "trees"
    scores = ("f1", "precision", "recall", "exact_match", "well_formed", "loss")
    pipeline_tag = "text-generation"
    other_pipeline_tags = ()
    score_columns = (
        ScoreColumn("f1", "F1"),
        ScoreColumn("precision", "precision"),
        ScoreColumn("recall", "recall"),
        ScoreColumn("exact_match", "exact match", "{:.1%}"),
        ScoreColumn("well_formed", "well-formed", "{:.1%}"),
        ScoreColumn("sentences", "sentences"),
    )
    intended_use = "Parsing sentences that are divided into words as those of its training data are."

    @classmethod
    def data_config(cls, fields: Mapping[str, Any], data: DataSection) -> TextData:
        return TextData(**{"format": "text", **fields})

    def load(self, config: DataConfig) -> "tuple[Dataset, DataReport]":
        """Read trees, and give each its words as `source` and its brackets as `target`."""

        def sides(row: dict[str, Any]) -> dict[str, str]:
            words, brackets = linearize(read_tree(row["tree"]))
            return {"source": " ".join(words), "target": " ".join(brackets)}

        dataset, report = load_data(config, self.row_type)
        return dataset.map(sides, remove_columns=["tree"]), report

    def train_tokenizers(self, train: Split) -> None:
        data = self.settings.data
        # words and brackets have nothing in common
        self.tokenizer = self.train_tokenizer(train, ["source"], {"source": data.max_source_length - 1})
        self.target_tokenizer = self.train_tokenizer(train, ["target"], {"target": data.max_target_length - 1})

    def trainer_options(self, validation: TokenizedSplit) -> dict[str, Any]:
        rows = self.evaluated_rows(validation.tokenized, self.settings.evaluation.sentences)
        texts = dict(zip(validation.dataset["id"], validation.dataset["source"], strict=True))
        sources = [texts[number] for number in rows["id"]]

        def metrics(prediction: EvalPrediction) -> dict[str, float]:
            found = prediction.predictions[0] if isinstance(prediction.predictions, tuple) else prediction.predictions
            written, references = (
                decode_ids(ids, self.target_tokenizer)[: len(sources)] for ids in (found, prediction.label_ids)
            )
            return _score(sources, written, references)[0]

        wanted = self.settings.training["predict_with_generate"]
        return {"compute_metrics": metrics if wanted else None, "target_tokenizer": self.target_tokenizer}

    def score(self, trainer: Trainer, split: TokenizedSplit) -> tuple[dict[str, Any], list[str]]:
        written, seconds = self.timed_outputs(trainer, split)
        sources = list(split.dataset["source"])
        scores, lines = _score(sources, written, split.dataset["target"])
        return {**scores, "sentences": len(sources), "seconds": seconds}, lines

    def score_line(self, scores: dict[str, Any]) -> str:
        return (
            f"F1 {scores['f1']}  precision {scores['precision']}  recall {scores['recall']}  exact match "
            f"{100 * scores['exact_match']:.1f} %  well-formed {100 * scores['well_formed']:.1f} %  "
            f"({scores['sentences']} sentences in {scores['seconds']:.0f} s)"
        )

    def purpose(self) -> str:
        return "to parse sentences into trees of constituents"

    def results(self, scores: dict[str, Any]) -> list[tuple[str, str, float]]:
        return [("f1", "F1 of labelled brackets (rules of evalb, punctuation by word)", scores["f1"])]

    def metric_args(self, metric: str) -> dict[str, Any]:
        return {}
