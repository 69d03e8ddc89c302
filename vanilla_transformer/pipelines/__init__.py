"""Pipelines that transformers 5 dropped: translation, summarization and extractive question answering.

Importing this module makes `transformers.pipeline("translation", ...)`, `"translation_xx_to_yy"`, `"summarization"` and
`"question-answering"` work again, for the models of this package and for transformers' own. Given a folder or Hub id, they
load it by the rules of `vanilla_transformer.loading`: no code that comes with it runs unless `trust_remote_code=True`, and
weights are safetensors unless `model_kwargs={"use_safetensors": False}`.
"""

import functools
import inspect
import os
import re
from collections.abc import Callable
from typing import Any

import transformers
from transformers import AutoModelForQuestionAnswering, AutoModelForSeq2SeqLM
from transformers import pipelines as _library
from transformers.pipelines import PIPELINE_REGISTRY

from vanilla_transformer.loading import load_model, load_tokenizer, locate
from vanilla_transformer.pipelines.question_answering import QuestionAnsweringPipeline
from vanilla_transformer.pipelines.text_to_text import SummarizationPipeline, TranslationPipeline

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
    if not hasattr(_library.pipeline, "_loads_safely"):
        _library.pipeline = transformers.pipeline = _loading_safely(_library.pipeline)


def _loading_safely(library_pipeline: Callable[..., Any]) -> Callable[..., Any]:
    """Return transformers' `pipeline`, with folders and Hub ids of the tasks above loaded as all of this package loads them.

    Transformers would ask on stdin whether to run a stranger's code, and its own tasks stay as they are.
    """
    signature = inspect.signature(library_pipeline)

    @functools.wraps(library_pipeline)
    def pipeline(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind_partial(*args, **kwargs).arguments
        options = given | given.pop("kwargs", {})
        task, model = options.get("task"), options.get("model")
        known = task if task in TASKS else "translation" if _is_translation(task) else None
        if known is not None and isinstance(model, str | os.PathLike) and options.get("config") is None:
            _load(TASKS[known][1], options)
        return library_pipeline(**options)

    pipeline._loads_safely = True  # type: ignore[attr-defined]
    return pipeline


def _load(automatic: Any, options: dict[str, Any]) -> None:
    """Put a model and its tokenizer in the place of the folder or id in the arguments of `pipeline`."""
    trust = bool(options.pop("trust_remote_code", False))
    source = locate(options["model"], revision=options.pop("revision", None))
    tokenizer = options.get("tokenizer")
    if tokenizer is None or isinstance(tokenizer, str | os.PathLike):
        options["tokenizer"] = load_tokenizer(source if tokenizer is None else tokenizer, trust_remote_code=trust)
    names = ("token", "local_files_only", "code_revision", "device_map", "dtype", "torch_dtype")
    of_model = {name: options.pop(name) for name in names if options.get(name) is not None}
    if "torch_dtype" in of_model:
        of_model["dtype"] = of_model.pop("torch_dtype")
    of_model = {"dtype": "auto", **of_model, **(options.pop("model_kwargs", None) or {})}
    options["model"] = load_model(source, automatic, trust_remote_code=trust, **of_model)


# on import, whether this module or that of transformers comes first
register()
