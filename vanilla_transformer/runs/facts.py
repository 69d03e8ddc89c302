"""What `metrics.json` says of a run beside its scores: how it was trained, on what, and what that took."""

import os
import platform
from typing import Any

import torch

from vanilla_transformer.data.batching import TokenBudgetBatchSampler
from vanilla_transformer.recipes.recipe import Recipe
from vanilla_transformer.runs.arguments import accelerator_type
from vanilla_transformer.runs.emissions import estimate_emissions
from vanilla_transformer.tasks import Task, TokenizedSplit
from vanilla_transformer.trainer.callbacks import EarlyStop, describe_warmup
from vanilla_transformer.trainer.costs import count_flops, peak_memory


def training_facts(
    recipe: Recipe, task: Task, trainer: Any, train: TokenizedSplit, sampler: TokenBudgetBatchSampler
) -> dict[str, Any]:
    """Return how training went: time, updates, speed, the peak of memory so far, and operations a token."""
    state = trainer.state
    speeds = sorted(entry["tokens_per_second"] for entry in state.log_history if "tokens_per_second" in entry)
    updates = state.global_step if trainer.time_share >= 1 else state.max_steps
    return {
        "minutes": round(trainer.minutes, 1),
        "updates": state.global_step,
        "epochs": round(float(state.epoch or 0), 2),
        "examples": len(train.tokenized),
        "tokens_per_second": speeds[len(speeds) // 2] if speeds else None,
        "architecture": trainer.model.config.architecture,
        "parameters": trainer.model.num_parameters(),
        "processes": trainer.args.world_size,
        "peak_memory_mb": peak_memory(trainer.args.device.type),
        "flops_per_token": _flops_per_token(task, trainer, train, sampler),
        "stopped": end_of_training(recipe, trainer),
        "warmup": describe_warmup(trainer.args, updates, state.max_steps),
    }


def _flops_per_token(task: Task, trainer: Any, train: TokenizedSplit, sampler: TokenBudgetBatchSampler) -> int | None:
    """Return the operations of a token, counted on the first batch; None where the weights are spread over processes."""
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        return None
    numbers = next(iter(sampler))
    rows = task.train_data(train.tokenized)
    model = trainer.accelerator.unwrap_model(trainer.model)
    batch = task.train_collator(model)([rows[number] for number in numbers])
    return count_flops(model, batch, int(task.lengths(train.tokenized)[numbers].sum()))


def end_of_training(recipe: Recipe, trainer: Any) -> str:
    """Return why training ended: for want of improvement, time, updates or epochs."""
    state, patience, threshold = trainer.state, recipe.early_stopping.patience, recipe.early_stopping.threshold
    stopped, ended = f"stopped at update {state.global_step}: ", f"ended at update {state.global_step}: it made "
    if patience is not None and EarlyStop.evaluations_without_improvement(state) >= patience:
        metric = str(recipe.training["metric_for_best_model"]).removeprefix("eval_")
        margin = f" by more than {threshold}" if threshold else ""
        return f"{stopped}{metric} has not improved{margin} for {patience} evaluation{'s' if patience > 1 else ''}"
    if state.global_step < state.max_steps:
        return f"{stopped}its time of {recipe.max_minutes:g} minutes was up (max_minutes)"
    if trainer.args.max_steps > 0:
        return f"{ended}all its updates (training.max_steps)"
    epochs = f"{trainer.args.num_train_epochs:g}"
    return f"{ended}{'its epoch' if epochs == '1' else f'all {epochs} epochs'} (training.num_train_epochs)"


def hardware() -> dict[str, Any]:
    """Return the machine that trains."""
    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else accelerator_type() or "cpu",
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def emissions(recipe: Recipe, trainer: Any) -> dict[str, Any]:
    """Return the estimate for the run's minutes on the processors of all its processes."""
    accelerator = trainer.args.device.type != "cpu"
    return estimate_emissions(
        trainer.minutes,
        trainer.args.world_size * (1 if accelerator else torch.get_num_threads()),
        accelerator=accelerator,
        watts=recipe.card.watts,
        grams_co2_per_kwh=recipe.card.grams_co2_per_kwh,
    )
