"""What the pipelines on texts share: options by the names of parameters, inputs of all kinds, and saving."""

import inspect
import os
from collections.abc import Iterator
from typing import Any

from transformers.pipelines.base import ChunkPipeline

__all__ = ["TextPipeline"]


class TextPipeline(ChunkPipeline):
    """A pipeline whose steps take texts apart, compute on each part, and join what was computed."""

    _load_tokenizer = True
    _load_processor = _load_image_processor = _load_video_processor = _load_feature_extractor = False

    def __call__(self, inputs: Any, **options: Any) -> Any:
        if isinstance(inputs, list | tuple):
            return super().__call__(list(inputs), **options) if inputs else []
        if isinstance(inputs, Iterator):
            inputs = (each for each in inputs)  # of iterators, transformers knows generators alone
        return super().__call__(inputs, **options)

    def save_pretrained(self, save_directory: str | os.PathLike, **options: Any) -> None:
        """Save model and tokenizer. (The inherited one would save this class as remote code beside them.)"""
        self.model.save_pretrained(save_directory, **options)
        self.tokenizer.save_pretrained(save_directory)

    def _sanitize_parameters(self, **options: Any) -> tuple[dict[str, Any], ...]:
        """Return the options of each step, which are those that it has a parameter for, and of `_forward` all that are left.

        Raises:
            TypeError: for an option that no step takes.
        """
        given = {name: value for name, value in options.items() if value is not None}
        steps = [inspect.signature(step).parameters for step in (self.preprocess, self._forward, self.postprocess)]
        found = [{name: value for name, value in given.items() if name in step} for step in steps]
        left = {name: value for name, value in given.items() if not any(name in step for step in steps)}
        if left and not any(parameter.kind is parameter.VAR_KEYWORD for parameter in steps[1].values()):
            raise TypeError(f"{self.task} has no option {', '.join(left)}.")
        return found[0], found[1] | left, found[2]
