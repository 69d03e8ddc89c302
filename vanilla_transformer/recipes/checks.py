"""Checks of a recipe, with a clear one-line error before any work: a function for each section, called by `Recipe.check`.

All of them raise a `RecipeError`.
"""

import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import torch
from sacrebleu.metrics import BLEU
from transformers import GenerationConfig, SchedulerType
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from vanilla_transformer.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.data.batching import COUNTS
from vanilla_transformer.errors import RecipeError
from vanilla_transformer.recipes.field_types import GENERATION_TYPES, OWN_GENERATION_FIELDS
from vanilla_transformer.recipes.licenses import LICENSES, OTHER_LICENSE, nearest_license
from vanilla_transformer.recipes.presets import PRESETS
from vanilla_transformer.recipes.sections import AveragingSection, CardSection, EarlyStoppingSection
from vanilla_transformer.tasks import TASKS, Task
from vanilla_transformer.tasks.settings import BatchSection, DataSection, EvaluationSection, TokenizerSection
from vanilla_transformer.tokenization import TOKENIZER_KINDS
from vanilla_transformer.trainer.schedules import DECAY, SCHEDULE_OPTIONS, noam_factor
from vanilla_transformer.utils.names import did_you_mean
from vanilla_transformer.utils.schema import coerce, reject_unknown, shown

TRAINING_REFUSED: dict[str, str] = {
    **{
        name: f"is set by {field} in a recipe; set it there"
        for name, field in (
            ("output_dir", "output_dir"),
            ("seed", "seed"),
            ("label_smoothing_factor", "model.label_smoothing"),
            ("per_device_train_batch_size", "batches.max_tokens"),
            ("generation_num_beams", "evaluation.num_beams"),
            ("generation_max_length", "generation.max_length"),
        )
    },
    **dict.fromkeys(
        (
            *("auto_find_batch_size", "dataloader_drop_last", "dataloader_prefetch_factor"),
            *("length_column_name", "train_sampling_strategy"),
        ),
        "has no effect on batches by token budget; leave it out",
    ),
    **dict.fromkeys(
        (
            *("batch_eval_metrics", "prediction_loss_only"),
            *("restore_callback_states_from_checkpoint", "resume_from_checkpoint"),
        ),
        "contradicts how a recipe's run is evaluated, scored and resumed; leave it out",
    ),
    "hub_token": "would stand in the recipe that is saved and pushed with the run; log in with `hf auth login`, or set the "
    "environment variable HF_TOKEN",
}
"""Fields of TrainingArguments that a recipe cannot give, and why."""

GENERATION_REFUSED: dict[str, str] = {
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
"""Settings of generation with which a run that scores what it writes would end at its first evaluation, and why."""

_WITHOUT_EFFECT = {"num_return_sequences": 1, "num_beam_groups": 1, "guidance_scale": 1}

_TOKENIZER_OF_ALL = {"vocab_size", "min_frequency", "lowercase", "split_digits", "path"}
"""Fields of the tokenizer section that every task has."""


# ------------------------------------------------------------------------------------------------- the recipe as a whole


def check_names(task: str, preset: str | None) -> None:
    """Refuse a task or preset that nobody knows."""
    if task not in TASKS:
        raise RecipeError(f"task: {task!r} is unknown; {did_you_mean(task, TASKS)}")
    if preset is not None and preset not in PRESETS:
        hint = did_you_mean(preset, PRESETS)
        if preset in VanillaTransformerConfig.presets():
            hint = "an architecture is named by model.preset."
        raise RecipeError(f"preset: {preset!r} is unknown; {hint}")


def check_effects(
    task: type[Task],
    data: DataSection,
    tokenizer: TokenizerSection,
    evaluation: EvaluationSection,
    generation: Mapping[str, Any],
) -> None:
    """Refuse settings that have no effect for the task."""
    for section, values, used in (
        ("data", data, {"train", "validation", "test", "license"} | task.data_fields),
        ("tokenizer", tokenizer, _TOKENIZER_OF_ALL | task.tokenizer_fields),
        ("evaluation", evaluation, {"sentences"} | task.evaluation_fields),
    ):
        defaults = dataclasses.asdict(type(values)()) | {"kind": task.tokenizer_kind}
        for name, value in dataclasses.asdict(values).items():
            if name not in used and value != defaults[name]:
                raise RecipeError(f"{section}.{name} has no effect for task {task.name}; leave it out.")
    if generation and not task.generates:
        raise RecipeError(f"generation has no effect for task {task.name}; leave it out.")


def check_tokenizer(tokenizer: TokenizerSection, start_from: str | None) -> None:
    """Refuse settings that have no effect for the kind of tokenizer, or for one that is there already."""
    if start_from is not None and tokenizer.path is not None:
        raise RecipeError("tokenizer.path cannot be given with start_from, which brings its tokenizer; leave it out.")
    _check_choice("tokenizer.kind", tokenizer.kind, TOKENIZER_KINDS)
    for name in TOKENIZER_KINDS["bpe"].options:
        is_given = getattr(tokenizer, name) != getattr(TokenizerSection(), name)
        if is_given and name not in TOKENIZER_KINDS[str(tokenizer.kind)].options:
            raise RecipeError(f"tokenizer.{name} has no effect for tokenizer.kind={tokenizer.kind}; leave it out.")


def _check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    if value not in (choices := list(choices)):
        *others, last = map(repr, choices)
        raise RecipeError(f"{name}={value!r} must be {', '.join(others)} or {last}.")


# ------------------------------------------------------------------------------------------------------------- the model


def check_model_fields(model: Mapping[str, Any]) -> None:
    """Refuse fields that no model has, or that the data decides."""
    for name in ("id2label", "label2id", "num_labels", "problem_type"):
        if name in model:
            raise RecipeError(f"model.{name} follows from the data; leave it out.")
    known = {f.name for f in dataclasses.fields(VanillaTransformerConfig)}
    reject_unknown(model, {*known, *VanillaTransformerConfig.attribute_map, "preset", "attn_implementation"}, "model")


def check_memory(parameters: int) -> None:
    """Refuse a model that this machine cannot hold, before it is built."""
    accelerated = torch.accelerator.is_available()
    needed, memory = parameters * (4 if accelerated else 8), machine_memory()
    if needed > memory:
        what = "weights" if accelerated else "weights and gradients"
        raise RecipeError(
            f"model: {parameters:,} parameters need {needed / 2**30:,.0f} GB for {what} in float32, and this machine has "
            f"{memory / 2**30:,.0f} GB; make the model smaller."
        )


def machine_memory() -> int:
    """Return the bytes of memory that this machine, or the container on it, has."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    try:
        return min(memory, int(limit.read_text()))
    except (OSError, ValueError):  # no such file, or "max"
        return memory


def check_attention(name: str | None, build: Callable[[], Any]) -> None:
    """Refuse a backend of attention that is not there, or that the model cannot be computed with.

    Args:
        build: makes the model.
    """
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
            build()
    except (ImportError, ValueError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise RecipeError(f"model.attn_implementation={name!r} cannot be used here: {reason}.") from error


# -------------------------------------------------------------------------------------------------- training and batches


def check_training(training: dict[str, Any], task: type[Task]) -> None:
    """Refuse fields of TrainingArguments that a recipe cannot give, and values of the wrong type."""
    for name in training:
        if name in TRAINING_REFUSED:
            raise RecipeError(f"training.{name} {TRAINING_REFUSED[name]}.")
    hints = get_type_hints(task.arguments_class)
    reject_unknown(
        training, {f.name for f in dataclasses.fields(task.arguments_class)} - set(TRAINING_REFUSED), "training"
    )
    if training.get("hub_strategy", "end") != "end":
        raise RecipeError("training.hub_strategy must be end: a run is pushed when it is finished; leave it out.")
    for name, value in training.items():
        if value is False and name.endswith("_strategy"):
            training[name] = value = "no"  # which is what other readers of YAML take it for
        if name != "learning_rate" or noam_factor(value) is None:
            coerce(value, hints[name], f"training.{name}")
        if isinstance(value, str) and dict in [get_origin(option) or option for option in get_args(hints[name])]:
            _check_mapping_text(name, value)
    options = training.get("optim_args")
    if options is not None and not re.fullmatch(r"[^=,]+=[^=,]+(,[^=,]+=[^=,]+)*", options):
        raise RecipeError(f"training.optim_args={shown(options)} must be pairs, as in 'name=value,other=value'.")
    _check_schedule(training)
    best = str(training["metric_for_best_model"]).removeprefix("eval_")
    if best not in task.scores:
        raise RecipeError(f"training.metric_for_best_model={best!r} is not a score; {did_you_mean(best, task.scores)}")
    if best != "loss" and training.get("predict_with_generate") is False:
        raise RecipeError(
            f"training.metric_for_best_model={best!r} is of generated text; set it to loss, or leave out "
            "training.predict_with_generate=false."
        )
    if training.get("dataloader_persistent_workers") and task.name in ("causal-lm", "masked-lm"):
        raise RecipeError(
            "training.dataloader_persistent_workers would show a language model the first epoch's cuts and masks in "
            "every epoch; leave it out."
        )
    if training.get("max_steps") == 0 or (training.get("max_steps", -1) < 0 and training["num_train_epochs"] <= 0):
        raise RecipeError(
            "training.max_steps and training.num_train_epochs leave no update to make; set one of them to above 0."
        )


def _check_mapping_text(name: str, value: str) -> None:
    """Refuse text in place of a mapping that transformers would not read as one: JSON, or for some fields a JSON file."""
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


def _check_schedule(training: Mapping[str, Any]) -> None:
    """Refuse a schedule that nobody knows, and options that it does not have."""
    kind = training["lr_scheduler_type"]
    known = [*(str(name.value) for name in SchedulerType), DECAY]
    if kind not in known:
        raise RecipeError(f"training.lr_scheduler_type={kind!r} is unknown; {did_you_mean(str(kind), known)}")
    if noam_factor(training["learning_rate"]) is not None and training["warmup_steps"] < 1:
        raise RecipeError(
            f"training.warmup_steps={training['warmup_steps']}: learning_rate noam needs a number of updates of "
            "at least 1; set it, or learning_rate to a number."
        )
    options = training.get("lr_scheduler_kwargs") or {}
    if kind not in SCHEDULE_OPTIONS or not isinstance(options, dict):
        return
    reject_unknown(options, set(SCHEDULE_OPTIONS[kind]), "training.lr_scheduler_kwargs")
    share = options.get("decay_share", 1)
    if not isinstance(share, (int, float)) or not 0 < share <= 1:
        raise RecipeError(
            f"training.lr_scheduler_kwargs.decay_share={share!r} must be above 0 and at most 1: the share of the run "
            "in which the learning rate falls to zero."
        )


def check_batches(batches: BatchSection, task: type[Task]) -> None:
    """Refuse batches that the task cannot be trained with."""
    if batches.packing and not task.packs:
        raise RecipeError(
            f"batches.packing has no effect for task {task.name}, whose label belongs to a row; leave it out."
        )
    _check_choice("batches.count", batches.count, COUNTS)


def check_averaging(
    averaging: AveragingSection, early_stopping: EarlyStoppingSection, training: Mapping[str, Any]
) -> None:
    """Refuse means and an end of training for which there would be nothing to go by."""
    wanted = {"averaging.best": averaging.best > 1, "early_stopping": early_stopping.patience is not None}
    for name, is_wanted in wanted.items():
        if is_wanted and training["eval_strategy"] == "no":
            raise RecipeError(f"{name} goes by evaluations; set training.eval_strategy to steps or epoch.")
    if averaging.best > 1 and training["save_strategy"] not in (training["eval_strategy"], "best"):
        raise RecipeError(
            f"averaging.best goes by the scores of checkpoints; set training.save_strategy to "
            f"{training['eval_strategy']}, as training.eval_strategy is, or to best."
        )


# -------------------------------------------------------------------------------------------- evaluation and generation


def check_evaluation(evaluation: EvaluationSection) -> None:
    """Refuse a tokenizer that sacrebleu does not have."""
    if evaluation.tokenize not in BLEU.TOKENIZERS:
        raise RecipeError(
            f"evaluation.tokenize={evaluation.tokenize!r} is not a tokenizer of sacrebleu; "
            f"{did_you_mean(evaluation.tokenize, BLEU.TOKENIZERS)}"
        )


def check_generation(generation: Mapping[str, Any], task: type[Task]) -> None:
    """Refuse what transformers would refuse when the model is saved."""
    _check_choice("generation.length_penalty_form", generation.get("length_penalty_form", "power"), ("power", "gnmt"))
    own = {name: value for name, value in OWN_GENERATION_FIELDS.items() if name in task.generation_fields}
    reject_unknown(generation, {*GenerationConfig().to_dict(), *own}, "generation")
    for name, reason in GENERATION_REFUSED.items() if "predict_with_generate" in task.training_defaults else ():
        value = generation.get(name)
        if value not in (None, False) and value != _WITHOUT_EFFECT.get(name):
            raise RecipeError(f"generation.{name} cannot be used in a recipe, as {reason}; leave it out.")
    # transformers has no types for most of these, but defaults
    defaults = {**GenerationConfig._get_default_generation_params(), **own}
    types = {n: type(v) for n, v in defaults.items() if type(v) in (bool, int, float) and n != "early_stopping"}
    for name, hint in {**types, **GENERATION_TYPES}.items():
        if name in generation:
            coerce(generation[name], hint | None, f"generation.{name}")
    try:  # as it will be checked whenever the model is saved
        GenerationConfig(**{n: v for n, v in generation.items() if n not in own}).validate(strict=True)
    except ValueError as error:
        _, _, reason = " ".join(str(error).split()).partition(": - ")
        raise RecipeError(f"generation: {(reason or str(error)).partition(' If you')[0].rstrip('.')}.") from error


# -------------------------------------------------------------------------------------------------------- data and card


def check_splits(data: DataSection, task: type[Task]) -> None:
    """Refuse splits that are missing, and names of tests that mean another split."""
    for name in ("train", "validation"):
        if not getattr(data, name):
            files = "source and target files, or " if task.name == "seq2seq" else ""
            raise RecipeError(f"data.{name} is missing: give {files}a path.")
    for name in data.test:
        if not isinstance(name, str) or name in ("train", "validation"):
            raise RecipeError(f"data.test.{name}: a test needs a name of its own, in letters; give it another.")


def check_lengths(config: VanillaTransformerConfig, data: DataSection, max_tokens: int, task: type[Task]) -> None:
    """Refuse rows that are longer than a batch or the model may be."""
    if data.block_size is not None and data.block_size > max_tokens:
        raise RecipeError(f"data.block_size={data.block_size} is above batches.max_tokens={max_tokens}; raise that.")
    longest, name = task.length_limit(data)
    if config.position_encoding == "learned" and longest > config.max_position_embeddings:
        raise RecipeError(
            f"texts of {longest} tokens (data.{name}) are longer than the learned positions of the model; "
            f"set model.max_position_embeddings to at least {longest}, or lower data.{name}."
        )


def check_card(card: CardSection, task: type[Task]) -> None:
    """Refuse before training what the Hub would refuse of the card after it."""
    tags = (task.pipeline_tag, *task.other_pipeline_tags)
    if card.pipeline_tag not in (None, *tags):
        raise RecipeError(
            f"card.pipeline_tag={card.pipeline_tag!r} is nothing that a model of task {task.name} is for; it is "
            f"{' or '.join(tags)}."
        )
    if card.license is not None and card.license not in LICENSES:
        near = nearest_license(card.license)
        hint = f"did you mean {near!r}? Any other" if near else "it has apache-2.0, mit and others; any other"
        raise RecipeError(
            f"card.license={card.license!r} is not a licence that the Hub knows; {hint} licence is {OTHER_LICENSE!r}, with "
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
