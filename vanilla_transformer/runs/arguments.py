"""The arguments of transformers' Trainer for a recipe on this machine."""

import os
import shutil
import sys
from typing import Any

import torch
from transformers import Seq2SeqTrainingArguments, TrainingArguments
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from vanilla_transformer.errors import RecipeError
from vanilla_transformer.recipes.recipe import Recipe
from vanilla_transformer.tasks import TASKS
from vanilla_transformer.trainer.schedules import DECAY, SCHEDULE_OPTIONS, peak_learning_rate
from vanilla_transformer.trainer.sharding import check_device
from vanilla_transformer.utils.extras import PACKAGES, missing
from vanilla_transformer.utils.public import one_line
from vanilla_transformer.utils.shutdown import tear_down_at_exit


def accelerator_type() -> str | None:
    """Return the kind of accelerator of this machine, such as "cuda"; None where there is none."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return None if accelerator is None else accelerator.type


def training_arguments(recipe: Recipe, **overrides: Any) -> TrainingArguments:
    """Return the recipe's training section for transformers, with what this machine and all runs of the package need.

    On several processes, register their teardown as well ([`tear_down_at_exit`]).

    Args:
        overrides: fields in the place of the recipe's.

    Raises:
        RecipeError: for a value that transformers refuses, and for what this machine cannot do.
    """
    # use_cpu: without it transformers 5.24 lets several processes on CPUs each train a model of its own
    # logging_nan_inf_filter: it hides a NaN loss behind the mean of those before it, and reads every loss from the device
    # for it; fp16 needs it for the updates that its gradient scaler skips
    machine = {
        "use_cpu": accelerator_type() is None,
        "dataloader_pin_memory": accelerator_type() == "cuda",
        "ddp_find_unused_parameters": False,  # there are none, and DDP warns where it is told to look for them
        "logging_nan_inf_filter": bool(recipe.training.get("fp16")),
    }
    task = TASKS[recipe.task]
    fields = {**machine, "label_names": list(task.label_names), **recipe.training, **overrides}
    fields.setdefault("save_total_limit", max(recipe.averaging.last or 0, recipe.averaging.best, 1) + 1)

    # what transformers does not know, or warns of
    if fields["lr_scheduler_type"] == DECAY:
        fields["lr_scheduler_type"] = "inverse_sqrt"
        fields["lr_scheduler_kwargs"] = SCHEDULE_OPTIONS[DECAY] | (fields.get("lr_scheduler_kwargs") or {})
    width, warmup = recipe.config().hidden_size, fields["warmup_steps"]
    fields["learning_rate"] = peak_learning_rate(fields["learning_rate"], width, warmup)
    for name in ("gradient_checkpointing", "gradient_checkpointing_kwargs"):  # renamed in transformers 5.24
        if name in fields:
            fields.setdefault(name.replace("gradient", "activation"), fields.pop(name))
    if issubclass(task.arguments_class, Seq2SeqTrainingArguments):
        fields["generation_num_beams"] = recipe.evaluation.num_beams
    try:
        arguments = task.arguments_class(output_dir=recipe.output_dir, seed=recipe.seed, **fields)
    except (TypeError, ValueError, ImportError) as error:
        raise RecipeError(f"training: {one_line(error)}") from error

    if arguments.world_size > 1:
        tear_down_at_exit()
    _check_machine(arguments)
    _check_trackers(arguments.report_to)
    return arguments


def _check_machine(arguments: TrainingArguments) -> None:
    """Refuse what transformers would silently leave out, or fail at in the first update."""
    on_cpu = arguments.device.type == "cpu"
    check_device(arguments.device)
    if on_cpu and (arguments.fp16 or arguments.fp16_full_eval):
        raise RecipeError("training.fp16 needs an accelerator, and there is none here; set training.bf16 instead.")
    # what torch's inductor looks for
    compiler = os.environ.get("CXX", {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++"))
    if on_cpu and arguments.torch_compile_backend == "inductor" and shutil.which(compiler) is None:
        raise RecipeError(
            f"training.torch_compile needs the C++ compiler {compiler}, which is not here; install it, name another in "
            "the environment variable CXX, or leave torch_compile out."
        )


def _check_trackers(names: list[str]) -> None:
    """Refuse a name in `training.report_to` that transformers does not know, or whose package is not installed."""
    for name in names:
        if name not in INTEGRATION_TO_CALLBACK:
            raise RecipeError(
                f"training.report_to={name!r} is none of {', '.join(INTEGRATION_TO_CALLBACK)}, all, none."
            )
        try:
            INTEGRATION_TO_CALLBACK[name]()
        except (ImportError, RuntimeError) as error:
            setting = f"training.report_to={name!r}"
            reason = f"{setting} cannot be used: {one_line(error)}"
            reason = missing(setting, name) if name in PACKAGES else reason
            raise RecipeError(f"{reason.rstrip('.')}; or leave it out.") from error
