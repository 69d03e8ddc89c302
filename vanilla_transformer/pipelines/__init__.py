"""Pipelines that transformers 5 dropped: translation, summarization and extractive question answering.

`register` makes `transformers.pipeline("translation", ...)`, `"translation_xx_to_yy"`, `"summarization"` and
`"question-answering"` work again, for the models of this package and for transformers' own.
"""

import re
from typing import Any

from transformers import AutoModelForQuestionAnswering, AutoModelForSeq2SeqLM
from transformers import pipelines as _library
from transformers.pipelines import PIPELINE_REGISTRY

from .question_answering import QuestionAnsweringPipeline
from .text_to_text import SummarizationPipeline, TranslationPipeline

__all__ = ["QuestionAnsweringPipeline", "SummarizationPipeline", "TranslationPipeline", "register"]

TASKS: dict[str, tuple[type, type]] = {
    "translation": (TranslationPipeline, AutoModelForSeq2SeqLM),
    "summarization": (SummarizationPipeline, AutoModelForSeq2SeqLM),
    "question-answering": (QuestionAnsweringPipeline, AutoModelForQuestionAnswering),
}


class _Aliases(dict[str, str]):
    """The registry's other names of tasks, in which every `translation_xx_to_yy` is one of "translation"."""

    def __contains__(self, task: Any) -> bool:
        return super().__contains__(task) or _is_translation(task)

    def __missing__(self, task: str) -> str:
        if _is_translation(task):
            return "translation"
        raise KeyError(task)


def _is_translation(task: Any) -> bool:
    return isinstance(task, str) and re.fullmatch("translation_.+_to_.+", task) is not None


def register() -> None:
    """Make the tasks known to `transformers.pipeline`, any number of times; one that is known already stays as it is."""
    for task, (pipeline_class, automatic) in TASKS.items():
        # transformers refuses these names before it looks at its registry
        getattr(_library, "REMOVED_TASKS", {}).pop(task, None)
        if task not in PIPELINE_REGISTRY.supported_tasks:
            PIPELINE_REGISTRY.register_pipeline(task, pipeline_class, pt_model=automatic, type="text")
    if not isinstance(PIPELINE_REGISTRY.task_aliases, _Aliases):
        PIPELINE_REGISTRY.task_aliases = _Aliases(PIPELINE_REGISTRY.task_aliases)
