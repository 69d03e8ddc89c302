"""What all tasks have in common, and what each must say for itself."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer, TrainingArguments

from vanilla_transformer.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.data.batching import TokenBudgetBatchSampler
from vanilla_transformer.data.collators import PackingCollator
from vanilla_transformer.data.preparation import TokenizerTexts
from vanilla_transformer.data.reader import load_data
from vanilla_transformer.data.repeats import count_repeats
from vanilla_transformer.data.report import DataReport
from vanilla_transformer.data.rows import RowType
from vanilla_transformer.errors import RecipeError
from vanilla_transformer.loading import LoadingError, RemoteCodeError, Source, check_fit, load_model, locate
from vanilla_transformer.loading import load_tokenizer as read_tokenizer
from vanilla_transformer.modeling_vanilla_transformer import VanillaTransformerPreTrainedModel
from vanilla_transformer.tasks.settings import DataSection, TaskSettings
from vanilla_transformer.tokenization import train_tokenizer_of_kind
from vanilla_transformer.trainer.adapter import add_adapter
from vanilla_transformer.trainer.trainer import TokenTrainer
from vanilla_transformer.utils.log import Log

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["Collator", "Example", "ScoreColumn", "Split", "Task", "TokenizedSplit", "load_tokenizer"]

Collator = Callable[[list[dict[str, Any]]], dict[str, Any]]

NAMED = 50
"""How many examples a sentence names."""


@dataclass(frozen=True)
class Split:
    """A split of a run's data as read.

    Attributes:
        name: its place in the recipe: "data.train", "data.validation" or "data.test.NAME".
        dataset: the texts, with their ids and what else the task reads.
        report: what became of the rows.
    """

    name: str
    dataset: "Dataset"
    report: DataReport


@dataclass(frozen=True)
class TokenizedSplit(Split):
    """A split with its rows of tokens in `tokenized`."""

    tokenized: Any


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
        generates: whether the recipe's generation section has an effect.
        training_defaults, model_defaults, generation_defaults: fields of these sections of the recipe, where it does
            not set them.
        data_fields: of the recipe's data section, beside those that all tasks have.
        tokenizer_fields: of the tokenizer section, likewise.
        tokenizer_kind: of tokenizers, where the recipe does not choose another.
        split_fields: of the data config of a split.
        generation_fields: of this package's own generation settings, those that have an effect.
        curves: scores of an evaluation to be drawn: their keys, labels and scales.
        row_type: what the task reads of its data.
        noun: what the rows are called, in the plural.
        scores: of an evaluation, by which the best checkpoint can be chosen; "loss" is better when lower.
        packs: whether several rows can stand in one, in training.
        pipeline_tag, other_pipeline_tags: of the Hub, and what a recipe may name in its place.
        score_columns: of the card's table.
        usage: lines of Python behind the import of this package; see `use`.
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
    split_fields: ClassVar[frozenset[str]]
    generation_fields: ClassVar[frozenset[str]] = frozenset({"length_penalty_form"})
    curves: ClassVar[tuple[tuple[str, str, float], ...]] = ()
    row_type: ClassVar[RowType]
    noun: ClassVar[str]
    scores: ClassVar[tuple[str, ...]]
    pipeline_tag: ClassVar[str]
    other_pipeline_tags: ClassVar[tuple[str, ...]] = ()
    score_columns: ClassVar[tuple[ScoreColumn, ...]]
    usage: ClassVar[str]

    def __init__(self, settings: TaskSettings):
        self.settings = settings
        self.tokenizer: PreTrainedTokenizerBase

    # ------------------------------------------------------------------------------------------------------------ data

    @classmethod
    @abstractmethod
    def data_config(cls, fields: Mapping[str, Any], data: DataSection) -> Any:
        """Return the data config of a split.

        Args:
            fields: of the split, all of them known.
            data: the section that it stands in.

        Raises:
            ValueError: for a value of the wrong type, or fields that contradict each other.
        """

    @classmethod
    @abstractmethod
    def length_limit(cls, data: DataSection) -> tuple[int, str]:
        """Return the tokens of the longest text that training may see, of a side where there are two, and the field that says so."""

    def load(self, config: Any) -> "tuple[Dataset, DataReport]":
        """Return the rows of a data config, and what became of them."""
        return load_data(config, self.row_type)

    def prepare(self, splits: Mapping[str, Split], ready: str | Path | None) -> None:
        """Make what turns text into tokens: the tokenizer, trained on the training text or, where `ready`, loaded."""
        ready = ready or self.settings.tokenizer.path or self.settings.start_from
        if ready is None:
            self.train_tokenizers(splits["data.train"])
        else:
            self.load_tokenizers(ready)

    @abstractmethod
    def train_tokenizers(self, train: Split) -> None:
        """Train the tokenizer, or one for each side."""

    def load_tokenizers(self, ready: str | Path) -> None:
        """Load what `train_tokenizers` has trained before, or somebody else."""
        self.tokenizer = load_tokenizer(ready)
        if self.tokenizer.pad_token_id is None:
            raise RecipeError(f"the tokenizer in {ready} has no padding token; give it one and save it again.")

    @abstractmethod
    def encode(self, split: Split) -> Any:
        """Return the rows of tokens of a split; rows that are dropped are reported."""

    def read(
        self, configs: Mapping[str, Any], ready: str | Path | None = None, log: Log = print
    ) -> dict[str, TokenizedSplit]:
        """Read splits, from files to rows of tokens.

        Args:
            configs: data configs by the names of their splits; "data.train" and "data.validation" at least, which tokenizer
                and labels come from.
            ready: a folder with a tokenizer to use instead.
            log: receives what became of each split.

        Raises:
            RecipeError, FileNotFoundError, ValueError: for data that cannot be read or used, naming the split.
        """
        splits = {name: Split(name, *self.load(config)) for name, config in configs.items()}
        train = splits["data.train"].report
        count_repeats(train, [split.report for split in splits.values() if split.report is not train])
        self.prepare(splits, ready)
        self.record_lengths()
        tokenized = {}
        for name, split in splits.items():
            try:
                rows = self.encode(split)
            except RecipeError:
                raise
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
            tokenized[name] = TokenizedSplit(name, split.dataset, split.report, rows)
            log(str(split.report))
        return tokenized

    def train_tokenizer(
        self, train: Split, columns: Sequence[str], longest: Mapping[str, int], join: Callable[[Any], str] = str
    ) -> PreTrainedTokenizerBase:
        """Train a tokenizer on columns of the training text, and report what is left out.

        Args:
            longest: for a column, the tokens that training allows its texts, without special tokens.
            join: makes a text of what stands in a column.
        """
        section = self.settings.tokenizer
        kind = section.kind or self.tokenizer_kind
        texts = TokenizerTexts(train.dataset, tuple(columns), kind, longest, join)
        tokenizer = train_tokenizer_of_kind(
            kind,
            texts,
            vocab_size=section.vocab_size,
            min_frequency=section.min_frequency,
            lowercase=section.lowercase,
            split_digits=section.split_digits,
            **self.special_tokens,
        )
        if (note := texts.note()) and note not in train.report.notes:
            train.report.notes.append(note)
        return tokenizer

    @property
    def special_tokens(self) -> dict[str, bool]:
        """Return which special tokens the tokenizer adds to a text, and whether it has one that stands for a masked token."""
        return {"add_bos": False, "add_eos": True, "mask_token": False}

    @property
    def longest_text(self) -> int:
        """Return the tokens of the longest text that training may have seen."""
        return self.length_limit(self.settings.data)[0]

    def record_lengths(self) -> None:
        """Have the tokenizer say, to whoever loads it, how long the texts of training were."""
        self.tokenizer.model_max_length = self.longest_text

    def save(self, folder: Path) -> None:
        """Write the tokenizer into a run's folder."""
        self.tokenizer.save_pretrained(folder)

    def train_data(self, rows: Any) -> Any:
        """Return what the trainer reads; an object with `set_epoch` is told each epoch's number."""
        return rows

    @abstractmethod
    def evaluation_data(self, rows: Any, first: int | None = None) -> Any:
        """Return the first rows, or all, sorted by length so that the batches of an evaluation hold little padding."""

    @abstractmethod
    def lengths(self, rows: Any) -> np.ndarray:
        """Return source and target lengths (n, 2), for batches by token budget; 0 where there is no target."""

    def batch_sampler(self, split: TokenizedSplit) -> TokenBudgetBatchSampler:
        """Return batches of a split as the recipe's batches section has them."""
        batches = self.settings.batches
        return TokenBudgetBatchSampler(
            self.lengths(split.tokenized),
            batches.max_tokens,
            max_sentences=batches.max_sentences,
            seed=self.settings.seed,
            count=batches.count,
            packed=batches.packing,
        )

    @abstractmethod
    def ids(self, split: TokenizedSplit, rows: Sequence[int]) -> list[int]:
        """Return the ids, in the data, of the texts that rows of tokens come from: one for each row, more for a block."""

    def name_rows(self, split: TokenizedSplit, rows: Sequence[int]) -> str:
        """Name the texts of rows of tokens by their lines, for a sentence; where they are many, the first of them."""
        ids = list(dict.fromkeys(self.ids(split, rows)))
        places = ", ".join(split.report.place(text_id) for text_id in ids[:NAMED])
        more = f" and {len(ids) - NAMED} more" if len(ids) > NAMED else ""
        return f"the {'lines' if split.report.files else 'rows'} {places}{more} of {split.report.name}"

    # ----------------------------------------------------------------------------------------------------------- model

    def config_fields(self) -> dict[str, Any]:
        """Return the fields of the configuration that follow from the data."""
        fields = {name: getattr(self.tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
        return {"vocab_size": len(self.tokenizer), **fields}

    def vocabularies(self, config: VanillaTransformerConfig) -> list[tuple[str, PreTrainedTokenizerBase, int]]:
        """Return the fields of the model that say how many tokens it has, with the tokenizer of each."""
        return [("vocab_size", self.tokenizer, config.vocab_size)]

    def model(self, config: VanillaTransformerConfig, log: Log) -> VanillaTransformerPreTrainedModel:
        """Return a new model, or the one to start from with this task's head; say what is new in it.

        Args:
            config: with `config_fields`.

        Raises:
            RecipeError: where the tokenizer has more tokens than the model.
        """
        for field, tokenizer, size in self.vocabularies(config):
            if len(tokenizer) > size:
                raise RecipeError(
                    f"the tokenizer has {len(tokenizer)} tokens but model.{field} is {size}, so some tokens have no "
                    "embedding; raise it, or leave it out to follow the tokenizer."
                )
        settings = self.settings
        model = self.head(config) if settings.start_from is None else self._pretrained_model(config, log)
        if model.can_generate():
            for name, value in settings.generation.items():
                setattr(model.generation_config, name, value)
        if settings.adapter.kind is None:
            return model
        adapted = add_adapter(model, settings.adapter, self.name, settings.start_from)
        trained, _ = adapted.get_nb_trainable_parameters()
        log(f"{trained:,} parameters are trained: an adapter ({settings.adapter.kind})")
        return adapted

    def _pretrained_model(self, config: VanillaTransformerConfig, log: Log) -> VanillaTransformerPreTrainedModel:
        start = str(self.settings.start_from)
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
                log(f"starting from {start}, {word}: {', '.join(sorted(keys))}")
        return model

    # --------------------------------------------------------------------------------------------- training and scores

    @abstractmethod
    def collator(self, model: VanillaTransformerPreTrainedModel) -> Collator:
        """Return what makes a padded batch of rows."""

    def packer(self, model: VanillaTransformerPreTrainedModel) -> Collator:
        """Return what makes a packed batch of rows, for tasks that have one."""
        return PackingCollator()

    def train_collator(self, model: VanillaTransformerPreTrainedModel) -> Collator:
        """Return what makes a batch of training: packed where the recipe says so."""
        return self.packer(model) if self.settings.batches.packing else self.collator(model)

    @abstractmethod
    def trainer_options(self, validation: TokenizedSplit) -> dict[str, Any]:
        """Return further arguments of the trainer: `compute_metrics` and what belongs to it."""

    @abstractmethod
    def score(self, trainer: Trainer, split: TokenizedSplit) -> tuple[dict[str, Any], list[str]]:
        """Score the trainer's model on a split.

        Returns:
            What metrics.json holds; and the outputs that were scored, one for each text of the split in its order, none
            where text is not scored by outputs.
        """

    @abstractmethod
    def examples(self, model: PreTrainedModel, split: TokenizedSplit, rows: Sequence[int]) -> list[Example]:
        """Return what the model, in evaluation mode, makes of the texts of a split in these rows."""

    @abstractmethod
    def score_line(self, scores: dict[str, Any]) -> str:
        """Return the scores in words."""

    # -------------------------------------------------------------------------------------------------- the model card

    @abstractmethod
    def purpose(self) -> str:
        """Return what the model does, to follow "trained from scratch" on the card."""

    @property
    @abstractmethod
    def intended_use(self) -> str:
        """Return for what the model is, where the recipe does not say; a sentence that begins with what one does with it."""

    def use(self, text: str) -> str:
        """Return a few lines of Python that use the model in the folder "." on a text."""
        imported = "import vanilla_transformer  # makes the model type known to transformers"
        return f"{imported}\n{self.usage.strip().format(text=text)}"

    @abstractmethod
    def results(self, scores: dict[str, Any]) -> list[tuple[str, str, float]]:
        """Return (metric type, its name with all that makes it comparable, value), for the Hub's model index."""

    def metric_args(self, metric: str) -> dict[str, Any]:
        """Return what a metric of `results` was computed with, by its type."""
        return {}


def load_tokenizer(folder: str | Path, subfolder: str = "") -> PreTrainedTokenizerBase:
    """Return a tokenizer from a folder or the Hub, or from a folder in these.

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
