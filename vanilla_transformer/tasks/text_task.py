"""What the tasks on texts of one kind share: `TextData`, one tokenizer, rows of tokens, scores by evaluation."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar

import numpy as np
import torch
from transformers import EvalPrediction, PreTrainedModel, Trainer

from vanilla_transformer.data.collators import PaddingCollator
from vanilla_transformer.data.config import TextData
from vanilla_transformer.data.token_datasets import TokenDataset
from vanilla_transformer.modeling_vanilla_transformer import VanillaTransformerPreTrainedModel
from vanilla_transformer.tasks.settings import TRAINING_DEFAULTS, DataSection
from vanilla_transformer.tasks.task import Split, Task, TokenizedSplit
from vanilla_transformer.utils.languages import language_name
from vanilla_transformer.utils.public import escape_markdown

__all__ = ["TextTask"]


class TextTask(Task):
    """A task on texts of one kind.

    Attributes:
        column: of the data set, that the tokenizer is trained on.
        drops_long_texts: whether training leaves out texts of more than `data.max_length` tokens, and does not cut them.
    """

    training_defaults = {
        **TRAINING_DEFAULTS,
        "learning_rate": 5e-4,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0.05,
        "max_grad_norm": 1.0,
    }
    data_fields = frozenset({"language", "max_length"})
    tokenizer_fields = frozenset({"kind"})
    split_fields = frozenset({field.name for field in fields(TextData)}) - {"label"}
    noun = "texts"
    column: ClassVar[str] = "text"
    drops_long_texts: ClassVar[bool] = True

    @classmethod
    def data_config(cls, fields: Mapping[str, Any], data: DataSection) -> TextData:
        return TextData(**fields)

    @classmethod
    def length_limit(cls, data: DataSection) -> tuple[int, str]:
        return (data.block_size, "block_size") if data.block_size else (data.max_length, "max_length")

    def train_tokenizers(self, train: Split) -> None:
        data, longest = self.settings.data, {}
        if self.drops_long_texts and data.block_size is None:
            # every text of these tasks has an end token
            longest = {self.column: data.max_length - 1 - self.special_tokens["add_bos"]}
        self.tokenizer = self.train_tokenizer(train, [self.column], longest, self.as_text)

    @staticmethod
    def as_text(value: Any) -> str:
        """Return the text that a value of the column stands for."""
        return value

    def lengths(self, rows: TokenDataset) -> np.ndarray:
        return np.stack([rows.lengths, np.zeros_like(rows.lengths)], axis=1)

    def ids(self, split: TokenizedSplit, rows: Sequence[int]) -> list[int]:
        return [text_id for row in rows for text_id in split.tokenized.ids_of(row)]

    def evaluation_data(self, rows: TokenDataset, first: int | None = None) -> torch.utils.data.Subset:
        order = np.argsort(-rows.lengths[:first], kind="stable")
        return torch.utils.data.Subset(rows, order.tolist())

    def collator(self, model: VanillaTransformerPreTrainedModel) -> PaddingCollator:
        return PaddingCollator(self.tokenizer.pad_token_id)

    @property
    def in_language(self) -> str:
        """Return the language for sentences about the model."""
        code = self.settings.data.language
        return f" in {escape_markdown(language_name(code))}" if code else ""

    def trainer_options(self, validation: TokenizedSplit) -> dict[str, Any]:
        names = self.names_of(self.evaluation_data(validation.tokenized, self.settings.evaluation.sentences))
        return {
            "compute_metrics": lambda prediction: self.metrics(prediction, names),
            "preprocess_logits_for_metrics": self.reduced_logits,
        }

    @staticmethod
    def names_of(evaluated: torch.utils.data.Subset) -> list[Any]:
        """Return the labels of evaluated rows as they stand in the data, where there are any."""
        names = getattr(evaluated.dataset, "names", None)
        return [] if names is None else [names[index] for index in evaluated.indices]

    @abstractmethod
    def metrics(self, prediction: EvalPrediction, names: list[Any]) -> dict[str, float]:
        """Return the scores of an evaluation, by what `reduced_logits` gave and the labels of its rows."""

    @staticmethod
    @abstractmethod
    def reduced_logits(logits: Any, labels: Any) -> Any:
        """Return the little of a batch's logits that `metrics` needs, so that not all of them are kept."""

    def score(self, trainer: Trainer, split: TokenizedSplit) -> tuple[dict[str, Any], list[str]]:
        evaluated = self.evaluation_data(split.tokenized)
        of_validation, trainer.compute_metrics = trainer.compute_metrics, None
        try:
            found = trainer.predict(evaluated)
        finally:
            trainer.compute_metrics = of_validation
        names = self.names_of(evaluated)
        scores = self.metrics(EvalPrediction(predictions=found.predictions, label_ids=found.label_ids), names)
        facts = {self.noun: len(split.tokenized)} | {name: round(value, 4) for name, value in scores.items()}
        outputs = dict(zip(evaluated.indices, self.outputs(found.predictions, names), strict=False))
        return facts, [outputs[row] for row in sorted(outputs)]

    def outputs(self, predictions: Any, names: list[Any]) -> list[str]:
        """Return what is predicted for each evaluated row, as text, by what `reduced_logits` gave; none without labels."""
        return []

    @torch.inference_mode()
    def predicted(self, model: PreTrainedModel, inputs: dict[str, Any]) -> torch.Tensor:
        """Return the most probable class of each text or token, on the processor."""
        inputs = {name: value.to(model.device) for name, value in inputs.items()}
        logits = model(**inputs).logits
        return logits.argmax(-1).cpu()
