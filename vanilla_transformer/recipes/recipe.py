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
import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import torch
from sacrebleu.metrics import BLEU
from transformers import GenerationConfig, PreTrainedConfig, SchedulerType, Seq2SeqTrainingArguments
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from vanilla_transformer.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.data.batching import COUNTS
from vanilla_transformer.data.config import ParallelData, TextData
from vanilla_transformer.errors import RecipeError
from vanilla_transformer.loading import LoadingError, RemoteCodeError, load_config, locate
from vanilla_transformer.recipes.bounds import GENERATION, RECIPE, TRAINING, check_bounds, machine_memory
from vanilla_transformer.recipes.licenses import LICENSES, OTHER_LICENSE, nearest_license
from vanilla_transformer.recipes.presets import PRESETS, RecipePreset
from vanilla_transformer.tasks import TASKS, Task
from vanilla_transformer.tasks.settings import BatchSection, DataSection, EvaluationSection, TokenizerSection
from vanilla_transformer.tokenization import TOKENIZER_KINDS
from vanilla_transformer.trainer.adapter import AdapterSection
from vanilla_transformer.trainer.checkpoints import LOWER_IS_BETTER
from vanilla_transformer.trainer.schedules import DECAY, SCHEDULE_OPTIONS, noam_factor
from vanilla_transformer.utils.atomic import atomic_file
from vanilla_transformer.utils.names import did_you_mean
from vanilla_transformer.utils.schema import (
    build_section,
    coerce,
    coerce_fields,
    override_fields,
    read_values,
    reject_unknown,
    shown,
)
from vanilla_transformer.utils.yaml_text import dump_yaml

__all__ = [
    "AveragingSection",
    "BatchSection",
    "CardSection",
    "DataSection",
    "EarlyStoppingSection",
    "EvaluationSection",
    "Recipe",
    "RecipeError",
    "StopSection",
    "TokenizerSection",
    "field_type",
]


@dataclass
class AveragingSection:
    """Means of weights (section 6.1), any of which is kept where it scores at least as well as the best checkpoint.

    Attributes:
        last: of the last so many checkpoints; 0 or 1 for none. By default none where one of the others is wanted, else
            what `preset` says, or 5.
        best: of the so many checkpoints with the best `training.metric_for_best_model`, which are not deleted as old
            ones are; 0 or 1 for none.
        ema: decay of an exponential moving average over the updates, such as 0.999, which reaches back some
            1 / (1 - decay) updates; None for none. Evaluations score the average, and checkpoints hold it as their
            model, beside the weights that training goes on with.
    """

    last: int | None = None
    best: int = 0
    ema: float | None = None


@dataclass
class EarlyStoppingSection:
    """Training ends before its time where `training.metric_for_best_model`, such as bleu or loss, no longer improves.

    Attributes:
        patience: evaluations in a row without improvement, after which training stops; None for never.
        threshold: what is not better by more than this is no improvement.
    """

    patience: int | None = None
    threshold: float = 0.0


@dataclass
class StopSection:
    """When training has diverged, and ends with an error that names the examples; see `DivergenceRule`.

    Attributes:
        non_finite: when the loss, the gradient norm or a weight is not a finite number; with fp16, when that goes on.
        loss_over_median: when the loss stays above so many times its running median; None for never.
        updates: how many in a row the loss is above it.
    """

    non_finite: bool = True
    loss_over_median: float | None = 3.0
    updates: int = 10


@dataclass
class CardSection:
    """What the model card says beyond what the run knows; may change when a run is resumed.

    Attributes:
        title, description: of the model.
        pipeline_tag: what the Hub lists the model under; by default what the task says, for pairs of texts translation,
            which may be summarization instead.
        intended_use, out_of_scope, limits: for what the model is, for what it is not, and where it is known to fail; beside
            what holds for every model of the task, or in its place.
        license: of the weights, an identifier of the Hub such as `apache-2.0`; None for no licence at all.
        license_name, license_link: with `license: other`, its name, such as `my-license-1.0`, and where it stands: an
            address, or LICENSE for a file of that name that is put into the repository.
        watts: of one processor (core, or accelerator), for the estimate of energy; by default those of an unnamed kind.
        grams_co2_per_kwh: carbon intensity of the electricity; only with it, emissions are estimated, too.
        location: where the machine stands, such as "Quebec, Canada".
    """

    title: str | None = None
    description: str | None = None
    pipeline_tag: str | None = None
    intended_use: str | None = None
    out_of_scope: str | None = None
    limits: str | None = None
    license: str | None = None
    license_name: str | None = None
    license_link: str | None = None
    watts: float | None = None
    grams_co2_per_kwh: float | None = None
    location: str | None = None


# fields of TrainingArguments that the recipe sets elsewhere
_SET_ELSEWHERE = {
    "output_dir": "output_dir",
    "seed": "seed",
    "label_smoothing_factor": "model.label_smoothing",
    "per_device_train_batch_size": "batches.max_tokens",
    "generation_num_beams": "evaluation.num_beams",
    "generation_max_length": "generation.max_length",
}

# fields of the tokenizer section that every task has
_TOKENIZER_OF_ALL = ("vocab_size", "min_frequency", "lowercase", "split_digits", "path")

# settings of generation that this package adds to transformers', with their defaults
_OWN_GENERATION_FIELDS = {"max_length_over_source": 50, "length_penalty_form": "power"}

# settings of generation without a default to tell their type by
_GENERATION_TYPES: dict[str, Any] = {
    **dict.fromkeys(("pad_token_id", "bos_token_id", "forced_bos_token_id"), int),
    **dict.fromkeys(("eos_token_id", "forced_eos_token_id", "decoder_start_token_id"), int | list),
    **dict.fromkeys(("bad_words_ids", "force_words_ids", "suppress_tokens", "begin_suppress_tokens"), list),
    **dict.fromkeys(("renormalize_logits", "token_healing", "disable_compile"), bool),
    **dict.fromkeys(("cache_config", "watermarking_config"), dict),
    "exponential_decay_length_penalty": list,
    "sequence_bias": dict | list,
    "stop_strings": str | list,
}

# settings of generation with which a run that scores what it writes would end at its first evaluation, and why
_GENERATION_REFUSED: dict[str, str] = {
    **dict.fromkeys(("num_return_sequences", "return_dict_in_generate"), "evaluations score one text for each source"),
    **dict.fromkeys(
        ("prompt_lookup_num_tokens", "assistant_early_exit", "is_assistant", "use_mtp", "speculation_type"),
        "evaluations generate in batches, and transformers speculates about one text at a time",
    ),
    **dict.fromkeys(
        ("num_beam_groups", "diversity_penalty", "penalty_alpha", "dola_layers", "constraints", "force_words_ids"),
        "transformers does this by code from the Hub, which is not run unasked",
    ),
    "stop_strings": "evaluations end texts by eos_token_id",
    "guidance_scale": "it needs a negative prompt for each text",
}
_GENERATION_WITHOUT_EFFECT = {"num_return_sequences": 1, "num_beam_groups": 1, "guidance_scale": 1}

# fields of the model that may differ from those of the model to start from
_FREE_AT_START = {
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "label_smoothing",
    "label_smoothing_form",
    "init_scheme",
    "initializer_range",
    "tie_word_embeddings",
    "use_cache",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "decoder_start_token_id",
    "sliding_window",
    "max_position_embeddings",
}

# fields of TrainingArguments that have no effect on batches by token budget
_WITHOUT_EFFECT = {
    "auto_find_batch_size",
    "dataloader_drop_last",
    "dataloader_prefetch_factor",
    "length_column_name",
    "train_sampling_strategy",
}

# fields of TrainingArguments that contradict how a run is evaluated, scored or resumed
_CONTRADICTING = {
    "batch_eval_metrics",
    "prediction_loss_only",
    "restore_callback_states_from_checkpoint",
    "resume_from_checkpoint",
}

# beginnings of the names of training fields that may change when a run is resumed
_FREE_AT_RESUME = (
    "num_train_epochs",
    "max_steps",
    "eval_",
    "per_device_eval_batch_size",
    "save_",
    "logging_",
    "report_to",
    "disable_tqdm",
    "dataloader_",
    "push_to_hub",
    "hub_",
)


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
        if self.start_from is not None:
            self.start_from = os.path.expanduser(self.start_from)
        if self.tokenizer.path is not None:
            self.tokenizer.path = os.path.expanduser(self.tokenizer.path)
        task = TASKS.get(self.task)
        if task is None or not all(isinstance(x, dict) for x in (self.model, self.training, self.generation)):
            return  # `check` will say so
        if self.preset is not None and self.preset not in PRESETS:
            return
        trained_as = PRESETS[self.preset] if self.preset else RecipePreset("")
        # here and not where they are used, so that the recipe in a run's folder says all that the run depends on
        self.training = {**task.training_defaults, **trained_as.training, **self.training}
        self.training.setdefault("greater_is_better", self._best_score not in LOWER_IS_BETTER)
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

    @property
    def _best_score(self) -> str:
        return str(self.training["metric_for_best_model"]).removeprefix("eval_")

    def new_task(self) -> Task:
        """The task of a run by this recipe."""
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
        """Plain values, as they stand in a file."""
        return dataclasses.asdict(self)

    def save(self, path: str | Path) -> None:
        """Write the recipe, with all defaults, as YAML."""
        text = dump_yaml(self.to_dict())
        with atomic_file(path) as stream:
            stream.write(text)

    def check(self) -> None:
        """Refuse what cannot be run.

        Raises:
            RecipeError: in one sentence.
        """
        if self.task not in TASKS:
            raise RecipeError(f"task: {self.task!r} is unknown; {did_you_mean(self.task, TASKS)}")
        task = TASKS[self.task]
        if self.preset is not None and self.preset not in PRESETS:
            hint = did_you_mean(self.preset, PRESETS)
            if self.preset in VanillaTransformerConfig.presets():
                hint = "an architecture is named by model.preset."
            raise RecipeError(f"preset: {self.preset!r} is unknown; {hint}")
        self._check_sections(task)
        self._check_numbers()
        config_fields = {f.name for f in dataclasses.fields(VanillaTransformerConfig)}
        for name in ("id2label", "label2id", "num_labels", "problem_type"):
            if name in self.model:
                raise RecipeError(f"model.{name} follows from the data; leave it out.")
        others = {*VanillaTransformerConfig.attribute_map, "preset", "attn_implementation"}
        reject_unknown(self.model, config_fields | others, "model")
        self._check_memory(task)
        self._check_attention(task)
        self._check_training(task)
        if self.evaluation.tokenize not in BLEU.TOKENIZERS:
            raise RecipeError(
                f"evaluation.tokenize={self.evaluation.tokenize!r} is no tokenizer of sacrebleu; "
                f"{did_you_mean(self.evaluation.tokenize, BLEU.TOKENIZERS)}"
            )
        self._check_generation(task)
        for name in ("train", "validation"):
            if not getattr(self.data, name):
                raise RecipeError(
                    f"data.{name} is missing: give {'source and target files, or ' if task.name == 'seq2seq' else ''}a path."
                )
        for name in self.data.test:
            if not isinstance(name, str) or name in ("train", "validation"):
                raise RecipeError(f"data.test.{name}: a test needs a name of its own, in letters; give it another.")
        self.splits()
        if self.training.get("max_steps") == 0 or (
            self.training.get("max_steps", -1) < 0 and self.training["num_train_epochs"] <= 0
        ):
            raise RecipeError(
                "training.max_steps and training.num_train_epochs leave no update to make; set one of them to above 0."
            )
        if self.batches.packing and not task.packs:
            raise RecipeError(
                f"batches.packing has no effect for task {self.task}, whose label belongs to a row; leave it out."
            )
        if self.batches.count not in COUNTS:
            raise RecipeError(f"batches.count={self.batches.count!r} must be {' or '.join(map(repr, COUNTS))}.")
        if self.stop_on.loss_over_median is not None and self.stop_on.loss_over_median <= 1:
            raise RecipeError(
                f"stop_on.loss_over_median={self.stop_on.loss_over_median} must be above 1, or null for never."
            )
        self._check_averaging()
        self.adapter.check(self.task, self.start_from)
        self._check_card()
        self._check_lengths()
        if not 0 < self.data.masked_share < 1:
            raise RecipeError(f"data.masked_share={self.data.masked_share} must be between 0 and 1.")
        if self.tokenizer.kind not in TOKENIZER_KINDS:
            *kinds, last = map(repr, TOKENIZER_KINDS)
            raise RecipeError(f"tokenizer.kind={self.tokenizer.kind!r} must be {', '.join(kinds)} or {last}.")

    def _check_numbers(self) -> None:
        """Refuse numbers with which a run would fail after work was done, or have no end."""
        if "\0" in self.output_dir:
            raise RecipeError("output_dir holds a NUL character; leave it out.")
        values = self.to_dict()
        for name, bound in RECIPE.items():
            section, _, field = name.rpartition(".")
            check_bounds(
                {field: (values[section] if section else values)[field]}, {field: bound}, f"{section}." * bool(section)
            )
        check_bounds(self.training, TRAINING, "training.")
        check_bounds(self.generation, GENERATION, "generation.")

    def _check_memory(self, task: type[Task]) -> None:
        """Refuse a model that this machine cannot hold, before it is built."""
        section = self.tokenizer
        trained = section.path is None and self.start_from is None and section.kind != "characters"
        # as its tokenizer will have them, and not as a published preset has
        special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": None}
        parameters = self.config(**({"vocab_size": section.vocab_size, **special} if trained else {})).num_parameters()
        accelerated = torch.accelerator.is_available()
        needed, memory = parameters * (4 if accelerated else 8), machine_memory()
        if needed > memory:
            what = "weights" if accelerated else "weights and gradients"
            raise RecipeError(
                f"model: {parameters:,} parameters need {needed / 2**30:,.0f} GB for {what} in float32, and this machine has "
                f"{memory / 2**30:,.0f} GB; make the model smaller."
            )

    def _check_attention(self, task: type[Task]) -> None:
        """Refuse a backend of attention that is not there, or that the model cannot be computed with."""
        name = self.model.get("attn_implementation")
        if name is None:
            return
        known = ["eager", *ALL_ATTENTION_FUNCTIONS.keys()]
        if name not in known:
            raise RecipeError(
                f"model.attn_implementation={name!r} is not an attention backend that is registered with transformers' "
                f"AttentionInterface; {did_you_mean(str(name), known)}"
            )
        try:
            with torch.device("meta"):
                task.head(self.config())
        except (ImportError, ValueError) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise RecipeError(f"model.attn_implementation={name!r} cannot be used here: {reason}.") from error

    def _check_training(self, task: type[Task]) -> None:
        """Refuse fields of TrainingArguments that a run sets itself or cannot have, and values of the wrong type."""
        training_fields = {f.name for f in dataclasses.fields(task.arguments_class)}
        for name in self.training:
            if name in _SET_ELSEWHERE:
                raise RecipeError(f"training.{name} is set by {_SET_ELSEWHERE[name]} in a recipe; set it there.")
            if name in _WITHOUT_EFFECT:
                raise RecipeError(f"training.{name} has no effect on batches by token budget; leave it out.")
            if name in _CONTRADICTING:
                raise RecipeError(
                    f"training.{name} contradicts how a recipe's run is evaluated, scored and resumed; leave it out."
                )
        reject_unknown(
            self.training, training_fields - set(_SET_ELSEWHERE) - _WITHOUT_EFFECT - _CONTRADICTING, "training"
        )
        if "hub_token" in self.training:
            raise RecipeError(
                "training.hub_token would stand in the recipe that is saved and pushed with the run; log in with "
                "`hf auth login`, or set the environment variable HF_TOKEN."
            )
        if self.training.get("hub_strategy", "end") != "end":
            raise RecipeError("training.hub_strategy must be end: a run is pushed when it is finished; leave it out.")
        hints = get_type_hints(task.arguments_class)
        for name, value in self.training.items():
            if value is False and name.endswith("_strategy"):
                self.training[name] = value = "no"  # which is what other readers of YAML take it for
            hint = hints[name]
            if name != "learning_rate" or noam_factor(value) is None:
                coerce(value, hint, f"training.{name}")
            if isinstance(value, str) and dict in [get_origin(option) or option for option in get_args(hint)]:
                _check_mapping_text(name, value)
        options = self.training.get("optim_args")
        if options is not None and not re.fullmatch(r"[^=,]+=[^=,]+(,[^=,]+=[^=,]+)*", options):
            raise RecipeError(f"training.optim_args={shown(options)} must be pairs, as in 'name=value,other=value'.")
        self._check_schedule()
        best = self._best_score
        if best not in task.scores:
            raise RecipeError(
                f"training.metric_for_best_model={best!r} is no score; {did_you_mean(best, task.scores)}"
            )
        if best != "loss" and self.training.get("predict_with_generate") is False:
            raise RecipeError(
                f"training.metric_for_best_model={best!r} is of generated text; set it to loss, or leave out "
                "training.predict_with_generate=false."
            )
        if noam_factor(self.training["learning_rate"]) is not None and self.training["warmup_steps"] < 1:
            raise RecipeError(
                f"training.warmup_steps={self.training['warmup_steps']}: learning_rate noam needs a number of updates of "
                "at least 1; set it, or learning_rate to a number."
            )

    def _check_schedule(self) -> None:
        """Refuse a schedule that nobody knows, and options that it does not have."""
        kind = self.training["lr_scheduler_type"]
        known = [*(str(name.value) for name in SchedulerType), DECAY]
        if kind not in known:
            raise RecipeError(f"training.lr_scheduler_type={kind!r} is unknown; {did_you_mean(str(kind), known)}")
        options = self.training.get("lr_scheduler_kwargs") or {}
        if kind not in SCHEDULE_OPTIONS or not isinstance(options, dict):
            return
        reject_unknown(options, set(SCHEDULE_OPTIONS[kind]), "training.lr_scheduler_kwargs")
        share = options.get("decay_share", 1)
        if not isinstance(share, (int, float)) or not 0 < share <= 1:
            raise RecipeError(
                f"training.lr_scheduler_kwargs.decay_share={share!r} must be above 0 and at most 1: the share of the run "
                "in which the learning rate falls to zero."
            )

    def _check_generation(self, task: type[Task]) -> None:
        """Refuse what transformers would refuse when the model is saved."""
        own = {name: v for name, v in _OWN_GENERATION_FIELDS.items() if name in task.generation_fields}
        if self.generation.get("length_penalty_form", "power") not in ("power", "gnmt"):
            form = self.generation["length_penalty_form"]
            raise RecipeError(f"generation.length_penalty_form={form!r} must be 'power' or 'gnmt'.")
        reject_unknown(self.generation, {*GenerationConfig().to_dict(), *own}, "generation")
        for name, reason in _GENERATION_REFUSED.items() if "bleu" in task.scores else ():
            value = self.generation.get(name)
            if value not in (None, False) and value != _GENERATION_WITHOUT_EFFECT.get(name):
                raise RecipeError(f"generation.{name} cannot be used in a recipe, as {reason}; leave it out.")
        # transformers has no types for these, but defaults
        for name, default in {**GenerationConfig._get_default_generation_params(), **own}.items():
            if name in self.generation and type(default) in (bool, int, float) and name != "early_stopping":
                coerce(self.generation[name], type(default) | None, f"generation.{name}")
        for name, hint in _GENERATION_TYPES.items():
            if name in self.generation:
                coerce(self.generation[name], hint | None, f"generation.{name}")
        try:  # as it will be checked whenever the model is saved
            GenerationConfig(**{n: v for n, v in self.generation.items() if n not in own}).validate(strict=True)
        except ValueError as error:
            _, _, reason = " ".join(str(error).split()).partition(": - ")
            raise RecipeError(f"generation: {(reason or str(error)).partition(' If you')[0].rstrip('.')}.") from error

    def _check_averaging(self) -> None:
        """Refuse means and an end of training for which there would be nothing to go by."""
        if self.averaging.ema is not None and not 0 < self.averaging.ema < 1:
            raise RecipeError(f"averaging.ema={self.averaging.ema} must be between 0 and 1, such as 0.999.")
        wanted = {
            "averaging.best": self.averaging.best > 1,
            "early_stopping": self.early_stopping.patience is not None,
        }
        for name, is_wanted in wanted.items():
            if is_wanted and self.training["eval_strategy"] == "no":
                raise RecipeError(f"{name} goes by evaluations; set training.eval_strategy to steps or epoch.")
        if self.averaging.best > 1 and self.training["save_strategy"] not in (self.training["eval_strategy"], "best"):
            raise RecipeError(
                f"averaging.best goes by the scores of checkpoints; set training.save_strategy to "
                f"{self.training['eval_strategy']}, as training.eval_strategy is, or to best."
            )

    def _check_card(self) -> None:
        """Refuse before training what the Hub would refuse of the card after it."""
        card = self.card
        task = TASKS[self.task]
        if card.pipeline_tag not in (None, task.pipeline_tag, *task.other_pipeline_tags):
            raise RecipeError(
                f"card.pipeline_tag={card.pipeline_tag!r} is nothing that a model of task {task.name} is for; it is "
                f"{' or '.join((task.pipeline_tag, *task.other_pipeline_tags))}."
            )
        if card.license is not None and card.license not in LICENSES:
            near = nearest_license(card.license)
            hint = f"did you mean {near!r}? Any other" if near else "it has apache-2.0, mit and others; any other"
            raise RecipeError(
                f"card.license={card.license!r} is no licence that the Hub knows; {hint} licence is {OTHER_LICENSE!r}, with "
                "card.license_name and card.license_link."
            )
        for name in ("license_name", "license_link"):
            if (getattr(card, name) is not None) != (card.license == OTHER_LICENSE):
                raise RecipeError(
                    f"card.{name} goes with card.license={OTHER_LICENSE}, and with no other; give both or neither."
                )
        if card.license_name is not None and not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", card.license_name):
            raise RecipeError(
                f"card.license_name={card.license_name!r} must be an identifier in lower case, such as 'my-license-1.0'."
            )
        if card.title is not None and (not card.title.strip() or "\n" in card.title):
            raise RecipeError(f"card.title={card.title!r} must be one line that is not empty.")
        if card.watts is not None and not 0 < card.watts < math.inf:
            raise RecipeError(f"card.watts={card.watts} must be a number above 0.")
        if card.grams_co2_per_kwh is not None and not 0 <= card.grams_co2_per_kwh < math.inf:
            raise RecipeError(f"card.grams_co2_per_kwh={card.grams_co2_per_kwh} must be a number of at least 0.")

    def _check_lengths(self) -> None:
        """Refuse rows that are longer than a batch or the model may be."""
        config = self.config()
        block = self.data.block_size
        if block is not None and block > self.batches.max_tokens:
            raise RecipeError(
                f"data.block_size={block} is above batches.max_tokens={self.batches.max_tokens}; raise that."
            )
        longest, name = TASKS[self.task].length_limit(self.data)
        field = f"data.{name}"
        if config.position_encoding == "learned" and longest > config.max_position_embeddings:
            raise RecipeError(
                f"texts of {longest} tokens ({field}) are longer than the learned positions of the model; "
                f"set model.max_position_embeddings to at least {longest}, or lower {field}."
            )

    def _check_sections(self, task: type[Task]) -> None:
        """Refuse settings that have no effect for the task."""
        for section, values, common, used in (
            ("data", self.data, {"train", "validation", "test", "license"}, task.data_fields),
            ("tokenizer", self.tokenizer, set(_TOKENIZER_OF_ALL), task.tokenizer_fields),
            ("evaluation", self.evaluation, {"sentences"}, task.evaluation_fields),
        ):
            for f in dataclasses.fields(values):
                default = task.tokenizer_kind if f.name == "kind" else getattr(type(values)(), f.name)
                given = getattr(values, f.name) != default
                if given and f.name not in common | used:
                    raise RecipeError(f"{section}.{f.name} has no effect for task {task.name}; leave it out.")
        if self.start_from is not None and self.tokenizer.path is not None:
            raise RecipeError(
                "tokenizer.path cannot be given with start_from, which brings its tokenizer; leave it out."
            )
        known = TOKENIZER_KINDS["bpe"].options
        options = TOKENIZER_KINDS[self.tokenizer.kind].options if self.tokenizer.kind in TOKENIZER_KINDS else known
        for name in known:
            if name not in options and getattr(self.tokenizer, name) != getattr(TokenizerSection(), name):
                raise RecipeError(
                    f"tokenizer.{name} has no effect for tokenizer.kind={self.tokenizer.kind}; leave it out."
                )
        if self.generation and not task.generates:
            raise RecipeError(f"generation has no effect for task {task.name}; leave it out.")
        if self.training.get("dataloader_persistent_workers") and task.name in ("causal-lm", "masked-lm"):
            raise RecipeError(
                "training.dataloader_persistent_workers would show a language model the first epoch's cuts and masks in "
                "every epoch; leave it out."
            )

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
        """The model's configuration: the preset, what the tokenizers say, and the recipe's own fields before both.

        Raises:
            RecipeError: for a model that cannot be, or does not fit the task.
        """
        fields = {**from_tokenizers, **self.model}
        attention = fields.pop("attn_implementation", None)
        task = TASKS[self.task]
        begun = None if self.start_from is None else self._begun()
        if begun is not None:
            fields = {"architecture": begun["architecture"], **fields}
            fields |= {name: begun[name] for name in ("vocab_size", "target_vocab_size")}
        try:
            if "preset" in fields or begun is None:
                preset = fields.pop("preset")
                if not isinstance(preset, str):
                    raise RecipeError(f"model.preset={preset!r} is of the wrong type: it must be str.")
                config = VanillaTransformerConfig.from_preset(preset, **fields)
            else:
                config = VanillaTransformerConfig(**{**begun, **fields})
        except RecipeError:
            raise
        except ValueError as error:
            raise RecipeError(f"model: {error}") from error
        if begun is not None and begun["target_vocab_size"] is not None and task.name != "seq2seq":
            raise RecipeError(
                f"start_from: {self.start_from} has separate vocabularies, of which task {task.name} could use one only; "
                "start from a model with one."
            )
        if begun is not None:
            changed = [n for n in begun if n not in _FREE_AT_START and getattr(config, n) != begun[n]]
            if changed:
                differences = ", ".join(f"{n}={begun[n]!r} and not {getattr(config, n)!r}" for n in changed)
                raise RecipeError(
                    f"start_from: {self.start_from} has {differences}; set the model section to what it is, or leave out "
                    "start_from."
                )
        served = task.head.supported_architectures
        if config.architecture not in served:
            raise RecipeError(
                f"task {task.name} needs model.architecture={' or '.join(served)}, not {config.architecture}."
            )
        if attention is not None:
            config._attn_implementation = attention
        return config

    def _begun(self) -> dict[str, Any]:
        """The configuration of the model to start from."""
        start = str(self.start_from)
        try:
            begun = load_config(locate(start))
        except RemoteCodeError as error:
            raise RecipeError(
                f"start_from: {error.what}, and training starts from models of this package only, which need none; make it one "
                f"with vanilla-transformer convert {start} FOLDER, if it can be."
            ) from error
        except (LoadingError, OSError) as error:
            raise RecipeError(f"start_from: {error}") from error
        if not isinstance(begun, VanillaTransformerConfig):
            raise RecipeError(
                f"start_from: {start} is a {begun.model_type} model, not one of this package; make it one with "
                f"vanilla-transformer convert {start} FOLDER, if it can be, and start from that."
            )
        names = (f.name for f in dataclasses.fields(VanillaTransformerConfig))
        inherited = {f.name for f in dataclasses.fields(PreTrainedConfig)} | {"is_decoder"}
        return {name: getattr(begun, name) for name in names if name not in inherited}

    def changes_since(self, earlier: "Recipe") -> list[str]:
        """Names of the fields in which a run that goes on would no longer be the run that was begun.

        How long it goes on, when it is evaluated and saved, and what is made of the result may change.
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
        return _DATA_TYPES.get(rest[-1]) if len(rest) == (3 if rest[0] == "test" else 2) else None
    types = _TYPES_OF_SECTIONS.get(first) or get_type_hints(hints[first])
    return types.get(rest[0]) if len(rest) == 1 else None


def _model_types() -> dict[str, Any]:
    """Return the types of the fields of a model, by their own names and by those of transformers."""
    types = {
        name: hint
        for parent in reversed(VanillaTransformerConfig.__mro__)
        for name, hint in getattr(parent, "__annotations__", {}).items()
        if not isinstance(hint, str)
    }
    aliases = {alias: types.get(name) for alias, name in VanillaTransformerConfig.attribute_map.items()}
    return {**types, **aliases, "preset": str, "attn_implementation": str}


def _check_mapping_text(name: str, value: str) -> None:
    """Refuse text in place of a mapping that transformers would not read as one: JSON, or for some fields a JSON file.

    Raises:
        RecipeError: naming the field.
    """
    from_file = name in ("accelerator_config", "fsdp_config", "deepspeed")
    if from_file and os.path.isfile(value):
        return
    try:
        if isinstance(json.loads(value), dict):
            return
    except (ValueError, RecursionError):
        pass
    what = " or the path of a JSON file" if from_file else ""
    raise RecipeError(f"training.{name}={shown(value)} must be a mapping of fields to values{what}.")


_DATA_TYPES = {**get_type_hints(TextData), **get_type_hints(ParallelData)}
_TYPES_OF_SECTIONS: dict[str, dict[str, Any]] = {
    "model": _model_types(),
    "training": {**get_type_hints(Seq2SeqTrainingArguments), "learning_rate": float | str},
    "generation": {
        name: bool if isinstance(default, bool) else type(default) | None
        for name, default in {**GenerationConfig._get_default_generation_params(), **_OWN_GENERATION_FIELDS}.items()
        if isinstance(default, (bool, int, float, str)) and name != "early_stopping"
    },
}
