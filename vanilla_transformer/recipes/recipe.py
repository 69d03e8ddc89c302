"""A recipe: one YAML file that describes a run from data to model card.

    task: seq2seq
    output_dir: runs/my-translator
    data:
      source_language: en
      target_language: de
      train: {source: train.en, target: train.de}
      validation: {source: val.en, target: val.de}
    model: {preset: transformer-tiny, dropout: 0.3}
    training: {max_steps: 4000}

Every field can be overridden by `name=value` on the command line, with dots between the parts of a name.
"""

import dataclasses
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from vanilla_transformer.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.errors import RecipeError
from vanilla_transformer.recipes import checks
from vanilla_transformer.recipes.bounds import RECIPE, TRAINING, check_bounds
from vanilla_transformer.recipes.field_types import SECTION_TYPES, SPLIT_TYPES
from vanilla_transformer.recipes.model_config import build_config
from vanilla_transformer.recipes.presets import PRESETS, RecipePreset
from vanilla_transformer.recipes.sections import AveragingSection, CardSection, EarlyStoppingSection, StopSection
from vanilla_transformer.tasks import TASKS, Task
from vanilla_transformer.tasks.settings import BatchSection, DataSection, EvaluationSection, TokenizerSection
from vanilla_transformer.trainer.adapter import AdapterSection
from vanilla_transformer.trainer.checkpoints import LOWER_IS_BETTER
from vanilla_transformer.utils.atomic import atomic_file
from vanilla_transformer.utils.bounds import GENERATION
from vanilla_transformer.utils.schema import build_section, coerce_fields, override_fields, read_values, reject_unknown
from vanilla_transformer.utils.yaml_text import dump_yaml

__all__ = ["Recipe", "RecipeError", "field_type"]

_FREE_AT_RESUME = (
    *("num_train_epochs", "max_steps", "eval_", "per_device_eval_batch_size", "save_", "logging_", "report_to"),
    *("disable_tqdm", "dataloader_", "push_to_hub", "hub_"),
)
"""Beginnings of the names of training fields that may change when a run is resumed."""


@dataclass
class Recipe:
    """A run. Each section is documented in its own class.

    Attributes:
        task: one of the tasks in `vanilla_transformer.tasks`: "seq2seq", "causal-lm", "masked-lm",
            "sequence-classification", "token-classification". It sets the defaults of the sections.
        preset: "paper", "t2t", "fairseq", "fairseq-iwslt" or "transformers": how these train, as defaults of the model,
            training, averaging and generation sections; see `vanilla_transformer.recipes.presets`.
        start_from: a folder or Hub id of a model of this package whose weights and tokenizer are where training starts;
            what the task's head has beyond them is new. The model section may then leave out what that model says, and
            may not contradict it.
        adapter: small weights of PEFT that are trained in the place of those that `start_from` names.
        output_dir: the folder of the run.
        seed: of initialisation, dropout and batches.
        max_minutes: training stops after so many minutes, counted on where a run is resumed; None for no limit.
        model: `preset`, any field of `VanillaTransformerConfig`, and `attn_implementation`, by default what transformers
            finds best; vocabulary and token ids follow the tokenizer, and
            for seq2seq label smoothing is 0.1 (section 5.4) where nothing else is said.
        training: fields of `transformers.TrainingArguments`, for seq2seq `Seq2SeqTrainingArguments`;
            `learning_rate: noam` stands for the paper's peak `hidden_size^-0.5 * warmup_steps^-0.5`, `noam * 2.0` for twice
            that.
        generation: fields of `transformers.GenerationConfig`, `max_length_over_source` and `length_penalty_form`.
    """

    output_dir: str
    task: str = "seq2seq"
    preset: str | None = None
    seed: int = 1
    max_minutes: float | None = None
    start_from: str | None = None
    adapter: AdapterSection = field(default_factory=AdapterSection)
    data: DataSection = field(default_factory=DataSection)
    tokenizer: TokenizerSection = field(default_factory=TokenizerSection)
    model: dict[str, Any] = field(default_factory=dict)
    batches: BatchSection = field(default_factory=BatchSection)
    training: dict[str, Any] = field(default_factory=dict)
    averaging: AveragingSection = field(default_factory=AveragingSection)
    early_stopping: EarlyStoppingSection = field(default_factory=EarlyStoppingSection)
    evaluation: EvaluationSection = field(default_factory=EvaluationSection)
    stop_on: StopSection = field(default_factory=StopSection)
    generation: dict[str, Any] = field(default_factory=dict)
    card: CardSection = field(default_factory=CardSection)

    def __post_init__(self) -> None:
        # which neither transformers does, nor most shells behind `=`
        self.output_dir = os.path.expanduser(self.output_dir)
        self.start_from = self.start_from and os.path.expanduser(self.start_from)
        self.tokenizer.path = self.tokenizer.path and os.path.expanduser(self.tokenizer.path)
        task = TASKS.get(self.task)
        are_sections = all(isinstance(section, dict) for section in (self.model, self.training, self.generation))
        if task is None or not are_sections or self.preset not in (None, *PRESETS):
            return  # `check` will say so
        trained_as = PRESETS[self.preset] if self.preset else RecipePreset("")
        # here and not where they are used, so that the recipe in a run's folder says all that the run depends on
        self.training = {**task.training_defaults, **trained_as.training, **self.training}
        best = str(self.training["metric_for_best_model"]).removeprefix("eval_")
        self.training.setdefault("greater_is_better", best not in LOWER_IS_BETTER)
        self.tokenizer.kind = self.tokenizer.kind or task.tokenizer_kind
        preset = {} if self.start_from else {"preset": "transformer-base"}
        architecture = {} if self.start_from else {"architecture": task.architecture}
        model = dict(trained_as.model)
        # other published models, and one to start from, have an architecture already
        if self.start_from is None and str(self.model.get("preset", "transformer-")).startswith("transformer-"):
            model |= trained_as.architecture
        given = {VanillaTransformerConfig.attribute_map.get(name, name) for name in self.model}
        model = {n: v for n, v in {**task.model_defaults, **model}.items() if n not in given}
        self.model = {**preset, **architecture, **model, **self.model}
        if self.averaging.last is None:
            others = self.averaging.best > 1 or self.averaging.ema is not None
            self.averaging.last = 0 if others else int(trained_as.averaging.get("last", 5))
        defaults = {**task.generation_defaults, **(trained_as.generation if task.name == "seq2seq" else {})}
        if "max_length" in self.generation or "max_new_tokens" in self.generation:
            defaults.pop("max_length_over_source", None)
        if self.generation.get("num_beams") == 1:
            defaults.pop("length_penalty", None)
            defaults.pop("length_penalty_form", None)
        self.generation = {**defaults, **self.generation}

    def new_task(self) -> Task:
        """Return the task of a run by this recipe."""
        return TASKS[self.task](self)

    @classmethod
    def load(cls, path: str | Path, overrides: Iterable[str] = ()) -> "Recipe":
        """Read a recipe file and apply `name=value` overrides.

        Raises:
            RecipeError: for a file that is missing or no YAML mapping, an unknown field (naming the nearest one), a value
                of the wrong type, an ablation's recipe, and for all that [`Recipe.check`] refuses.
        """
        values = override_fields(read_values(path), overrides)
        if "ablation" in values:
            raise RecipeError(
                f"{path} has an ablation section, so it is a recipe for many runs: vanilla-transformer ablate {path}"
            )
        return cls.from_dict(values)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Recipe":
        """Build and check a recipe.

        Raises:
            RecipeError: as for [`Recipe.load`].
        """
        recipe = build_section(cls, coerce_fields(values, field_type), prefix="")
        recipe.check()
        return recipe

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as they stand in a file."""
        return dataclasses.asdict(self)

    def save(self, path: str | Path) -> None:
        """Write the recipe, with all defaults, as YAML."""
        text = dump_yaml(self.to_dict())
        with atomic_file(path) as stream:
            stream.write(text)

    def check(self) -> None:
        """Refuse what cannot be run.

        Raises:
            RecipeError: a clear one-line error.
        """
        # what the sections may hold for the task
        checks.check_names(self.task, self.preset)
        task = TASKS[self.task]
        checks.check_effects(task, self.data, self.tokenizer, self.evaluation, self.generation)
        checks.check_tokenizer(self.tokenizer, self.start_from)
        if "\0" in self.output_dir:
            raise RecipeError("output_dir holds a NUL character; leave it out.")
        # numbers with which a run would fail after work was done, or have no end
        values = self.to_dict()
        sections = ((f"{name}.", section) for name, section in values.items() if isinstance(section, dict))
        for prefix, section in (("", values), *sections):
            check_bounds({f"{prefix}{name}": value for name, value in section.items()}, RECIPE)
        check_bounds(self.training, TRAINING, "training.")
        check_bounds(self.generation, GENERATION, "generation.")
        # the model
        checks.check_model_fields(self.model)
        checks.check_memory(self._expected_config().num_parameters())
        checks.check_attention(self.model.get("attn_implementation"), lambda: task.head(self.config()))
        # each section by itself
        checks.check_training(self.training, task)
        checks.check_evaluation(self.evaluation)
        checks.check_generation(self.generation, task)
        checks.check_splits(self.data, task)
        self.splits()
        checks.check_batches(self.batches, task)
        checks.check_averaging(self.averaging, self.early_stopping, self.training)
        self.adapter.check(self.task, self.start_from)
        checks.check_card(self.card, task)
        checks.check_lengths(self.config(), self.data, self.batches.max_tokens, task)

    def splits(self, *names: str) -> dict[str, Any]:
        """Return the data configs of the named splits, or of all, by their places in the recipe.

        Raises:
            RecipeError: for an unknown field, a value of the wrong type, or fields that contradict each other.
        """
        task = TASKS[self.task]
        configs = {}
        for name, fields in self.data.splits().items():
            if names and name not in names:
                continue
            reject_unknown(fields, set(task.split_fields), name)
            try:
                configs[name] = task.data_config(fields, self.data)
            except (TypeError, ValueError) as error:
                raise RecipeError(f"{name}: {error}") from error
        return configs

    def config(self, **from_tokenizers: Any) -> VanillaTransformerConfig:
        """Return the model's configuration: the preset, what the tokenizers say, and the recipe's own fields before both.

        Raises:
            RecipeError: for a model that cannot be, or does not fit the task.
        """
        return build_config({**from_tokenizers, **self.model}, TASKS[self.task], self.start_from)

    def _expected_config(self) -> VanillaTransformerConfig:
        """Return the configuration before the tokenizer is trained, as its tokenizer will have it and not a published preset."""
        section = self.tokenizer
        if section.path is not None or self.start_from is not None or section.kind == "characters":
            return self.config()
        special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": None}
        return self.config(vocab_size=section.vocab_size, **special)

    def changes_since(self, earlier: "Recipe") -> list[str]:
        """Return the names of the fields in which a resumed run would no longer be the run that was started.

        How long it trains, when it is evaluated and saved, and what is made of the result may change.
        """

        def binding(recipe: Recipe) -> dict[str, Any]:
            values = recipe.to_dict()
            training = {name: v for name, v in values["training"].items() if not name.startswith(_FREE_AT_RESUME)}
            data = {name: v for name, v in values["data"].items() if name not in ("test", "license")}
            sections = {
                "data": data,
                "training": training,
                **{n: values[n] for n in ("tokenizer", "model", "batches")},
            }
            plain = {name: values[name] for name in ("task", "seed", "start_from")}
            plain |= {f"adapter.{name}": value for name, value in values["adapter"].items() if name != "merge"}
            plain["averaging.ema"] = values["averaging"]["ema"]
            return plain | {f"{name}.{key}": v for name, section in sections.items() for key, v in section.items()}

        before, now = binding(earlier), binding(self)
        return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))


def field_type(path: tuple[str, ...]) -> Any:
    """Return the type of a field of a recipe by the names that lead to it; None where it is not known."""
    hints = get_type_hints(Recipe)
    first, *rest = path
    if first not in hints:
        return None
    if not rest:
        return hints[first]
    if first == "data" and len(rest) > 1:
        return SPLIT_TYPES.get(rest[-1]) if len(rest) == (3 if rest[0] == "test" else 2) else None
    types = SECTION_TYPES.get(first) or get_type_hints(hints[first])
    return types.get(rest[0]) if len(rest) == 1 else None
