"""`evaluate.evaluator(task)` on the models and pipelines of this package, and with its scores by default.

evaluate 0.4.6 fails under transformers 5 for every pipeline (it asks for `transformers.TFPreTrainedModel`) and under datasets 4
for every token classifier (its check takes no list for one), loads its default metrics from the Hub, and cuts long texts
off. Importing this module registers evaluators in its table of tasks that do otherwise.
"""

from typing import Any, ClassVar

import datasets
from evaluate.evaluator import SUPPORTED_EVALUATOR_TASKS, Evaluator
from evaluate.evaluator import QuestionAnsweringEvaluator as _QuestionAnswering
from evaluate.evaluator import SummarizationEvaluator as _Summarization
from evaluate.evaluator import TextClassificationEvaluator as _TextClassification
from evaluate.evaluator import TextGenerationEvaluator as _TextGeneration
from evaluate.evaluator import TokenClassificationEvaluator as _TokenClassification
from evaluate.evaluator import TranslationEvaluator as _Translation
from evaluate.evaluator.utils import DatasetColumn
from transformers import Pipeline, PreTrainedModel, pipeline

import vanilla_transformer  # noqa: F401 - registers the pipelines that evaluate checks the tasks against

from .modules import MODULES, AnswerScores, load_metric

__all__ = ["EVALUATORS", "register"]


class _Mixin:
    """What all evaluators have in common."""

    pipeline_options: ClassVar[dict[str, Any]] = {}
    task: str
    default_metric_name: str

    def __init__(self, task: str, default_metric_name: str | None = None):
        super().__init__(task, default_metric_name=default_metric_name)  # type: ignore[call-arg]
        # of this object: evaluate writes the options of one call into a dictionary of the class
        self.PIPELINE_KWARGS = dict(self.pipeline_options)

    def prepare_pipeline(
        self, model_or_pipeline: Any, tokenizer: Any = None, feature_extractor: Any = None, device: int | None = None
    ) -> Any:
        """Return the pipeline given, or one made of the model, folder or Hub id given."""
        made = model_or_pipeline
        if isinstance(made, str | PreTrainedModel):
            made = pipeline(self.task, model=made, tokenizer=tokenizer, device=device, trust_remote_code=False)
        if made is None:
            raise ValueError(f"the evaluator of {self.task} needs a model, a folder or a pipeline.")
        task = made.task if isinstance(made, Pipeline) else self.task
        if task != self.task and not task.startswith(f"{self.task}_"):
            raise ValueError(f"a pipeline for {task} cannot be evaluated as one for {self.task}.")
        return made

    def prepare_metric(self, metric: Any) -> Any:
        """Return the module given, one of this package by its name, or one that `evaluate.load` finds."""
        name = self.default_metric_name if metric is None else metric
        return load_metric(name) if isinstance(name, str) and name in MODULES else super().prepare_metric(name)  # type: ignore[misc]


class TranslationEvaluator(_Mixin, _Translation):
    """Scores translations, of long texts as well."""


class SummarizationEvaluator(_Mixin, _Summarization):
    """Scores summaries."""


class QuestionAnsweringEvaluator(_Mixin, _QuestionAnswering):
    """Scores answers, with `squad_v2_format=True` also that there is none."""

    def compute_metric(self, metric: Any, metric_inputs: dict[str, Any], *arguments: Any, **options: Any) -> Any:
        if isinstance(metric, AnswerScores):
            # the scores of answers are not probabilities that there is none, as which they are handed on
            names = ("id", "prediction_text")
            answers = [{name: answer[name] for name in names} for answer in metric_inputs["predictions"]]
            metric_inputs = {**metric_inputs, "predictions": answers}
        return super().compute_metric(metric, metric_inputs, *arguments, **options)


class TextClassificationEvaluator(_Mixin, _TextClassification):
    """Scores labels of texts; only here is the end of a long text cut off, as the model reads it whole or not at all."""

    pipeline_options: ClassVar[dict[str, Any]] = {"truncation": True}


class TextGenerationEvaluator(_Mixin, _TextGeneration):
    """Measures generated texts."""


class TokenClassificationEvaluator(_Mixin, _TokenClassification):
    """Scores tags of tokens."""

    pipeline_options: ClassVar[dict[str, Any]] = {"ignore_labels": []}

    def prepare_pipeline(self, *arguments: Any, **options: Any) -> Any:
        made = super().prepare_pipeline(*arguments, **options)
        if isinstance(made, Pipeline) and not made.tokenizer.is_fast:
            raise ValueError("token-classification needs a fast tokenizer, which knows the characters of each token.")
        return made

    def prepare_data(self, data: Any, input_column: str, label_column: str, join_by: str) -> Any:
        self.check_required_columns(data, {"input_column": input_column, "label_column": label_column})
        for column in (input_column, label_column):
            if not isinstance(data.features[column], datasets.List | datasets.LargeList):
                raise ValueError(f"the column {column} must hold a list of each row's tokens or tags.")
        labels = data.features[label_column].feature
        tags = [list(row) for row in data[label_column]]
        if isinstance(labels, datasets.ClassLabel):
            tags = [labels.int2str(row) for row in tags]
        elif labels.dtype != "string":
            raise ValueError(f"the column {label_column} must hold tags, or a ClassLabel that names them.")
        texts = datasets.Dataset.from_dict({input_column: [join_by.join(tokens) for tokens in data[input_column]]})
        return {"references": tags}, DatasetColumn(texts, input_column)


EVALUATORS: dict[str, tuple[type[Evaluator], str]] = {
    "translation": (TranslationEvaluator, "bleu"),
    "summarization": (SummarizationEvaluator, "chrf"),
    "question-answering": (QuestionAnsweringEvaluator, "answers"),
    "text-classification": (TextClassificationEvaluator, "labels"),
    "token-classification": (TokenClassificationEvaluator, "tags"),
    "text-generation": (TextGenerationEvaluator, "generated_text"),
}
"""The evaluator of each task, and the metric that it takes unless told otherwise."""


def register() -> None:
    """Put the evaluators into evaluate's table of tasks."""
    for task, (implementation, metric) in EVALUATORS.items():
        SUPPORTED_EVALUATOR_TASKS[task] = {"implementation": implementation, "default_metric_name": metric}


register()
