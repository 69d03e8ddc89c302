"""What all tasks have in common, and what each must say for itself."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from transformers import (
    EvalPrediction,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
)

from vanilla_transformer.data.batching import TokenBudgetBatchSampler
from vanilla_transformer.data.packing import PackRows
from vanilla_transformer.data.preparation import TokenizerTexts
from vanilla_transformer.data.repeats import count_repeats
from vanilla_transformer.data.report import DataReport
from vanilla_transformer.data.texts import TextData
from vanilla_transformer.errors import RecipeError
from vanilla_transformer.loading import LoadingError, RemoteCodeError, Source, check_fit, load_model, locate
from vanilla_transformer.loading import load_tokenizer as read_tokenizer
from vanilla_transformer.losses_vanilla_transformer import IGNORED
from vanilla_transformer.modeling_vanilla_transformer import VanillaTransformerPreTrainedModel
from vanilla_transformer.tokenization import train_character_tokenizer, train_tokenizer, train_wordpiece_tokenizer
from vanilla_transformer.trainer.adapter import add_adapter
from vanilla_transformer.trainer.trainer import TokenTrainer
from vanilla_transformer.utils.languages import language_name
from vanilla_transformer.utils.public import escape_markdown

if TYPE_CHECKING:
    from datasets import Dataset

    from vanilla_transformer.recipes.recipe import Recipe

__all__ = [
    "TRAINING_DEFAULTS",
    "Example",
    "PadRows",
    "Part",
    "RowsOfTokens",
    "ScoreColumn",
    "Task",
    "TextTask",
    "load_tokenizer",
]


# Adam as in section 5.3, and what every run of this package needs
TRAINING_DEFAULTS: dict[str, Any] = {
    "optim": "adamw_torch_fused",
    "adam_beta1": 0.9,
    "adam_beta2": 0.98,
    "adam_epsilon": 1e-9,
    "weight_decay": 0.0,
    "num_train_epochs": 20,
    "per_device_eval_batch_size": 64,
    "logging_steps": 50,
    "report_to": "none",
    "save_strategy": "epoch",
    "eval_strategy": "epoch",
    "load_best_model_at_end": True,
}


NAMED = 50
"""How many examples a sentence names."""


@dataclass
class Part:
    """One part of a run's data: as read, as rows of tokens, and what became of it."""

    name: str
    dataset: "Dataset"
    report: DataReport
    rows: Any = None


@dataclass(frozen=True)
class Example:
    """What a model made of one text of the data: what it was given, what the data has, and what it wrote."""

    source: str
    reference: str
    output: str


@dataclass(frozen=True)
class ScoreColumn:
    """A score as the model card shows it: its key in the scores, its heading, and how to write the value."""

    key: str
    heading: str
    format: str = "{}"


class Task(ABC):
    """One kind of run. A class says what all runs of the kind share, an instance holds what one run has read.

    Attributes:
        name: in recipes.
        head: class of the model.
        architecture: of the model, where the recipe does not choose another that the head serves.
        arguments_class, trainer_class: of transformers, and ours.
        label_names: of the batches.
        generates: whether the recipe's generation section means something.
        training_defaults, model_defaults, generation_defaults: fields of these sections of the recipe, where it does
            not set them.
        data_fields: of the recipe's data section, beside those that all tasks have.
        tokenizer_fields: of the tokenizer section, likewise.
        tokenizer_kind: of tokenizers, where the recipe does not choose another.
        part_fields: of the description of a part of the data.
        generation_fields: of this package's own generation settings, those that mean something.
        curves: scores of an evaluation to be drawn: their keys, labels and scales.
        noun: what the examples are called, in the plural.
        scores: of an evaluation, by which the best checkpoint can be chosen; "loss" is better when lower.
        packs: whether several rows can stand in one, in training.
        pipeline_tag, other_pipeline_tags: of the Hub, and what a recipe may name in its place.
        score_columns: of the card's table.
    """

    name: ClassVar[str]
    head: ClassVar[type[VanillaTransformerPreTrainedModel]]
    architecture: ClassVar[str]
    arguments_class: ClassVar[type[TrainingArguments]] = TrainingArguments
    trainer_class: ClassVar[type[Trainer]] = TokenTrainer
    training_defaults: ClassVar[dict[str, Any]]
    model_defaults: ClassVar[dict[str, Any]] = {}
    generation_defaults: ClassVar[dict[str, Any]] = {}
    label_names: ClassVar[tuple[str, ...]] = ("labels",)
    generates: ClassVar[bool] = False
    packs: ClassVar[bool] = True
    data_fields: ClassVar[frozenset[str]] = frozenset()
    tokenizer_fields: ClassVar[frozenset[str]] = frozenset()
    evaluation_fields: ClassVar[frozenset[str]] = frozenset()
    tokenizer_kind: ClassVar[str] = "bpe"
    part_fields: ClassVar[frozenset[str]]
    generation_fields: ClassVar[frozenset[str]] = frozenset({"length_penalty_form"})
    curves: ClassVar[tuple[tuple[str, str, float], ...]] = ()
    noun: ClassVar[str]
    scores: ClassVar[tuple[str, ...]]
    pipeline_tag: ClassVar[str]
    other_pipeline_tags: ClassVar[tuple[str, ...]] = ()
    score_columns: ClassVar[tuple[ScoreColumn, ...]]

    def __init__(self, recipe: "Recipe"):
        self.recipe = recipe
        self.tokenizer: PreTrainedTokenizerBase

    # Data

    @abstractmethod
    def specification(self, values: dict[str, Any]) -> Any:
        """The description of one part of the data; unknown fields are found before.

        Raises:
            ValueError: for a value of the wrong type, or a description that contradicts itself.
        """

    @abstractmethod
    def load(self, specification: Any) -> "tuple[Dataset, DataReport]":
        """The texts that a description names."""

    @abstractmethod
    def prepare(self, parts: dict[str, Part], ready: str | Path | None) -> None:
        """Make what turns text into rows: the tokenizer, trained on the training text or, where `ready`, loaded."""

    @abstractmethod
    def encode(self, part: Part) -> Any:
        """Rows of tokens of a part; rows that are dropped are reported."""

    def read(
        self, names: Iterable[str], ready: str | Path | None = None, say: Callable[[str], None] = print
    ) -> dict[str, Part]:
        """Parts of the data, from files to rows of tokens.

        Args:
            names: as in `Recipe.data_parts`; "data.train" and "data.validation" at least, which tokenizer and labels come
                from.
            ready: a folder with a tokenizer to use instead.
            say: receives what became of each part.

        Raises:
            RecipeError, FileNotFoundError, ValueError: for data that cannot be read or used, naming the part.
        """
        parts = {name: Part(name, *self.load(self.recipe.specification(name))) for name in names}
        train = parts["data.train"].report
        count_repeats(train, [part.report for part in parts.values() if part.report is not train])
        self.prepare(parts, ready)
        self.record_lengths()
        for part in parts.values():
            try:
                part.rows = self.encode(part)
            except RecipeError:
                raise
            except ValueError as error:
                raise ValueError(f"{part.name}: {error}") from error
            say(str(part.report))
        return parts

    def record_lengths(self) -> None:
        """Have the tokenizer say, to whoever loads it, how long the texts of training were."""
        self.tokenizer.model_max_length = self.longest_text

    def save(self, folder: Path) -> None:
        """Write the tokenizer into a run's folder."""
        self.tokenizer.save_pretrained(folder)

    def train_data(self, rows: Any) -> Any:
        """What the trainer reads; an object with `set_epoch` is told each epoch's number."""
        return rows

    @abstractmethod
    def evaluation_data(self, rows: Any, first: int | None = None) -> Any:
        """The first rows, or all, sorted by length so that the batches of an evaluation hold little padding."""

    @abstractmethod
    def lengths(self, rows: Any) -> np.ndarray:
        """(n, 2): source and target lengths, for batches by token budget; 0 where there is no target."""

    def batch_sampler(self, part: Part) -> TokenBudgetBatchSampler:
        """Batches of a part as the recipe's batches section has them."""
        batches = self.recipe.batches
        return TokenBudgetBatchSampler(
            self.lengths(part.rows),
            batches.max_tokens,
            max_sentences=batches.max_sentences,
            seed=self.recipe.seed,
            count=batches.count,
            packed=batches.packing,
        )

    @abstractmethod
    def ids(self, part: Part, rows: Sequence[int]) -> list[int]:
        """Ids, in the data, of the texts that rows of tokens come from: one for each row, more for a block of several."""

    def name_rows(self, part: Part, rows: Sequence[int]) -> str:
        """Names the texts of rows of tokens by their lines, for a sentence; where they are many, the first of them."""
        ids = list(dict.fromkeys(self.ids(part, rows)))
        places = ", ".join(part.report.place(text_id) for text_id in ids[:NAMED])
        more = f" and {len(ids) - NAMED} more" if len(ids) > NAMED else ""
        return f"the {'lines' if part.report.files else 'rows'} {places}{more} of {part.report.name}"

    # Model

    def config_fields(self) -> dict[str, Any]:
        """Fields of the configuration that follow from the data."""
        fields = {name: getattr(self.tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
        return {"vocab_size": len(self.tokenizer), **fields}

    def model(self, say: Callable[[str], None]) -> VanillaTransformerPreTrainedModel:
        """A new model, or the one to start from with this task's head; says what is new in it.

        Raises:
            RecipeError: where the tokenizer has more tokens than the model.
        """
        config = self.recipe.config(**self.config_fields())
        for field, tokenizer, size in self.vocabularies(config):
            if len(tokenizer) > size:
                raise RecipeError(
                    f"the tokenizer has {len(tokenizer)} tokens but model.{field} is {size}, so some tokens have no "
                    "embedding; raise it, or leave it out to follow the tokenizer."
                )
        if self.recipe.start_from is None:
            model = self.head(config)
        else:
            model = self._started(config, say)
        if model.can_generate():
            for name, value in self.recipe.generation.items():
                setattr(model.generation_config, name, value)
        if self.recipe.adapter.kind is not None:
            adapted = add_adapter(model, self.recipe.adapter, self.name, self.recipe.start_from)
            trained, _ = adapted.get_nb_trainable_parameters()
            say(f"{trained:,} parameters are trained: an adapter ({self.recipe.adapter.kind})")
            return adapted
        return model

    def _started(self, config: Any, say: Callable[[str], None]) -> VanillaTransformerPreTrainedModel:
        start = str(self.recipe.start_from)
        found: dict[str, Any] = {}

        def check(source: Source, model: Any, info: dict[str, Any]) -> None:
            # the head may be new, and heads of another task are left behind
            found.update(info)
            body = [name for name in info["missing_keys"] if name.startswith(f"{model.base_model_prefix}.")]
            layers = [name for name in info["unexpected_keys"] if name.startswith(f"{model.base_model_prefix}.")]
            check_fit(source, model, {**info, "missing_keys": body, "unexpected_keys": layers})

        try:
            model = load_model(start, self.head, config=config, check=check)
        except (LoadingError, OSError) as error:
            raise RecipeError(f"start_from: {error}") from error
        for word, keys in (("new", found["missing_keys"]), ("left behind", found["unexpected_keys"])):
            if keys:
                say(f"starting from {start}, {word}: {', '.join(sorted(keys))}")
        return model

    def vocabularies(self, config: Any) -> list[tuple[str, PreTrainedTokenizerBase, int]]:
        """The fields of the model that say how many tokens it has, with the tokenizer of each."""
        return [("vocab_size", self.tokenizer, config.vocab_size)]

    # Training and scores

    @abstractmethod
    def collator(self, model: VanillaTransformerPreTrainedModel) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        """Rows to a batch."""

    def packer(self, model: VanillaTransformerPreTrainedModel) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        """Rows to a packed batch, for tasks that have one."""
        return PackRows()

    def train_collator(
        self, model: VanillaTransformerPreTrainedModel
    ) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        """Rows to a batch of training: packed where the recipe says so."""
        return self.packer(model) if self.recipe.batches.packing else self.collator(model)

    @abstractmethod
    def trainer_options(self, validation: Part) -> dict[str, Any]:
        """Further arguments of the trainer: `compute_metrics` and what belongs to it."""

    @abstractmethod
    def score(self, trainer: Trainer, part: Part) -> tuple[dict[str, Any], list[str]]:
        """Score the trainer's model on a part.

        Returns:
            What metrics.json holds; and the outputs that were scored, one for each text of the part in its order, none
            where text is not scored by outputs.
        """

    @abstractmethod
    def examples(self, model: PreTrainedModel, part: Part, rows: Sequence[int]) -> list[Example]:
        """Return what the model, in evaluation mode, makes of the texts of a part in these rows."""

    @abstractmethod
    def score_line(self, scores: dict[str, Any]) -> str:
        """The scores in words."""

    # Words

    @property
    @abstractmethod
    def longest_text(self) -> int:
        """The number of tokens of the longest text that training may have seen; of a side, where there are two."""

    @property
    @abstractmethod
    def longest_field(self) -> str:
        """The field of the recipe's data section that says so."""

    @abstractmethod
    def purpose(self) -> str:
        """What the model does, to follow "trained from scratch" on the card."""

    @property
    @abstractmethod
    def intended_use(self) -> str:
        """For what the model is, where the recipe does not say; in a sentence that begins with what one does with it."""

    @abstractmethod
    def use(self, text: str) -> str:
        """Return a few lines of Python that use the model in the folder "." on a text."""

    @abstractmethod
    def results(self, scores: dict[str, Any]) -> list[tuple[str, str, float]]:
        """(metric type, its name with all that makes it comparable, value), for the Hub's model index."""

    def metric_args(self, metric: str) -> dict[str, Any]:
        """What a metric of `results` was computed with, by its type."""
        return {}


@dataclass
class PadRows:
    """Rows of lists to a batch of tensors, each list padded on the right to the longest of the batch.

    Args:
        pad_token_id: fills `input_ids`; labels are filled with -100. Single numbers are stacked.
    """

    pad_token_id: int

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = {}
        for name, first in rows[0].items():
            values = [row[name] for row in rows]
            if isinstance(first, int):
                batch[name] = torch.tensor(values)
                continue
            filler = self.pad_token_id if name == "input_ids" else IGNORED
            tensors = [torch.as_tensor(value, dtype=torch.long) for value in values]
            batch[name] = torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=filler)
        lengths = torch.tensor([len(row["input_ids"]) for row in rows])
        places = torch.arange(batch["input_ids"].shape[1])
        return {**batch, "attention_mask": (places < lengths.unsqueeze(1)).long()}


def load_tokenizer(folder: str | Path, subfolder: str = "") -> PreTrainedTokenizerBase:
    """A tokenizer from a folder or the Hub, or from a folder in these.

    Raises:
        RecipeError: where there is none.
    """
    try:
        return read_tokenizer(locate(folder, needs=None), subfolder)
    except RemoteCodeError as error:
        raise RecipeError(
            f"{error.what}, and training runs no code of others; give a tokenizer that transformers has a class for."
        ) from error
    except (LoadingError, OSError, ImportError) as error:
        raise RecipeError(str(error)) from error


class RowsOfTokens(torch.utils.data.Dataset):
    """Rows whose lengths are known beforehand.

    Args:
        lengths: number of tokens of each row.
        ids: of each text in the data; by default their numbers from 1.
    """

    def __init__(self, lengths: Sequence[int], ids: Sequence[int] | None = None):
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.ids = ids

    def ids_of(self, index: int) -> list[int]:
        """Of the texts that a row comes from."""
        return self._ids(index, index + 1)

    def _ids(self, first: int, end: int) -> list[int]:
        return list(range(first + 1, end + 1)) if self.ids is None else list(self.ids[first:end])

    def __len__(self) -> int:
        return len(self.lengths)


class TextTask(Task):
    """What the tasks on texts of one kind share: `TextData`, one tokenizer, rows of tokens, scores by evaluation."""

    training_defaults = {
        **TRAINING_DEFAULTS,
        "learning_rate": 5e-4,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0.05,
        "max_grad_norm": 1.0,
    }
    data_fields = frozenset({"language", "max_length"})
    tokenizer_fields = frozenset({"kind"})
    part_fields = frozenset({field.name for field in fields(TextData)}) - {"label"}
    noun: ClassVar[str] = "texts"

    def specification(self, values: dict[str, Any]) -> TextData:
        return TextData(**values)

    def prepare(self, parts: dict[str, Part], ready: str | Path | None) -> None:
        section = self.recipe.tokenizer
        ready = ready or section.path or self.recipe.start_from
        if ready is not None:
            self.tokenizer = load_tokenizer(ready)
            if self.tokenizer.pad_token_id is None:
                raise RecipeError(f"the tokenizer in {ready} has no padding token; give it one and save it again.")
            return
        train = parts["data.train"]
        texts = self.tokenizer_texts(train.dataset)
        self.tokenizer = self._trained_tokenizer(texts)
        if note := texts.note():
            train.report.notes.append(note)

    def _trained_tokenizer(self, texts: TokenizerTexts) -> PreTrainedTokenizerBase:
        section = self.recipe.tokenizer
        options: dict[str, Any] = {"lowercase": section.lowercase, **self.special_tokens}
        if section.kind == "characters":
            return train_character_tokenizer(texts, **options)
        options["min_frequency"] = section.min_frequency
        if section.kind == "wordpiece":
            return train_wordpiece_tokenizer(texts, section.vocab_size, **options)
        return train_tokenizer(texts, section.vocab_size, split_digits=section.split_digits, **options)

    @property
    def special_tokens(self) -> dict[str, bool]:
        """Which special tokens the tokenizer adds to a text, and whether it has one that stands for a masked token."""
        return {"add_bos": False, "add_eos": True, "mask_token": False}

    drops_long_texts: ClassVar[bool] = True
    """Whether training leaves out texts of more than `data.max_length` tokens, and does not cut them."""

    def tokenizer_texts(self, dataset: "Dataset") -> TokenizerTexts:
        """Return what the tokenizer is trained on."""
        return TokenizerTexts(dataset, ("text",), self.recipe.tokenizer.kind or "bpe", self.longest_texts("text"))

    def longest_texts(self, column: str) -> dict[str, int]:
        """Return how many tokens a text may have, without special tokens, to be trained on; nothing where any may."""
        if not self.drops_long_texts or self.recipe.data.block_size is not None:
            return {}
        # every text of these tasks has an end token
        return {column: self.recipe.data.max_length - 1 - self.special_tokens["add_bos"]}

    def lengths(self, rows: Any) -> np.ndarray:
        return np.stack([rows.lengths, np.zeros_like(rows.lengths)], axis=1)

    def ids(self, part: Part, rows: Sequence[int]) -> list[int]:
        return [text_id for row in rows for text_id in part.rows.ids_of(row)]

    def evaluation_data(self, rows: RowsOfTokens, first: int | None = None) -> torch.utils.data.Subset:
        order = np.argsort(-rows.lengths[:first], kind="stable")
        return torch.utils.data.Subset(rows, order.tolist())

    def collator(self, model: VanillaTransformerPreTrainedModel) -> PadRows:
        return PadRows(self.tokenizer.pad_token_id)

    @property
    def longest_text(self) -> int:
        return self.recipe.data.block_size or self.recipe.data.max_length

    @property
    def longest_field(self) -> str:
        return "block_size" if self.recipe.data.block_size else "max_length"

    @property
    def in_language(self) -> str:
        """For sentences about the model."""
        code = self.recipe.data.language
        return f" in {escape_markdown(language_name(code))}" if code else ""

    def trainer_options(self, validation: Part) -> dict[str, Any]:
        names = self.names_of(self.evaluation_data(validation.rows, self.recipe.evaluation.sentences))
        return {
            "compute_metrics": lambda prediction: self.metrics(prediction, names),
            "preprocess_logits_for_metrics": self.reduced_logits,
        }

    @staticmethod
    def names_of(evaluated: torch.utils.data.Subset) -> list[Any]:
        """The labels of evaluated rows as they stand in the data, where there are any."""
        names = getattr(evaluated.dataset, "names", None)
        return [] if names is None else [names[index] for index in evaluated.indices]

    @abstractmethod
    def metrics(self, prediction: EvalPrediction, names: list[Any]) -> dict[str, float]:
        """Scores of an evaluation, by what `reduced_logits` gave and the labels of its rows."""

    @staticmethod
    @abstractmethod
    def reduced_logits(logits: Any, labels: Any) -> Any:
        """The little of a batch's logits that `metrics` needs, so that not all of them are kept."""

    def score(self, trainer: Trainer, part: Part) -> tuple[dict[str, Any], list[str]]:
        evaluated = self.evaluation_data(part.rows)
        of_validation, trainer.compute_metrics = trainer.compute_metrics, None
        try:
            found = trainer.predict(evaluated)
        finally:
            trainer.compute_metrics = of_validation
        names = self.names_of(evaluated)
        scores = self.metrics(EvalPrediction(predictions=found.predictions, label_ids=found.label_ids), names)
        facts = {self.noun: len(part.rows)} | {name: round(value, 4) for name, value in scores.items()}
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
